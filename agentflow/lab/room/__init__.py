"""The control room: a controller, what it shows, and the one widget with its buttons."""

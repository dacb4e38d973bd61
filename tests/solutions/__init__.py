"""Solutions of the notebooks' exercises, kept apart from them and run by tests/course."""

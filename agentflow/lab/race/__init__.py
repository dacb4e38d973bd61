"""Workers that run freely on one queue, and the schedule that their rows show afterwards, in a picture."""

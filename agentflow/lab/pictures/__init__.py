"""Timelines: entries in, SVG out. Standard library only, so that a page can draw without a database."""

"""Pictures: the timeline (entries in, SVG out) and what all pictures share. Needs nothing but the standard library."""

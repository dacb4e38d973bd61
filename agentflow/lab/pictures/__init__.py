"""Pictures: the timeline (entries in, SVG out) and, in `svg`, what all pictures share. Standard library only.

Other pictures live with their subject: `race/picture`, `crashes/atlas_picture`, `isolation/matrix_picture`, `room/view`.
"""

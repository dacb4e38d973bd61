"""Kills at scale: the crash atlas (one at every boundary) and the soak (hundreds of workflows under kills).

All other faults, and the table of them, are in `lab/history/faults`.
"""

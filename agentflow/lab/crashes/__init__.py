"""Fault injection at scale: the crash atlas (a kill at every boundary) and the soak (hundreds of workflows under kills)."""

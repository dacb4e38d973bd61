"""One line of text becomes one history: the grammar, the moves, the lanes in which workers wait for them, the stepper.

A move: `grammar` reads it, `stepper` allows and notes it, `moves` makes it, in `lanes`, around a `lane_worker`.
"""

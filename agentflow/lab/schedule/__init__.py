"""One line of text becomes one history: the grammar, the moves, the lanes in which workers wait for them, the stepper."""

"""What must always hold: a snapshot of all rows, the invariants of every transition, and a checker that reads only tables.

The checker and its rules (`history_rules`, `action_rules`, `row_rules`) share no table with anything else, so that a mistake
there cannot hide one here: a new transaction or fault is added to `history_rules` by hand.
"""

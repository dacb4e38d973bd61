"""What must always hold: a snapshot of all rows, the invariants of every transition, and a checker that reads only tables."""

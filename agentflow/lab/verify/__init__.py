"""What must always hold, and a judge that reads nothing but tables: a snapshot of all rows, the invariants, the checker."""

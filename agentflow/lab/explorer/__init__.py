"""A model checker on the real database: every schedule within bounds, and the shortest one that breaks an invariant."""

"""The explorer, a model checker on the real database: every schedule within bounds, and the shortest that breaks an invariant."""

"""The explorer, a model checker on the real database: every schedule within bounds, and the shortest that breaks an invariant.

A new fault's bound goes into `search` (`Bounds`, `ExplorerState`) and into the parameters of `explore`.
"""

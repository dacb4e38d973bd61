"""The explorer, a model checker on the real database: every schedule within bounds, and the shortest that breaks an invariant.

A new fault's bound goes into `search` (`Bounds`, `ExplorerState`) and into the parameters of `explore`. One that does
not lose a call is also offered in `search` (`Rules.steps`) and carried out in `transitions` (`World`).
"""

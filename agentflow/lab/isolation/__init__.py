"""The pair matrix: every two transactions on one workflow, played at once on two connections."""

"""The pair matrix: every two transactions on one workflow, interleaved by hand on two connections."""

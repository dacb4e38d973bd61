"""The laboratory: what is done to the engine from outside, through its one hook. The engine never imports it.

`processes` starts and kills real worker processes, `crashes` loses a worker at a boundary, `soak` does that to hundreds.
"""

"""Plots: recovery latency, attempts against effects, work per worker. The only package that imports matplotlib."""

"""Figures that are looked at once: recovery latency, effects, worker throughput. The home of matplotlib."""

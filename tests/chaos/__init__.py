"""Chaos: workflows on a server of its own, faults of every kind at seeded moments, and a judge that knows only tables.

`plan` decides everything by a seed, `world` lets it happen (`faults`, `crew`, `network`, `shim`, `people`, `shop`), `judge` reads
what is left and imports nothing of AgentFlow, `planted` proves that it sees. `python -m tests.chaos --seed 7` is one long run.
"""

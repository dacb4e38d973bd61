"""Broken engines: the real engine with one of its guards taken out, or with a mistake in its place.

A new one is a row in `catalogue`: a clause that it takes out of a statement, or a method that it overrides (`overrides`).
"""

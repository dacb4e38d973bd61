"""Broken engines: the real engine with one of its guards taken out, or with a mistake in its place."""

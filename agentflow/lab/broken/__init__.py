"""The real engine with one guard taken out, and everything that says what then goes wrong."""

"""The threat model, run: each attack of docs/security.md, tried on what guards against it."""

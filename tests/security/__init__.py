"""Attacks: each turns red when its guard is taken out (docs/security.md)."""

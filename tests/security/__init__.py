"""Attacks on what AgentFlow promises; docs/security.md links each promise to its attack."""

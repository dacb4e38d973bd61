"""AgentFlow: a laboratory for durable execution."""

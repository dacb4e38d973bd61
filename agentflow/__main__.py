"""`python -m agentflow` is the command `agentflow`."""

from .cli import main

main()

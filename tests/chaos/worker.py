"""`agentflow worker`, as a process that ends when the one that forked it ends, even while it is stopped."""

from agentflow.cli import main
from agentflow.lab.laboratory.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    main()

"""`python -m agentflow.lab.site` builds the pages; `make site` calls it."""

import sys

from ...errors import AgentFlowError
from .site import main

try:
    print(main())
except (AgentFlowError, OSError) as error:
    sys.exit(f"site: {error}")

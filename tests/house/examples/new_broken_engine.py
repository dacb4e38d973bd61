"""What new_broken_engine.diff adds: an engine in which only the first claim raises the token.

A second worker then takes itself for the first one and does not load what is recorded, so it can never finish.
"""

from __future__ import annotations

import sys

from agentflow import Database
from agentflow.lab.broken.catalogue import engine_class
from agentflow.lab.explorer.explore import explore


def main(url: str, schema: str) -> None:
    """Explores the new engine. Raises AssertionError if nothing breaks."""
    engine = engine_class(["claim_keeps_token"])(Database(url, schema))
    found = explore(engine, crashes=1, expiries=1, lost_replies=0, progress=False)
    (finding,) = found.findings
    assert finding.invariant == "no workflow is stuck", finding
    assert finding.line == "without=claim_keeps_token A*2 A!", finding.line


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

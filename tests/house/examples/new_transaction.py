"""A copy of the package that has one transaction more, `prioritise`: it runs, its guard refuses, and it is shown.

Run with the patched copy first on the path, the address of a database, and the name of a laboratory's schema.
"""

import sys

import pytest

import agentflow
from agentflow.errors import AlreadyFinished
from agentflow.lab.history.sentences import sentences
from agentflow.lab.isolation.pair_matrix import pair_matrix
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.verify.checker import find_mistakes

_, url, schema = sys.argv
engine = agentflow.open_engine(url, schema)

# It is printed, with its tricks explained.
assert "AND lease_owner IS NULL" in agentflow.show_sql("prioritise")
assert "-- If w matched nothing" in agentflow.show_sql("prioritise")

# It runs: the workflow that was created last is claimed first.
engine.create_workflows(["one", "two", "three"], workflow_ids=["one", "two", "three"])
engine.prioritise_workflow("three")
claim = engine.claim_workflow("A")
assert claim is not None
assert claim.workflow_id == "three"

# Its guard refuses a workflow that somebody holds, and the refusal is recorded.
with pytest.raises(AlreadyFinished, match="cannot be prioritised: it is held by A"):
    engine.prioritise_workflow("three")
engine.release_lease(claim)
engine.run_until_idle("B")

# It is shown: in words, in a picture as what a person does, and nobody finds fault with its entries.
history = engine.history("three")
assert [entry["event"] for entry in history[1:4]] == ["workflow_prioritised", "workflow_claimed", "write_refused"]
assert "a person puts the workflow at the head of the queue" in sentences(history)[1]
picture = timeline(history)
assert "head of the queue" in picture.text
assert ">prioritise<" in picture.svg
assert ">a person<" in picture.svg
assert find_mistakes(engine.database) == []

# It is safe beside the others: at once is as good as one after the other.
matrix = pair_matrix(
    agentflow.Engine, engine.database, ["ready", "claimed"], ["prioritise", "claim", "renew", "cancel"]
)
assert {pair.first.transaction for pair in matrix.pairs} >= {"prioritise"}
assert matrix.differences == [], matrix
engine.close()

"""The API against its own description: schemathesis makes good and bad requests from it, and reads each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from agentflow import Database, Engine
from agentflow.api import create_app

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, unsupported_method, allow_header_conformance,
]  # fmt: skip
BEARER = {"authorization": "Bearer a-token"}
BOUNDED = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module", autouse=True)
def api(shared_database: Database) -> Iterator[Engine]:
    engine = Engine(shared_database)
    engine.reset_database()
    _applications.append(create_app(engine, token="a-token", hosts={"testserver"}))
    yield engine
    engine.reset_database()
    engine.world.database.close()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The API of the fixture; the description alone needs no database and is read when the tests are collected."""
    await _applications[-1](scope, receive, send)


_applications: list[Any] = []
config = schemathesis.Config()
config.projects.default.generation.with_security_parameters = False  # tests/security tries what has no token
schema = schemathesis.openapi.from_dict(create_app(token="a-token").openapi(), config=config)
schema.app = application


@schema.parametrize()
@BOUNDED
def test_every_answer_is_one_that_the_description_promises(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS, headers=BEARER)


@schema.include(path_regex="workflow_id").parametrize()
@BOUNDED
def test_the_same_holds_for_a_workflow_that_exists(case: schemathesis.Case, api: Engine) -> None:
    api.create_workflow("I cannot login", workflow_id="known")
    api.run_once("worker")
    case.path_parameters["workflow_id"] = "known"
    case.call_and_validate(checks=CHECKS, headers=BEARER)


def test_the_description_is_complete(api: Engine) -> None:
    described = create_app(api, token="a-token").openapi()
    paths = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert paths == {
        ("get", "/health"), ("get", "/metrics"), ("get", "/workflows"), ("post", "/workflows"),
        ("get", "/workflows/{workflow_id}"), ("get", "/workflows/{workflow_id}/history"),
        ("post", "/workflows/{workflow_id}/events/{name}"), ("post", "/workflows/{workflow_id}/cancel"),
        ("post", "/workflows/{workflow_id}/requeue"), ("post", "/workers/{worker_id}/run-once"),
    }  # fmt: skip
    for methods in described["paths"].values():
        for operation in methods.values():
            assert operation["description"].endswith(".")
            for status, answer in operation["responses"].items():
                assert answer["content"]["application/json"]["schema"], (operation["operationId"], status)

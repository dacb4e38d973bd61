"""The engine over HTTP: which path calls which method, and the status of each error. `/docs` needs no foreign host."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

import h11
import uvicorn
from fastapi import Body, Depends, FastAPI, HTTPException, Path, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.routing import Match
from uvicorn.protocols.http.h11_impl import H11Protocol

from . import answers, errors
from .agents import why_unusable
from .engine import Engine, find_database, is_embedded
from .gate import LOOPBACK, Gate, spelled
from .log import log_event
from .migrations import migrate
from .values import MAX_EVENT_NAME, MAX_ID, check_name

REQUEST_PATIENCE = 2.0  # seconds that a request waits for a database that is away
MAX_PAGE = 500
MAX_CONNECTIONS = 100
READ_SECONDS = 20.0  # for sending us a whole request, and for taking the answer
STATUS_OF = {
    errors.UnknownWorkflow: 404,
    errors.IdTaken: 409,
    errors.AlreadyFinished: 409,
    errors.TooLarge: 413,
    errors.EventRefused: 409,
    errors.BadName: 422,
    errors.UnfaithfulValue: 422,
    errors.DatabaseAway: 503,
    errors.SchemaMissing: 503,
    errors.StatementRefused: 503,
}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    said = {
        401: "Asked without the token of this API",
        403: "Asked under a foreign name or from a foreign page",
        404: "There is no such workflow",
        409: "Another request came first; the sentence says which",
        413: "The body is too large",
        415: "The body is not JSON",
        422: "Something in the request cannot be used; the sentence says what",
        503: "The database is away, not migrated, or refuses a statement; the sentence says why",
    }
    return {status: {"model": answers.Problem, "description": said[status]} for status in (401, 403, 503, *statuses)}


_WRITING = (413, 415, 422)
Id = Annotated[str, Path(min_length=1, description="The workflow's id; / as %2F"), AfterValidator(spelled)]


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


AnyEngine = Annotated[Engine, Depends(_engine)]
_TOKEN = HTTPBearer(auto_error=False, scheme_name="token", description="The gate asks for it; this is its description")


def _with_token(engine: AnyEngine, _: Annotated[object, Security(_TOKEN)]) -> Engine:
    return engine


AppEngine = Annotated[Engine, Depends(_with_token)]
_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>AgentFlow API</title>
<link rel="icon" href="/docs/files/favicon.png">
<link rel="stylesheet" href="/docs/files/swagger-ui.css">
<div id="swagger-ui"></div>
<script src="/docs/files/swagger-ui-bundle.js"></script>
<script src="/docs/page.js"></script>
</html>
"""


def create_app(engine: Engine | None = None, *, token: str, hosts: Collection[str] = LOOPBACK) -> FastAPI:
    """Returns the API on this engine, or on one that find_database() finds when the application starts.

    `token` is what every request has to bring, `hosts` are the names under which the API may be called.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if engine is None:
            app.state.engine = engine_of_environment()
        yield
        if engine is None:
            app.state.engine.close()

    app = FastAPI(
        title="AgentFlow",
        summary="Durable workflows on PostgreSQL",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.engine = engine
    app.add_middleware(Gate, token=token, hosts=hosts)
    _explain_errors(app)
    _add_documentation(app)
    _add_workflows(app)
    _add_operations(app)
    return app


def serve(engine: Engine, listener: socket.socket, *, token: str, hosts: Collection[str] = LOOPBACK) -> None:
    """Answers requests on the socket until SIGTERM or SIGINT; those in progress are finished."""
    server: uvicorn.Server | None = None

    def end(*_: object) -> None:  # before uvicorn listens for it; uvicorn raises it again after its orderly end
        if not server:
            sys.exit(0)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server = uvicorn.Server(server_config(create_app(engine, token=token, hosts=hosts)))
    server.run(sockets=[listener])


def server_config(app: FastAPI) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app, http=_Connection, ws="none", proxy_headers=False, log_level="warning", lifespan="on",
        h11_max_incomplete_event_size=256 * 1024, timeout_graceful_shutdown=5,
    )  # fmt: skip


class _Connection(H11Protocol):
    """A connection that nobody has to wait for: a request comes, and its answer is taken, within READ_SECONDS.

    uvicorn itself would wait for ever, and count such a connection against everybody else. If there are too many, the one
    that has kept us waiting longest is closed.
    """

    _deadline: asyncio.TimerHandle | None = None

    def _watch(self) -> None:
        waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.flow.write_paused
        if self._deadline and not waits:
            self._deadline.cancel()
            self._deadline = None
        elif waits and not self._deadline:
            self._deadline = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def _should_upgrade(self) -> bool:
        return False  # uvicorn would print advice about it, for anybody who asks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MAX_CONNECTIONS:
            ours = (one for one in self.connections if isinstance(one, _Connection))
            waiting = {one._deadline.when(): one for one in ours if one._deadline}
            longest = waiting[min(waiting)]
            self.connections.discard(longest)  # the event loop tells us later, perhaps after the next has come
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline:
            self._deadline.cancel()


def engine_of_environment(schema: str | None = None, **options: Any) -> Engine:
    """Returns an engine with little patience, on the database that find_database() finds, which need not answer yet.

    Options as for Engine.
    """
    database = find_database(schema, patience=REQUEST_PATIENCE)
    try:
        migrate(database, laboratory=is_embedded())
    except errors.DatabaseAway as away:
        log_event("database_away", error=str(away))
    return Engine(database, **options)


def _explain_errors(app: FastAPI) -> None:
    """Answers every error with a status and a sentence, never with a traceback."""

    def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"detail": errors.printable(detail)}, status, headers)

    @app.exception_handler(errors.AgentFlowError)
    def known(_: Request, error: errors.AgentFlowError) -> JSONResponse:
        return problem(next((status for kind, status in STATUS_OF.items() if isinstance(error, kind)), 500), str(error))

    @app.exception_handler(RequestValidationError)
    def unusable(_: Request, error: RequestValidationError) -> JSONResponse:
        said = [f"{'.'.join(map(str, e['loc']))[:200]}: {e['msg'][:300]}" for e in error.errors()[:5]]
        return problem(
            422, f"The request cannot be used ({'; '.join(said)}). Nothing was changed; /docs shows what is expected."
        )

    @app.exception_handler(AnyHTTPException)
    def refused(request: Request, error: AnyHTTPException) -> JSONResponse:
        if error.status_code == 400:  # the body was no JSON that Python can read: bad UTF-8, too deep, too many digits
            return problem(422, "The body cannot be read as JSON. Nothing was changed.")
        if error.status_code == 404 and error.detail == "Not Found":
            return problem(404, f"There is nothing at {request.url.path:.200}; /docs shows what there is.")
        if error.status_code == 405:
            detail = f"{request.method} is not possible at {request.url.path:.200}; /docs shows what is."
            return problem(405, detail, {"Allow": ", ".join(_methods(app, request))})
        return problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    def unexpected(_: Request, error: Exception) -> JSONResponse:
        return problem(
            500,
            f"AgentFlow failed ({type(error).__name__}); its log has the details. Check what happened before you try again.",
        )


def _methods(app: FastAPI, request: Request) -> list[str]:
    """What is possible at this path, whichever route does it."""
    here = (route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for route in here for method in getattr(route, "methods", None) or ()})


def _add_documentation(app: FastAPI) -> None:
    """`/docs` is Swagger UI from files that are installed here; the browser asks nobody else."""
    app.mount("/docs/files", StaticFiles(directory=str(files("fastapi_offline") / "static")), name="documentation")

    @app.get("/docs", include_in_schema=False)
    def documentation() -> HTMLResponse:
        return HTMLResponse(_PAGE)

    @app.get("/docs/page.js", include_in_schema=False)
    def script() -> FileResponse:
        return FileResponse(str(files("agentflow") / "docs.js"), media_type="text/javascript")


def _unknown(workflow_id: str) -> errors.UnknownWorkflow:
    return errors.UnknownWorkflow(f"There is no workflow {workflow_id!r:.80}; GET /workflows shows them.")


def _add_workflows(app: FastAPI) -> None:
    @app.post(
        "/workflows", status_code=201, responses={200: {"model": answers.WorkflowAnswer}, **_refusals(409, *_WRITING)}
    )
    def create_workflow(engine: AppEngine, new: answers.NewWorkflow, response: Response) -> answers.WorkflowAnswer:
        """The workflow exists: 201 if this request made it, 200 if it was there with the same request."""
        if reason := why_unusable(new.name, new.request):
            raise HTTPException(422, f"{reason} Nothing was changed.")
        row = engine.create_workflow(new.request, name=new.name, workflow_id=new.id)
        response.status_code = 201 if row["created"] else 200
        return answers.WorkflowAnswer.model_validate(row)

    @app.get("/workflows", responses=_refusals(422))
    def list_workflows(
        engine: AppEngine,
        status: answers.Status | None = None,
        prefix: Annotated[str, Query(max_length=MAX_ID, description="How the id begins, literally")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        offset: Annotated[int, Query(ge=0, le=2**40)] = 0,
    ) -> list[answers.Summary]:
        """A page of workflows, the newest first."""
        check_name("prefix", prefix or "-")
        rows = engine.list_workflows(status=status, prefix=prefix, limit=limit, offset=offset)
        return [answers.Summary.model_validate(row) for row in rows]

    @app.get("/workflows/{workflow_id}", responses=_refusals(404, 422))
    def get_workflow(engine: AppEngine, workflow_id: Id) -> answers.WorkflowAnswer:
        """One workflow: state, classification, plan, result, lease, token, steps."""
        row = engine.get_workflow(workflow_id)
        if row is None:
            raise _unknown(workflow_id)
        return answers.WorkflowAnswer.model_validate(row)

    @app.get("/workflows/{workflow_id}/history", responses=_refusals(404, 422))
    def history(
        engine: AppEngine,
        workflow_id: Id,
        after: Annotated[int, Query(ge=0, le=2**40, description="The last `n` of the page before")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    ) -> list[answers.EntryAnswer]:
        """A page of what happened to one workflow, in order; the world's entries stand among the engine's."""
        page = engine.history(workflow_id, after=after, limit=limit)
        if not page and not engine.history(workflow_id, limit=1):
            raise _unknown(workflow_id)
        return [answers.EntryAnswer.model_validate(entry) for entry in page]

    @app.post("/workflows/{workflow_id}/events/{name}", responses=_refusals(404, 409, *_WRITING))
    def deliver_event(
        engine: AppEngine,
        workflow_id: Id,
        name: Annotated[str, Path(min_length=1, max_length=3 * MAX_EVENT_NAME), AfterValidator(spelled)],
        payload: Annotated[Any, Body(description="Any JSON value; no body is null")] = None,
    ) -> answers.Delivered:
        """The workflow has the event, and runs on if it waited for it. The first payload of a name stays."""
        engine.deliver_event(workflow_id, name, payload)
        return answers.Delivered(workflow_id=workflow_id, event=name)

    @app.post("/workflows/{workflow_id}/cancel", responses=_refusals(404, 409, *_WRITING))
    def cancel_workflow(engine: AppEngine, workflow_id: Id) -> answers.WorkflowAnswer:
        """The workflow is cancelled, unless it ended before."""
        engine.cancel_workflow(workflow_id)
        return get_workflow(engine, workflow_id)

    @app.post("/workflows/{workflow_id}/requeue", responses=_refusals(404, 409, *_WRITING))
    def requeue_workflow(engine: AppEngine, workflow_id: Id) -> answers.WorkflowAnswer:
        """A failed workflow can run again."""
        engine.requeue_workflow(workflow_id)
        return get_workflow(engine, workflow_id)


def _add_operations(app: FastAPI) -> None:
    @app.get("/health", responses={503: {"model": answers.Health}, 403: _refusals()[403]})
    def health(engine: AnyEngine, response: Response) -> answers.Health:
        """The database was asked, and has the tables; anybody may know that, and no more."""
        try:
            engine.database.check()
            engine.runnable([])
        except errors.AgentFlowError as error:
            log_event("not_healthy", error=str(error))
            response.status_code = 503
            return answers.Health(status="down")
        return answers.Health(status="up")

    @app.post("/workers/{worker_id}/run-once", responses=_refusals(*_WRITING))
    def run_once(
        engine: AppEngine, worker_id: Annotated[str, Path(min_length=1, max_length=3 * MAX_ID), AfterValidator(spelled)]
    ) -> answers.Worked:
        """One runnable workflow was carried as far as it goes, by a worker of this name inside the API."""
        return answers.Worked(worked=engine.run_once(worker_id))

    @app.get("/metrics", responses=_refusals())
    def metrics(engine: AppEngine) -> answers.Metrics:
        """The reliability figures."""
        return answers.Metrics.model_validate(engine.reliability_metrics())

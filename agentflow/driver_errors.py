"""What an error of the driver means: lost, not now, never, or not migrated. `database` tries again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg

from .errors import (
    AgentFlowError,
    DatabaseAway,
    DuplicateStep,
    OutcomeUnknown,
    PoolerInBetween,
    SchemaMissing,
    StatementRefused,
    TooLarge,
)  # fmt: skip
from .statements import command

MAKE_ROOM = "shut down unused notebooks, or ask for a higher max_connections, and try again."


def first_line(error: BaseException) -> str:
    """The first line of what the driver said."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


# A refused connection has no sqlstate, only the server's words, and a pooler's.
_FULL = ("too many clients", "connection slots are reserved", "too many connections", "no more connections allowed")


def is_full(error: BaseException | None) -> bool:
    """Whether the server answers, and gives no connection because all that it has are in use."""
    return isinstance(error, psycopg.OperationalError) and any(words in str(error) for words in _FULL)


# The client's words, which are English wherever it runs, and the server's before it serves. Anything else is a refusal.
_AWAY = (
    "Connection refused", "No such file", "timeout", "timed out", "unreachable", "No route", "closed the connection", "reset by",
    "starting up", "shutting down", "recovery", "not yet accepting", "not accepting",
)  # fmt: skip


def _is_silence(said: str) -> bool:
    """Whether the words mean that. What somebody named, such as an option or its value, may hold them, too."""
    return any(words in re.sub(r"""(["']).*?\1""", "", said) for words in _AWAY)


def unconnected(error: psycopg.Error, where: str) -> DatabaseAway:
    """Our error for a connection that could not be made."""
    said = first_line(error)
    if is_full(error):
        return DatabaseAway(f"PostgreSQL at {where} has no free connection ({said}). Nothing was sent; {MAKE_ROOM}")
    of_each_host = [line for line in str(error).splitlines() if line.startswith("- ")] or [said]
    asked = isinstance(error, psycopg.OperationalError)
    refused = next((one for one in of_each_host if not (asked and _is_silence(one))), None)
    if not refused:
        return DatabaseAway(
            f"PostgreSQL at {where} does not answer ({said}). Nothing was sent; start it (`agentflow doctor` shows which one "
            "is used), and try again."
        )
    return DatabaseAway(
        f"The connection to PostgreSQL at {where} was refused ({refused}). Nothing was sent; correct DATABASE_URL, or ask who "
        "runs that server. What the address does not say is not read from PG* variables; a password may stand in ~/.pgpass."
    )


_POOLED = psycopg.errors.InvalidSqlStatementName | psycopg.errors.DuplicatePreparedStatement


def _has_old_plan(error: BaseException) -> bool:
    """Whether the table was changed under a prepared statement: another connection prepares it anew."""
    return isinstance(error, psycopg.errors.FeatureNotSupported) and "cached plan" in str(error)


def is_spent(connection: psycopg.Connection[Any], error: BaseException) -> bool:
    """Whether another connection may do better: this one is lost, in the middle of something, read-only, or forgetful.

    A session keeps the default that it began with, and an old primary its address.
    """
    if connection.closed or isinstance(error, psycopg.errors.ReadOnlySqlTransaction | _POOLED) or _has_old_plan(error):
        return True
    return connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE


_NOT_MIGRATED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.InsufficientPrivilege,
)
_ONCE = ("steps_pkey", "action_intents_pkey")  # any other unique index is somebody else's, and says nothing about a run
_TRANSIENT = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)


def named(name: str, params: Mapping[str, Any] | None) -> str:
    """What a statement is called in a message: its name, with the subject and the workflow if it has them."""
    subject, workflow = ((params or {}).get(one) for one in ("p_subject", "p_workflow"))
    return name + f" {subject!r:.80}" * bool(subject) + f" of workflow {workflow!r:.80}" * bool(workflow)


def translate(
    error: psycopg.Error, connection: psycopg.Connection[Any], name: str, *, where: str, schema: str
) -> AgentFlowError:
    """Our error for the driver's. Never by the sqlstate alone: a broken connection has none."""
    said = first_line(error)
    if connection.closed or connection.broken:
        return OutcomeUnknown(
            f"{name}: the connection to {where} was lost ({said}); it may have been committed, or may still be. Issue "
            "it again; its guard makes that safe."
        )
    if isinstance(error, psycopg.errors.ProgramLimitExceeded):
        return TooLarge(
            f"{name}: PostgreSQL cannot store that much in one row ({said}). Nothing was changed; send less, or store it "
            "elsewhere."
        )
    if _is_an_operators(error):
        return _refused(error, name)
    in_use = isinstance(error, psycopg.errors.DependentObjectsStillExist)  # by what somebody else made
    if (isinstance(error, _TRANSIENT) and not in_use) or _has_old_plan(error):
        return DatabaseAway(
            f"{name}: {where} cannot do this now ({said}). Nothing was changed; it will be tried again."
        )
    if isinstance(error, _POOLED):
        return PoolerInBetween(
            f"{name}: {where} forgot or shares prepared statements ({said}): a pooler in transaction "
            "mode is in between. Nothing was changed; connect to PostgreSQL itself, or use the pooler's session mode."
        )
    if isinstance(error, psycopg.errors.UniqueViolation) and error.diag.constraint_name in _ONCE:
        return DuplicateStep("?", 0, said)
    if isinstance(error, _NOT_MIGRATED):
        return SchemaMissing(
            f"{name}: schema {schema!r} at {where} is not migrated, or may not be used ({said}). Run "
            f"{command('migrate', schema)}."
        )
    return _refused(error, name)


def _is_an_operators(error: psycopg.Error) -> bool:
    """Whether it comes out of a function or a policy, and we have none. With whatever sqlstate, that is no outage."""
    return " function " in (error.diag.context or "") or error.diag.source_function == "ExecWithCheckOptions"


def _refused(error: psycopg.Error, name: str) -> AgentFlowError:
    return StatementRefused(
        f"{name}: PostgreSQL refused the statement ({type(error).__name__}: {first_line(error)}). Nothing was changed; fix "
        "what it names, or run `agentflow doctor`."
    )

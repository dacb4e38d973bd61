"""Rules that an operator may put on the engine's tables, each of which refuses some write; gone when the block is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentflow import Engine

RAISES = "RAISE EXCEPTION 'the auditor says no'"


@contextmanager
def refusing(engine: Engine, table: str, when: str = "true", body: str = RAISES) -> Iterator[None]:
    """While this is open, a trigger runs `body` (PL/pgSQL) before a row of the table is written of which `when` holds."""
    schema = f'"{engine.database.schema}"'
    condition = f"IF (TG_OP = 'INSERT' OR TG_OP = 'UPDATE') AND ({when}) THEN {body}; END IF; RETURN NEW;"
    function = f"CREATE FUNCTION {schema}.say_no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {condition} END$$"
    trigger = f"BEFORE INSERT OR UPDATE ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION {schema}.say_no()"
    with ruling(engine, f"{function}; CREATE TRIGGER say_no {trigger}", f"DROP FUNCTION {schema}.say_no() CASCADE"):
        yield


@contextmanager
def ruling(engine: Engine, made: str, unmade: str) -> Iterator[None]:
    """What `made` makes is there while this is open; `{s}` in both is the engine's schema."""
    schema = f'"{engine.database.schema}"'
    with engine.database.session() as session:
        session.execute(made.replace("{s}", schema).encode())
        try:
            yield
        finally:
            session.execute(unmade.replace("{s}", schema).encode())

"""Migrations: from any older schema, or none, to today's. Alembic keeps the version in the schema itself."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import create_engine, text

from ..database import Database
from ..errors import SchemaTooNew
from ..schema import WORLD_SUFFIX

LABORATORY = "agentflow laboratory"


def migrate(database: Database, *, laboratory: bool = False) -> None:
    """The schema has today's tables, whoever else migrates it at the same time; again changes nothing.

    `laboratory=True` marks it as a laboratory's, whose rows may be reset. Raises SchemaTooNew if a newer AgentFlow
    migrated it, DatabaseAway if PostgreSQL does not answer.
    """
    database.check()
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    engine = create_engine(database.url)
    try:
        with engine.begin() as connection:
            # One migrator at a time in this database: the others wait here and then find nothing to do.
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('agentflow.migrate'))"))
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}"'))
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}{WORLD_SUFFIX}"'))
            if laboratory:
                connection.execute(text(f"COMMENT ON SCHEMA \"{database.schema}\" IS '{LABORATORY}'"))
            config.attributes.update(connection=connection, schema=database.schema)
            command.upgrade(config, "head")
    except CommandError as error:
        raise SchemaTooNew(
            f"schema {database.schema!r} at {database.where} was migrated by a newer AgentFlow ({error}). Nothing was "
            "changed; install that version, or use another schema."
        ) from error
    finally:
        engine.dispose()

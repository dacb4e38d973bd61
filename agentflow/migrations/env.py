"""Alembic's entry: runs the versions on the connection and schema that `migrate` hands over."""

from alembic import context
from sqlalchemy.sql import quoted_name

from agentflow.schema import metadata
from agentflow.statements import WORLD_SUFFIX

attributes = context.config.attributes
schema = quoted_name(attributes["schema"], quote=True)  # so that migrate() finds the name in what was run
world = quoted_name(attributes["schema"] + WORLD_SUFFIX, quote=True)
connection = attributes["connection"].execution_options(schema_translate_map={None: schema, "world": world})
context.configure(
    connection=connection, target_metadata=metadata, version_table="schema_version", version_table_schema=schema
)
with context.begin_transaction():
    context.run_migrations()

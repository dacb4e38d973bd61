"""Loaded with `-p` before any plugin: jsonschema does without rfc3987_syntax, which compiles a grammar of IRIs when imported.

nbval imports nbformat, which imports jsonschema, so every process of every test run would pay 1.2 CPU seconds for a check
of the format `iri` that no schema here uses. jsonschema treats the package as optional.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

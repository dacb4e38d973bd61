"""What a notebook imports from `agentflow.lab`: every name exists, is loaded when it is asked for, and is not a package's."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agentflow.lab
from agentflow.lab import checks, course

FACE = Path(agentflow.lab.__file__)
PACKAGES = {path.parent.name for path in FACE.parent.glob("*/__init__.py")}


def in_a_new_process(program: str) -> list[str]:
    """The words that the program prints."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


def declared_for_type_checkers() -> dict[str, str]:
    """Each name that the face declares, and the module that it comes from."""
    (block,) = (node for node in ast.parse(FACE.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_the_face_lists_each_name_once_and_no_other() -> None:
    assert sorted(agentflow.lab.__all__) == sorted(declared_for_type_checkers())
    assert dir(agentflow.lab) == sorted(agentflow.lab.__all__)


def test_each_name_of_the_face_is_the_one_of_its_module() -> None:
    lines = ["import agentflow.lab"]
    for name, home in declared_for_type_checkers().items():
        lines += [f"first = agentflow.lab.{name}", f"from agentflow.lab.{home} import {name}" if home else ""]
        lines += [f"assert first is {name}, '{name}'" if home else ""]
    assert in_a_new_process("\n".join([*lines, "print('same')"])) == ["same"]


def test_a_name_that_the_face_does_not_have_is_an_error() -> None:
    with pytest.raises(ImportError, match="nothing"):
        from agentflow.lab import nothing  # noqa: F401
    with pytest.raises(AttributeError, match=r"'agentflow\.lab\.course' has no attribute 'nothing'"):
        _ = course.nothing  # type: ignore[attr-defined]


def test_no_name_but_the_courses_is_also_a_packages() -> None:
    """Python gives the package once anybody has imported it; `course` is the package, whoever comes first."""
    assert PACKAGES & set(agentflow.lab.__all__) == {"course"}
    assert (course.__name__, checks.__name__) == ("agentflow.lab.course", "agentflow.lab.course.checks")
    assert dir(course) == ["progress", "stage"]
    assert callable(course.stage) and callable(course.progress) and callable(checks.completed)


def test_the_face_itself_imports_no_library_beyond_what_the_engine_imports() -> None:
    names = "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    engine = in_a_new_process(f"import sys, agentflow; {names}")
    assert set(in_a_new_process(f"import sys, agentflow.lab; {names}")) == set(engine)
    loaded = in_a_new_process("import sys, agentflow.lab; print(*sys.modules)")
    assert not [name for name in loaded if name.startswith("agentflow.lab.")]

"""Nobody outside `engines/` asks which engine it is: a third one is a folder there and a line in its registry."""

from __future__ import annotations

import ast
from pathlib import Path

import partitune
from partitune.engines.registry import ENGINES

PACKAGE = Path(partitune.__file__).parent
#: Where an engine's name is a name and decides nothing, or is that of a table which somebody else measured.
NAMED = {
    "spec/serving.py": "the engine of a search space that names none",
    "spec/runner.py": "the load generator of a runner that names none",
    "costs/measured/operations.py": "aiconfigurator's tables carry the names of the engines they were measured under",
    "fidelity/layers.py": "published set-ups, each of an engine and release",
    "fidelity/servers.py": "published set-ups, each of an engine and release",
}


def names_in(path: Path) -> list[str]:
    """Lines of `path` that name an engine, or import from its folder."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in ENGINES:
            lines.append(f"line {node.lineno}: {node.value!r}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[2:3] in [[name] for name in ENGINES]:
            lines.append(f"line {node.lineno}: from {node.module}")
    return lines


def test_no_module_outside_engines_knows_one_by_name() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE).as_posix()
        if not relative.startswith("engines/") and (lines := names_in(path)):
            found[relative] = lines
    assert {name: lines for name, lines in found.items() if name not in NAMED} == {}
    assert set(NAMED) == set(found), "a reason stands here for a module that needs none"

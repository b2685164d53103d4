"""What one engine does differently is known in `engines/` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
CLASSES = {type(engine).__name__ for engine in ENGINES.values()}


def asks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where code asks which engine it has: (line, what it does)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            tuple(f"partitune.engines.{name}" for name in ENGINES)
        ):
            yield node.lineno, f"imports {node.module}"
        if isinstance(node, ast.Compare):
            sides = [leaf for side in (node.left, *node.comparators) for leaf in constants(side)]
            yield from ((node.lineno, f"compares with {side!r}") for side in sides if side in ENGINES)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            named = [leaf for argument in node.args for leaf in constants(argument) if leaf in ENGINES]
            yield from ((node.lineno, f"asks for a name that begins with {name!r}") for name in named)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            named = [leaf.id for leaf in ast.walk(node.args[1]) if isinstance(leaf, ast.Name) and leaf.id in CLASSES]
            yield from ((node.lineno, f"asks for a {name}") for name in named)
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name) and node.cls.id in CLASSES:
            yield node.lineno, f"matches a {node.cls.id}"
        if isinstance(node, ast.MatchValue):
            yield from ((node.value.lineno, f"matches {leaf!r}") for leaf in constants(node.value) if leaf in ENGINES)


def constants(node: ast.AST) -> list[str]:
    """The texts in a side of a comparison, those of a tuple or set too."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def names_in(path: Path) -> list[str]:
    """Lines of `path` that name an engine, or import from its folder."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in ENGINES:
            lines.append(f"line {node.lineno}: {node.value!r}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[2:3] in [[name] for name in ENGINES]:
            lines.append(f"line {node.lineno}: from {node.module}")
    return lines


def test_nobody_outside_engines_asks_which_engine_it_is() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "engines"
        for line, what in asks(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_no_module_outside_engines_knows_one_by_name() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE).as_posix()
        if not relative.startswith("engines/") and (lines := names_in(path)):
            found[relative] = lines
    assert {name: lines for name, lines in found.items() if name not in NAMED} == {}
    assert set(NAMED) == set(found), "a reason stands here for a module that needs none"


def test_one_engine_knows_nothing_of_another() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {what}"
        for name in ENGINES
        for path in sorted((PACKAGE / "engines" / name).rglob("*.py"))
        for line, what in asks(ast.parse(path.read_text()))
        if any(f"engines.{other}" in what or repr(other) in what for other in ENGINES if other != name)
    ]
    assert not found, "\n".join(found)


def test_the_test_sees_what_it_is_for() -> None:
    code = """
from partitune.engines.vllm.engine import Vllm
if engine.name == "vllm" or "sglang" != name or name in ("sglang", "other") or name.startswith("vllm"): pass
if isinstance(engine, (Vllm, int)): pass
match engine:
    case Vllm(): pass
    case "sglang": pass
names = {"vllm": 1}
"""
    assert [line for line, _ in sorted(asks(ast.parse(code)))] == [2, 3, 3, 3, 3, 4, 6, 7]

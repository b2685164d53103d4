"""What one engine does differently is known in `engines/` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import partitune
from partitune.engines.registry import ENGINES

PACKAGE = Path(partitune.__file__).parent
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


def test_nobody_outside_engines_asks_which_engine_it_is() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "engines"
        for line, what in asks(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


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

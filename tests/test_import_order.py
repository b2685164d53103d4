"""Imports go one way: a module imports only from rooms above its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import partitune

#: The architecture: a room may use those before it. `docs/architecture.md` says what each is for.
ROOMS = (
    "version",
    "errors",
    "partition",
    "candidate",
    "spec",
    "models",
    "hardware",
    "costs",
    "simulation",
    "engines",
    "planning",
    "export",
    "execution",
    "analysis",
    "store",
    "search",
    "fidelity",
    "report",
    "api",
    "jobs",
    "commands",
    "cli",
    "__main__",
)
PACKAGE = Path(partitune.__file__).parent
#: All that `report` may import to run; what works a value out may be named for the type checker alone.
DRAWN = ("errors", "partition", "candidate", "spec", "analysis", "report")
#: What may not even be loaded by what `report` imports: what simulates, plans, measures, stores or searches.
WORKING = ("costs", "simulation", "engines", "planning", "execution", "store", "search", "fidelity")


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; the order test cannot see it"
            names = [node.module or ""] if node.module != "partitune" else [f"partitune.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("partitune.")}
    return rooms


def modules() -> list[Path]:
    return [
        path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("__init__.py", "_catalog")
    ]


def test_every_room_is_in_the_order() -> None:
    rooms = {room_of(path.relative_to(PACKAGE).parts) for path in modules()}
    assert rooms <= set(ROOMS), f"rooms without a place in the order: {sorted(rooms - set(ROOMS))}"


def test_a_module_imports_only_from_its_own_room_or_one_above() -> None:
    wrong = []
    for path in modules():
        relative = path.relative_to(PACKAGE)
        room = room_of(relative.parts)
        below = [other for other in imported_rooms(path) if ROOMS.index(other) > ROOMS.index(room)]
        wrong += [f"{relative} imports {other}, which stands below {room}" for other in below]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_back_not_even_inside_a_room() -> None:
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    imported: dict[str, set[str]] = {}
    for name, path in names.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        targets = {(f"{node.module}.{alias.name}", node.module or "") for node in nodes for alias in node.names}
        imported[name] = {whole if whole in names else module for whole, module in targets} & names.keys() - {name}
    order = tuple(TopologicalSorter(imported).static_order())  # raises CycleError, which names the circle
    assert order.index("partitune.cli") > order.index("partitune.search.loop") > order.index("partitune.errors")


def test_few_files_stand_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_report_draws_values_it_is_given() -> None:
    paths = sorted(PACKAGE.glob("report/*.py"))
    for path in paths:
        tree = ast.parse(path.read_text())
        typed = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        tree.body = [node for node in tree.body if node not in typed]
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        wrong = [name for name in modules if name.startswith("partitune.") and name.split(".")[1] not in DRAWN]
        assert not wrong, f"{path.name} imports {wrong}"
    names = ", ".join(f"partitune.report.{path.stem}" for path in paths if path.stem != "__init__")
    code = f"import sys, {names}; print(*sorted(name for name in sys.modules if name.startswith('partitune.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "partitune.report.study" in loaded
    loaded.remove("partitune.search")  # a docstring that `import partitune` itself loads; its modules are not
    assert not [name for name in loaded if name.split(".")[1] in WORKING]


def test_no_module_is_longer_than_400_lines_and_none_is_a_grab_bag() -> None:
    for path in modules():
        assert len(path.read_text().splitlines()) <= 400, f"{path.name}: split it by idea"
        assert path.stem not in {"utils", "helpers", "common", "misc", "manager"}


def test_no_engine_is_ever_imported() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] in {"vllm", "sglang", "torch"}], path

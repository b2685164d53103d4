"""The public Python API: its names, what importing it costs, and that its page runs."""

from __future__ import annotations

import ast
import csv
import doctest
import inspect
import io
import subprocess
import sys
from pathlib import Path

import pytest

import partitune
from partitune import errors
from partitune.search.stored_study import summary_of
from partitune.store import Store

PAGE = Path(__file__).parent.parent / "docs" / "python-api.md"
FUNCTIONS = ("explain", "export", "layouts", "load_search_space", "load_study", "search", "solve")
ERRORS = [kind.__name__ for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]


def python(code: str) -> list[str]:
    """What a new Python prints for `code`, in words."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A study of six trials."""
    name = str(tmp_path_factory.mktemp("study") / "results.db")
    partitune.search(partitune.load_search_space("tiny", {"budget.trials": 6}), database=name)
    return name


def test_the_public_names_are_these() -> None:
    assert partitune.__all__ == sorted(partitune.__all__)
    assert set(partitune.__all__) == {*FUNCTIONS, *ERRORS, "Candidate", "Result", "__version__"}
    assert all(hasattr(partitune, name) for name in partitune.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_returns_and_raises(name: str) -> None:
    function = getattr(partitune, name)
    text = inspect.getdoc(function) or ""
    assert all(f"\n{part}:\n" in text for part in ("Args", "Returns", "Raises"))
    assert all(f"    {parameter}: " in text for parameter in inspect.signature(function).parameters)
    assert f"`{name}(" in PAGE.read_text()


def test_importing_loads_nothing_heavy() -> None:
    heavy = ("numpy", "optuna", "ray", "pydantic", "sqlalchemy", "yaml", "partitune.spec", "partitune.planning")
    assert python(f"import sys, partitune; print(*(name for name in {heavy} if name in sys.modules))") == []

    for room in ("search", "export"):  # loaded by `import partitune` for their names' sake
        tree = ast.parse((Path(partitune.__file__).parent / room / "__init__.py").read_text())
        assert [type(node) for node in tree.body] == [ast.Expr], f"{room}/__init__.py is a docstring and nothing more"


@pytest.mark.parametrize(
    "first", ["import partitune.search.loop", "from partitune.export.deploy import export", "import partitune.cli"]
)
def test_the_functions_keep_their_names_whatever_module_is_imported_first(first: str) -> None:
    code = f"{first}; import partitune, partitune.search.study, partitune.export.env_file"
    assert python(f"{code}; print(*(type(getattr(partitune, name)).__name__ for name in {FUNCTIONS}))") == (
        ["function"] * len(FUNCTIONS)
    )


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert tried > 10
    assert failed == 0


def test_the_rows_of_a_study_are_those_of_its_csv(database: str) -> None:
    rows = partitune.load_study("tiny", database)
    with Store.open(database, read_only=True) as store:
        table = list(csv.DictReader(io.StringIO(summary_of(store, "tiny").to_csv())))
    assert [list(row) for row in table] == [list(row) for row in rows]
    for row, cells in zip(rows, table, strict=True):
        assert cells == {
            **{name: "" if value is None else str(value) for name, value in row.items()},
            "on_front": str(int(row["on_front"])),
        }


def test_pandas_reads_the_rows(database: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(partitune.load_study(database=database))
    assert list(frame["trial"]) == list(range(6))
    assert frame["on_front"].dtype == bool
    assert frame["output_throughput_tok_s"].dtype == float


def test_what_a_person_gets_wrong_is_one_of_our_errors(tmp_path: Path) -> None:
    space = partitune.load_search_space("tiny")
    with pytest.raises(partitune.SpecError, match=r"changes: budget\.tials: unknown key, did you mean trials"):
        partitune.load_search_space("tiny", {"budget.tials": 6})
    with pytest.raises(partitune.SpecError, match="sums to 35, the model has 36 layers"):
        partitune.explain(space, [18, 17])
    with pytest.raises(partitune.StoreError, match=r"none\.db: no such file"):
        partitune.load_study(database=tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []

"""Which release of an engine takes which quantisation of a checkpoint, read in the releases' own tables.

    pip download --no-deps --only-binary :all: --dest WHEELS vllm==0.33.0    # once per release
    python -m benchmarks.read_quantisations vllm WHEELS/*.whl

Arguments as of `benchmarks.read_registries`. Writes `partitune/engines/ENGINE/quantisations.csv`: a line for every run
of releases that have a method.

Decision: the table is parsed and not imported; both engines keep it in `layers/quantization/__init__.py`, vLLM as a
list of names, SGLang as dicts and, by platform, updates of them, of which those for NVIDIA GPUs count.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

from partitune.engines.versions import Version, parse_version

_ENGINES = Path(__file__).parent.parent / "partitune" / "engines"
_FILES = {
    "vllm": "vllm/model_executor/layers/quantization/__init__.py",
    "sglang": "sglang/srt/layers/quantization/__init__.py",
}
_TABLES = ("QuantizationMethods", "QUANTIZATION_METHODS", "BASE_QUANTIZATION_METHODS", "VLLM_QUANTIZATION_METHODS")
_NVIDIA = "is_cuda"


def methods(source: str) -> frozenset[str]:
    """The methods that the text of such a file names for NVIDIA GPUs."""
    return frozenset(_methods(ast.parse(source).body))


def _methods(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.If) and _NVIDIA in ast.unparse(statement.test):
            yield from _methods(statement.body)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id in _TABLES for target in targets) and statement.value:
                yield from _names(statement.value)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in _TABLES and call.args:
                yield from _names(call.args[0])


def _names(table: ast.expr) -> Iterator[str]:
    if isinstance(table, ast.Subscript):  # Literal[...]
        table = table.slice
    entries = table.keys if isinstance(table, ast.Dict) else getattr(table, "elts", [])
    for entry in entries:
        if isinstance(entry, ast.Constant) and isinstance(entry.value, str):
            yield entry.value


def runs(releases: Mapping[Version, frozenset[str]]) -> Iterator[tuple[str, str, str]]:
    """Name, last release before and first release behind, of every run of releases that have it.

    Between two releases that were read and differ it is not known when it came, so both borders are of those that lack
    it; empty where the oldest or the newest has it.
    """
    ordered = sorted(releases)
    for name in sorted(frozenset[str]().union(*releases.values())):
        lacking = ["", *(str(release) for release in ordered if name not in releases[release]), ""]
        holders = [release for release in ordered if name in releases[release]]
        for after, until in pairwise(lacking):
            low = parse_version(after) if after else None
            high = parse_version(until) if until else None
            if any((low is None or low < held) and (high is None or held < high) for held in holders):
                yield name, after, until


def write_table(engine: str, file: str, column: str, command: str, releases: Mapping[Version, frozenset[str]]) -> str:
    """Write the runs of `releases` into the folder of an engine.

    Args:
        engine: the folder.
        file: of the table.
        column: what its names are of.
        command: of benchmarks/ that read them.
        releases: release -> the names that it has.

    Returns:
        A sentence on what was written.
    """
    table = io.StringIO()
    table.write(f"# Releases {min(releases)} to {max(releases)}: by benchmarks/{command}.py, never by hand\n")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow((column, "after", "until"))
    writer.writerows(runs(releases))
    (_ENGINES / engine / file).write_text(table.getvalue(), "utf-8")
    return f"{len(releases)} releases of {engine}, the newest with {len(releases[max(releases)])} in {file}"


def main() -> None:
    """Read every release and write the engine's table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engine", choices=sorted(_FILES))
    parser.add_argument("wheels", nargs="+", type=Path)
    arguments = parser.parse_args()
    file = _FILES[arguments.engine]
    releases: dict[Version, frozenset[str]] = {}
    for wheel in arguments.wheels:
        text = (wheel / file).read_text("utf-8") if wheel.is_dir() else ZipFile(wheel).read(file).decode()
        releases[parse_version(wheel.name.split("-")[1])] = methods(text)
    print(write_table(arguments.engine, "quantisations.csv", "method", "read_quantisations", releases))


if __name__ == "__main__":
    main()

"""Which long flags `vllm serve` has in which release, read in the releases' own sources.

    pip download --no-deps --only-binary :all: --dest WHEELS vllm==0.33.0    # once per release
    python -m benchmarks.read_flags WHEELS/*.whl

Arguments as of `benchmarks.read_registries`. Writes `partitune/engines/vllm/flags.csv`: a line for every run of
releases that have a flag, as `benchmarks.read_quantisations` does of methods.

Decision: parsed and not run, because a help text needs PyTorch. A flag is an argument of `add_argument` that begins
with two dashes, or a field of the front end's arguments, which become flags by their names.

Source: vLLM 0.33.0 `engine/arg_utils.py` (add_cli_args), `entrypoints/common/cli_args.py` (FrontendArgs,
make_arg_parser), which earlier releases have in `entrypoints/launchers` or `entrypoints/openai`.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from benchmarks.read_quantisations import write_table
from partitune.engines.versions import Version, parse_version

_ENGINE_ARGUMENTS = "vllm/engine/arg_utils.py"
_FRONT_ENDS = tuple(f"vllm/entrypoints/{folder}/cli_args.py" for folder in ("common", "launchers", "openai"))
_FIELDS_OF = ("BaseFrontendArgs", "FrontendArgs")


def flags(source: str) -> frozenset[str]:
    """The flags that the text of such a file adds, in snake case."""
    return frozenset(_flags(ast.parse(source)))


def _flags(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value).removeprefix("--").replace("-", "_")
        elif isinstance(node, ast.ClassDef) and node.name in _FIELDS_OF:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id


def _texts(release: Path) -> Iterator[str]:
    """The files of one release that add flags: a wheel, or a folder in which one was unpacked."""
    if release.is_dir():
        front_end = next(file for file in _FRONT_ENDS if (release / file).exists())
        yield from ((release / file).read_text("utf-8") for file in (_ENGINE_ARGUMENTS, front_end))
        return
    with ZipFile(release) as wheel:
        front_end = next(file for file in _FRONT_ENDS if file in wheel.namelist())
        yield from (wheel.read(file).decode() for file in (_ENGINE_ARGUMENTS, front_end))


def main() -> None:
    """Read every release and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="+", type=Path)
    releases: dict[Version, frozenset[str]] = {}
    for release in parser.parse_args().releases:
        found = frozenset[str]().union(*map(flags, _texts(release)))
        releases[parse_version(release.name.split("-")[1])] = found
    print(write_table("vllm", "flags.csv", "flag", "read_flags", releases))


if __name__ == "__main__":
    main()

"""Which release of an engine has which architecture, and with a pipeline, read in the releases' own registries.

    pip download --no-deps --only-binary :all: --dest WHEELS vllm==0.33.0    # once per release
    python -m benchmarks.read_registries vllm WHEELS/*.whl

Every argument is a wheel, or a folder named like `vllm-0.33.0` in which one was unpacked. Writes
`partitune/engines/ENGINE/architectures.csv`: a line for every run of releases that agree about an architecture, with
the first of them, the first behind them, and whether they have it with a pipeline.

Decision: the sources are parsed and not imported, because no machine has the dependencies of sixty releases. What
counts is what the engine itself asks of a class at start: vLLM whether `SupportsPP` is among its ancestors, SGLang
whether its `forward` takes `pp_proxy_tensors`; and in both, that the class does not raise that it has no pipeline. A
class that several platforms have is read as NVIDIA's. The back end for models of the Transformers package raises for
those that have no plan for a pipeline there, which no release of an engine can tell: it counts as having one.

Source: vLLM 0.33.0 `model_executor/models/{registry,interfaces}.py`; SGLang 0.5.23 `srt/models/registry.py`,
`srt/model_executor/model_runner.py` (support_pp).
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from zipfile import ZipFile

from partitune.engines.versions import Version, parse_version

_ENGINES = Path(__file__).parent.parent / "partitune" / "engines"
_REFUSAL = re.compile(r"pipeline.parallel\w*\W.*not\b.*\bsupport|not\b.*\bsupport.*\bpipeline.parallel", re.I | re.S)
#: Of vLLM's registry: what is served by nobody, or by plug-ins, or not by itself.
_OTHER_TABLES = (
    "_PREVIOUSLY_SUPPORTED_MODELS",
    "_OOT_SUPPORTED_MODELS",
    "_SPECULATIVE_DECODING_MODELS",
    "_VLLM_MODELS",
)
_OTHER_PLATFORMS = ("amd", "cpu", "rocm", "tpu", "xpu")


@dataclass(frozen=True)
class ModelClass:
    """What a registry asks of a class."""

    bases: tuple[str, ...]
    forward: frozenset[str] | None  # the parameters of its own `forward`
    refuses: bool  # raises, or asserts that there is no pipeline


@dataclass
class Module:
    """What one source file defines, and where it has the rest from."""

    classes: dict[str, ModelClass] = field(default_factory=dict)
    imports: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)  # name -> (level, module, its name)
    tables: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)  # of vLLM's registry
    entries: tuple[str, ...] = ()  # of SGLang's `EntryClass`


@cache
def parse(text: str) -> Module:
    """One file; the same text in many releases is parsed once."""
    module, refusals = Module(), bool(_REFUSAL.search(text))
    for node in _statements(ast.parse(text).body):
        if isinstance(node, ast.ClassDef):
            module.classes.setdefault(node.name, _class(node, refusals))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names = module.imports.setdefault(alias.asname or alias.name, [])
                names.append((node.level, node.module or "", alias.name))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "EntryClass":
                items = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
                module.entries = tuple(item.id for item in items if isinstance(item, ast.Name))
            elif isinstance(target, ast.Name) and target.id.endswith("_MODELS") and isinstance(node.value, ast.Dict):
                module.tables[target.id] = dict(_registered(node.value))
    return module


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, with those under its conditions."""
    for statement in body:
        yield statement
        for branch in ("body", "orelse", "handlers"):
            if not isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _statements(getattr(statement, branch, ()))


def _class(node: ast.ClassDef, refusals: bool) -> ModelClass:
    bases = tuple(ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
    forward = None
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "forward":
            arguments = inner.args
            forward = frozenset(each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return ModelClass(bases, forward, refusals and any(map(_is_refusal, ast.walk(node))))


def _is_refusal(node: ast.AST) -> bool:
    if not isinstance(node, (ast.Raise, ast.Assert)):
        return False
    return bool(_REFUSAL.search("".join(str(c.value) for c in ast.walk(node) if isinstance(c, ast.Constant))))


def _registered(table: ast.Dict) -> Iterator[tuple[str, tuple[str, str]]]:
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
            where, name = (str(item.value) for item in value.elts[:2] if isinstance(item, ast.Constant))
            yield str(key.value), (where, name)


class Release:
    """The Python files of one release."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            self._files = {file.relative_to(path).as_posix(): file for file in path.rglob("*.py")}
            self._read: Callable[[str], str] = lambda name: self._files[name].read_text("utf-8-sig")
            self._names = frozenset(self._files)
        else:
            archive = ZipFile(path)
            self._names = frozenset(archive.namelist())
            self._read = lambda name: archive.read(name).decode("utf-8-sig")

    def modules_in(self, package: str) -> list[str]:
        """The modules that lie directly in a package."""
        folder = package.replace(".", "/") + "/"
        here = (name for name in self._names if name.startswith(folder) and name.endswith(".py"))
        return sorted(name[:-3].replace("/", ".") for name in here if "/" not in name[len(folder) :])

    def module(self, name: str) -> tuple[Module, bool] | None:
        """A module by its dotted name, and whether it is a package; None where this release has none."""
        path = name.replace(".", "/")
        for file, package in ((f"{path}.py", False), (f"{path}/__init__.py", True)):
            if file in self._names:
                return parse(self._read(file)), package
        return None

    def find(self, module: str, name: str) -> tuple[str, ModelClass] | None:
        """The class that `module` calls `name`, and the module that defines it."""
        return next(self._all(module, name, frozenset()), None)

    def _all(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Iterator[tuple[str, ModelClass]]:
        parsed = self.module(module)
        if parsed is None or (module, name) in seen:
            return
        if name in parsed[0].classes:
            of_backend = module.rpartition(".models.")[2].startswith("transformers")
            yield module, replace(parsed[0].classes[name], refuses=False) if of_backend else parsed[0].classes[name]
        for level, where, own in sorted(parsed[0].imports.get(name, []), key=_platform):
            yield from self._all(_absolute(module, parsed[1], level, where), own, seen | {(module, name)})

    def ancestors(self, module: str, name: str) -> Iterator[tuple[str, ModelClass]]:
        """A class and those it is derived from, nearest first, by name; those of other packages have no bases here."""
        if (resolved := self.find(module, name)) is None:
            yield name, ModelClass((), None, refuses=False)
            return
        yield name, resolved[1]
        for base in resolved[1].bases:
            if base != name:
                yield from self.ancestors(resolved[0], base)


def _platform(imported: tuple[int, str, str]) -> int:
    parts = imported[1].split(".")
    return 0 if "nvidia" in parts else 2 if any(part in _OTHER_PLATFORMS for part in parts) else 1


def _absolute(module: str, package: bool, level: int, where: str) -> str:
    if level == 0:
        return where
    parts = module.split(".")
    base = parts[: len(parts) - level + (1 if package else 0)]
    return ".".join([*base, *([where] if where else [])])


def vllm_architectures(release: Release) -> dict[str, bool]:
    """Architecture -> whether vLLM serves it with a pipeline."""
    models = "vllm.model_executor.models"
    registry = release.module(f"{models}.registry")
    tables = {**registry[0].tables} if registry else {}
    supported: dict[str, bool] = {}
    for title, table in tables.items():
        if title in _OTHER_TABLES:
            continue
        for architecture, (where, name) in table.items():
            ancestors = list(release.ancestors(where if "." in where else f"{models}.{where}", name))
            pipeline = any(ancestor == "SupportsPP" for ancestor, _ in ancestors)
            supported[architecture] = pipeline and not any(parent.refuses for _, parent in ancestors)
            if len(ancestors) == 1 and ancestors[0][1].forward is None and not ancestors[0][1].bases:
                print(f"  {architecture}: {name} not found in {where}", file=sys.stderr)
    return supported


def sglang_architectures(release: Release) -> dict[str, bool]:
    """Architecture -> whether SGLang serves it with a pipeline."""
    supported: dict[str, bool] = {}
    for module in release.modules_in("sglang.srt.models"):
        parsed = release.module(module)
        for name in parsed[0].entries if parsed else ():
            ancestors = list(release.ancestors(module, name))
            forward = next((parent.forward for _, parent in ancestors if parent.forward is not None), frozenset())
            supported[name] = "pp_proxy_tensors" in forward and not any(parent.refuses for _, parent in ancestors)
    return supported


_READERS: Mapping[str, Callable[[Release], dict[str, bool]]] = {
    "vllm": vllm_architectures,
    "sglang": sglang_architectures,
}


def runs(releases: Mapping[Version, Mapping[str, bool]]) -> Iterator[tuple[str, str, str, str]]:
    """Of each architecture the runs of releases that agree about it, oldest first: name, since, until, pipeline."""
    versions = sorted(releases)
    for name in sorted({name for architectures in releases.values() for name in architectures}, key=str.lower):
        for state, group in groupby(enumerate(versions), key=lambda item: releases[item[1]].get(name)):
            members = list(group)
            behind = members[-1][0] + 1
            if state is not None:
                until = str(versions[behind]) if behind < len(versions) else ""
                yield name, str(members[0][1]), until, "yes" if state else "no"


def main() -> None:
    """Read the releases that are named and write the engine's table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(_READERS))
    parser.add_argument("releases", nargs="+", type=Path, help="wheels, or folders named ENGINE-VERSION")
    arguments = parser.parse_args()
    releases: dict[Version, dict[str, bool]] = {}
    for path in arguments.releases:
        version = parse_version(path.name.split("-")[1])
        releases[version] = _READERS[arguments.engine](Release(path))
        print(f"{arguments.engine} {version}: {len(releases[version])} architectures", file=sys.stderr)
    target = _ENGINES / arguments.engine / "architectures.csv"
    with target.open("w", encoding="utf-8", newline="") as file:
        file.write(
            f"# Releases {min(releases)} to {max(releases)}: written by benchmarks/read_registries.py, never by hand\n"
        )
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("architecture", "since", "until", "pipeline"))
        writer.writerows(runs(releases))
    print(f"{target}: {min(releases)} to {max(releases)}", file=sys.stderr)


if __name__ == "__main__":
    main()

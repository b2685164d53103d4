"""What a release of vLLM does and has, as far as partitune has an opinion on it: by a wheel or by the project.

Decision: both are the same four things (schedules, KV plans, flags, architectures), so that a wheel can be held against
another wheel or against the recordings and tables here by one comparison (vllm_changes.py).
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.read_registries import Release, vllm_architectures
from benchmarks.record_vllm_schedules import allowed, drawn, read
from benchmarks.vllm_scenarios import KINDS
from benchmarks.vllm_wheel import Wheel
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.flags import VLLM_FLAGS

_PROJECT = Path(__file__).parent.parent
_DATA = _PROJECT / "tests" / "data"
_ARCHITECTURES = _PROJECT / "partitune" / "engines" / "vllm" / "architectures.csv"
_DRAWN = 3  # scenarios of a kind in a regime
#: Files that define flags, and whether the fields of their classes are flags.
_FLAG_FILES = (
    ("engine/arg_utils.py", False),
    ("entrypoints/cli/serve.py", False),
    ("entrypoints/**/cli_args.py", True),
)


@dataclass(frozen=True)
class Facts:
    """Schedules and plans go by the scenario: what was asked, with what came of it."""

    version: str
    source: str  # where from, in words
    schedules: Mapping[str, dict[str, Any]]
    plans: Mapping[str, dict[str, Any]]
    flags: frozenset[str]
    architectures: Mapping[str, bool]  # with a pipeline or not


def _scenario(record: dict[str, Any]) -> str:
    made = ("engine", "steps", "makespan", "stage_busy", "prefix_cache_queries", "prefix_cache_hits", "preemptions")
    return json.dumps({key: value for key, value in record.items() if key not in made}, sort_keys=True)


def _recorded() -> Iterator[dict[str, Any]]:
    for file in sorted(_DATA.glob("schedules_*vllm*.json*")):
        yield from read(file)


def _engine_version(record: dict[str, Any]) -> Version:
    return parse_version(record["engine"].removeprefix("vllm "))


def recordings_before(version: str) -> list[dict[str, Any]]:
    """The project's recordings of the newest release up to `version`, in the regimes that this starts in."""
    former = [record for record in _recorded() if _engine_version(record) <= parse_version(version)]
    newest = max((_engine_version(record) for record in former), default=None)
    regimes = allowed(version)
    return [record for record in former if _engine_version(record) == newest and record["regime"] in regimes]


def _plan_records() -> dict[str, dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for file in sorted(_DATA.glob("kv_capacity_*vllm*.json")):
        records += json.loads(file.read_text())
    return {f"{number} {record['model']} {record['partition']}": record for number, record in enumerate(records)}


def of_project(version: str) -> Facts:
    """What is held against a wheel of `version` where no other wheel is."""
    records = recordings_before(version)
    release = str(max(map(_engine_version, records), default=parse_version(version)))
    return Facts(
        version=release,
        source=f"what the project holds of {release}",
        schedules={_scenario(record): record for record in records},
        plans=_plan_records(),
        flags=frozenset(VLLM_FLAGS),
        architectures=_architectures(parse_version(version)),
    )


def _architectures(version: Version) -> dict[str, bool]:
    lines = (line for line in _ARCHITECTURES.read_text().splitlines() if not line.startswith("#"))
    rows = csv.DictReader(lines)
    return {
        row["architecture"]: row["pipeline"] == "yes"
        for row in rows
        if parse_version(row["since"]) <= version and (not row["until"] or version < parse_version(row["until"]))
    }


def of_wheel(root: Path, version: str) -> Facts:
    """What the wheel at `root` does. One process can read one wheel.

    Args:
        root: the folder of an unpacked wheel.
        version: the release in question; says which scenarios are recorded.
    """
    wheel = Wheel(root)
    from benchmarks.vllm_drive import EngineStands, recorded
    from benchmarks.vllm_kv_plans import planned

    schedules = {}
    for scenario in (*recordings_before(version), *drawn(list(KINDS), allowed(version), 0, _DRAWN)):
        try:
            schedules[_scenario(scenario)] = recorded(wheel, scenario)
        except EngineStands:
            schedules[_scenario(scenario)] = scenario | {"engine": f"vllm {wheel.version}", "steps": []}
    return Facts(
        version=wheel.version,
        source=f"vllm {wheel.version}",
        schedules=schedules,
        plans={name: record | planned(wheel, record) for name, record in _plan_records().items()},
        flags=_flags(root / "vllm"),
        architectures=vllm_architectures(Release(root)),
    )


def _flags(package: Path) -> frozenset[str]:
    """The first name of each flag that is added to a parser, and the fields of the classes that are added whole."""
    found = set()
    for pattern, fields_too in _FLAG_FILES:
        for file in package.glob(pattern):
            tree = ast.parse(file.read_text())
            found |= {name for node in ast.walk(tree) if isinstance(node, ast.Call) for name in _added(node)}
            if fields_too:
                classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
                targets = (inner.target for node in classes for inner in node.body if isinstance(inner, ast.AnnAssign))
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def _added(call: ast.Call) -> list[str]:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
        return []
    names = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return [name[2:].replace("-", "_") for name in names if name.startswith("--")][:1]

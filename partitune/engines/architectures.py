"""Which releases of an engine have the class that a model's config names, and which have it with a pipeline.

Decision: read in the releases' own registries by benchmarks/read_registries.py and kept as the runs of releases that
agree, because a start under a release that does not know the class ends in an error after minutes, and a simulated
figure of it is a figure of nothing. A class that no registry has is told and not refused: engines learn new ones every
week, and plug-ins bring their own. Nor is one refused that a person hands to another package (`model_impl`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from partitune.engines.deployment import Deployment
from partitune.engines.release_table import ReleaseTable
from partitune.engines.versions import Version, parse_version

#: Values of the flag `model_impl`, which both engines have, under which a model comes from the engine's own registry.
_OWN_MODELS = ("auto", None)


class Run(NamedTuple):
    """Releases that agree about a class."""

    since: Version  # the first of them
    until: Version | None  # the first behind them; None: the newest that was read is one of them
    pipeline: bool  # whether it runs on several stages


class Registry(ReleaseTable):
    """The classes that the releases of one engine have."""

    table = "architectures.csv"

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """Class -> its runs, oldest first."""
        runs: dict[str, list[Run]] = {}
        for row in self.rows:
            until = parse_version(row["until"]) if row["until"] else None
            run = Run(parse_version(row["since"]), until, row["pipeline"] == "yes")
            runs.setdefault(row["architecture"], []).append(run)
        return runs

    def notes(self, model_class: str) -> tuple[str, ...]:
        """What is to be said of a class that no release has; nothing where the config names none."""
        if not model_class or model_class in self.runs:
            return ()
        oldest, newest = self.span
        note = (
            f"no release of {self._engine} from {oldest} to {newest} has the class {model_class}: nobody read whether "
            "it serves the model, and whether it does so as is simulated here"
        )
        return (note,)

    def faults(self, deployment: Deployment) -> Iterator[tuple[str, str, str]]:
        """Rule, message and source, where this release lacks the class, or has it without a pipeline.

        Before the oldest release that was read, only what that one lacks too is known to be missing.
        """
        model_class, version = deployment.architecture.architecture, parse_version(deployment.version)
        runs, (oldest, newest) = self.runs.get(model_class, ()), self.span
        if not runs or deployment.flags.get("model_impl") not in _OWN_MODELS:
            return
        release, source = max(version, oldest), f"{self._file} of {oldest} to {newest}"
        here = next((run for run in runs if run.since <= release and (run.until is None or release < run.until)), None)
        if here is None:
            message = f"{self._engine} {version} has no {model_class}, {_when(runs, release)}"
            yield "architecture-missing", f"{message}; model_impl: transformers takes the class of that package", source
        elif deployment.stages > 1 and not here.pipeline:
            pipelines = _when([run for run in runs if run.pipeline], release)
            message = f"{self._engine} {version} has {model_class} without pipeline parallelism, {pipelines}"
            yield "no-pipeline-support", f"{message}; use parallel.pp: 1", source


def _when(runs: Sequence[Run], version: Version) -> str:
    """In which releases it is otherwise: the next that will have it, else the last that had it."""
    if later := [run.since for run in runs if run.since > version]:
        return f"which comes with {later[0]}"
    if earlier := [run.until for run in runs if run.until is not None]:
        return f"which left with {earlier[-1]}"
    return "as every release that was read"

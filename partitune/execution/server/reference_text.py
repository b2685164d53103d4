"""The text of one greedy request, held against that of the default partition: it catches silent corruption.

Decision: moving layers between stages must not change what the model says. The default partition runs first in every
study, and its text is kept on the machine that measures; a candidate that says something else is invalid however fast
it is. Only scheduling and memory flags may differ from those of the reference: what changes the arithmetic (types,
kernels, parallel sizes) has a reference of its own, or none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from partitune.candidate import Candidate, FlagValue
from partitune.errors import BenchmarkFailed
from partitune.planning.problem import Problem


def check_text(
    folder: Path, problem: Problem, candidate: Candidate, arguments: Mapping[str, FlagValue], text: str
) -> None:
    """Keep the text of a default partition; hold that of any other against it, if there is one.

    Args:
        folder: of the texts, one file each.
        problem: that was measured.
        candidate: what ran.
        arguments: flags of the site.
        text: what the server said.

    Raises:
        BenchmarkFailed: they differ.
    """
    file = folder / f"{_key(problem, candidate, arguments)}.txt"
    if candidate.partition == problem.default_partition:
        folder.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
        return
    with suppress(FileNotFoundError):
        reference = file.read_text(encoding="utf-8")
        if text != reference:
            raise BenchmarkFailed(
                f"the server says {text!r} where the default partition said {reference!r} to the same greedy request: "
                "the output is corrupt, or not deterministic (then set reference_text: false in the runner)"
            )


def _key(problem: Problem, candidate: Candidate, arguments: Mapping[str, FlagValue]) -> str:
    flags = {**problem.baseline, **candidate.settings, **arguments}
    harmless = problem.engine.launch.scheduling_flags
    kept = sorted((name, value) for name, value in flags.items() if name not in harmless)
    about = [problem.model, problem.engine.name, problem.version, problem.runner, problem.placement.tp, kept]
    return hashlib.sha256(json.dumps([*about, problem.stages]).encode()).hexdigest()[:16]

"""`partitune explain`: one candidate, stage by stage."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from partitune.commands.command import Command, add_json_argument, add_mode_argument, answer, tell
from partitune.commands.space_arguments import (
    add_advice_arguments,
    add_partition_argument,
    add_space_arguments,
    space_of,
    words_of,
)
from partitune.errors import SpecError

if TYPE_CHECKING:  # for annotations only: it costs a good part of a second
    from partitune.candidate import Candidate
    from partitune.planning.problem import Problem


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    add_partition_argument(parser)
    parser.add_argument("--part", metavar="NAME", help="of a mix, under this load alone (needed for a trace)")
    parser.add_argument("--trace", metavar="FILE", help="write the simulated pipeline as a Chrome trace, for Perfetto")
    parser.add_argument(
        "--trace-dir", metavar="FOLDER", help="the same as one file a rank, named as those of a profiled engine"
    )
    add_mode_argument(parser, "those traces")
    add_advice_arguments(parser)
    add_json_argument(parser)


def _explain(arguments: argparse.Namespace) -> int:
    from partitune.analysis.explanation import candidate_of, explain_beside
    from partitune.analysis.references import references
    from partitune.execution.simulator_driver import SimulatorDriver
    from partitune.planning.resolve import resolve
    from partitune.report.explained import print_explained

    drawn = next((f"--{name}" for name in ("trace", "trace-dir") if getattr(arguments, name.replace("-", "_"))), None)
    problem = _problem(resolve(space_of(arguments)), arguments.part, drawn)
    tell(*SimulatorDriver(problem).prepare())
    wanted = candidate_of(problem, arguments.partition, arguments.flags)
    explained = explain_beside(problem, wanted, advice_s=arguments.advice_seconds, words=words_of(arguments))
    starts = problem.start({}).flags
    starting = {name: starts[name] for name in wanted.flags if name in starts}
    results = [None if other is None else other.result for other in (explained.same_flags, explained.default)]
    compared = references(wanted, results[0], results[1], starting)
    runs = explained.result.measurement is not None
    if drawn is not None and runs:
        _draw(arguments, problem, wanted)
    answer(arguments, explained.to_json, lambda console: print_explained(console, explained, compared))
    return 0 if runs else 1


def _draw(arguments: argparse.Namespace, problem: Problem, candidate: Candidate) -> None:
    from partitune.analysis.traced_pipeline import traces
    from partitune.report.trace_file import write_trace, write_traces

    drawn = traces(problem, candidate)
    if arguments.trace is not None:
        write_trace(Path(arguments.trace), drawn.of_all(), arguments.mode)
        tell(f"partitune: wrote {arguments.trace}; it opens at https://ui.perfetto.dev")
    if arguments.trace_dir is not None:
        files = drawn.by_rank()
        write_traces(Path(arguments.trace_dir), files, arguments.mode)
        tell(f"partitune: wrote {len(files)} traces to {arguments.trace_dir}")


def _problem(problem: Problem, part: str | None, drawn: str | None) -> Problem:
    """Under the load asked for."""
    try:
        if part is not None:
            return problem.part(part)
    except SpecError as error:
        raise SpecError(f"--part: {error}") from error
    if drawn is not None and len(problem.parts) > 1:
        names = ", ".join(load.name for load in problem.mix.loads)
        raise SpecError(f"{drawn}: found a mix, whose loads run one after the other; allowed: with --part ({names})")
    return problem


COMMAND = Command("explain", "one candidate stage by stage, beside the engine's default", _explain, _add_arguments)

"""The command line: parse, call one function, print, turn errors into one message and an exit code.

Decision: argparse, and every heavy import inside its handler, so that `--help` is instant. Data goes to stdout,
everything else to stderr. Exit codes: 0 done, 1 the answer is no (a candidate cannot run, nothing can be deployed),
2 the input is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from partitune import __version__
from partitune.errors import PartituneError, SpecError
from partitune.jobs.arguments import add_commands as add_job_commands
from partitune.upkeep.arguments import add_commands as add_upkeep_commands

if TYPE_CHECKING:  # for annotations only: these imports cost most of a second
    from partitune.report.summary import Summary
    from partitune.search import Progress
    from partitune.spec.search_space import SearchSpace
    from partitune.store import Store

DEFAULT_DATABASE = "results.db"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if sys.stdout is None:  # closed by the caller (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - stays open as stdout does
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without our characters shows `?` in their place
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)  # ended by a supervisor as cleanly as by Ctrl-C
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)
    try:
        code: int = arguments.handler(arguments)
        sys.stdout.flush()
    except PartituneError as error:
        print(f"partitune: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "; every finished trial is stored, the same command goes on" if arguments.handler is _search else ""
        print(f"partitune: interrupted{hint}", file=sys.stderr)
        return 130
    except OSError as error:
        # Nothing may be written at exit either. A pipe whose reader left (`| head`) is no fault.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"partitune: {error.strerror}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return 2
    return code


def _stop(*_: object) -> None:
    """Answer a signal at once: ending workers can take a while."""
    os.write(2, b"partitune: stopping\n")
    raise KeyboardInterrupt


def _search(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.progress import Watcher
    from partitune.report.terminal import print_summary
    from partitune.spec.overrides import with_settings
    from partitune.spec.runner import load_runner
    from partitune.study import Plan, objectives_of, run, stored_search

    stored, runner = (None, "simulator") if arguments.resume is None else stored_search(arguments.db, arguments.resume)
    spec = _spec(arguments, stored)
    spec = with_settings(spec, {f"engine.flags.{name}": value for name, value in arguments.knobs.items()})
    study = arguments.resume or (spec.name if arguments.study is None else arguments.study)
    where = (arguments.db, study, arguments.pool, arguments.ray_address, arguments.extend)
    plan = Plan(spec, load_runner(arguments.runner or runner), *where)
    found: list[bool] = []

    def finished(store: Store, progress: Progress) -> None:
        summary = _summary(store, study)
        found.append(summary.best is not None)
        if arguments.json:
            print(json.dumps({**summary.to_json(), "stopped": progress.stopped}), flush=True)
        else:
            print_summary(stdout(), summary, progress.stopped)

    with Watcher(objectives_of(spec), spec.budget.trials, quiet=arguments.quiet) as watcher:
        run(plan, watcher, finished)
    return 0 if all(found) else 1


def _explain(arguments: argparse.Namespace) -> int:
    from partitune.partition.vector import parse_partition
    from partitune.problem import pose
    from partitune.report.explain import candidate_of, explain, trace
    from partitune.report.output import stdout
    from partitune.report.terminal import print_explained

    problem = pose(_spec(arguments))
    default = candidate_of(problem, None, {})
    given = arguments.partition
    partition = None if given is None else parse_partition(given, stages=problem.stages, layers=problem.layers)
    wanted = candidate_of(problem, partition, arguments.knobs)
    one = explain(problem, wanted)
    other = explain(problem, default) if wanted != default else None
    if arguments.trace is not None and one.result.measurement is not None:
        _write_trace(arguments.trace, trace(problem, wanted))
    if arguments.json:
        print(json.dumps({**one.to_json(), "default": other and other.to_json()}))
    else:
        print_explained(stdout(), one, other)
    return 0 if one.result.measurement is not None else 1


def _write_trace(name: str, trace: dict[str, object]) -> None:
    from pathlib import Path

    from partitune.report.trace_file import write_trace

    write_trace(Path(name), trace)
    print(f"partitune: wrote {name}; it opens at https://ui.perfetto.dev", file=sys.stderr)


def _export(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from partitune.export.deploy import export
    from partitune.problem import pose
    from partitune.report.summary import remarks, trial_to_export
    from partitune.spec.search_space import SearchSpace

    with _reading(arguments) as store:
        study = _study_name(store, arguments.study)
        summary = _summary(store, study)
        spec = SearchSpace.from_mapping(store.study(study).spec, source=f"{store.label}: study {study}")
    trial = trial_to_export(summary, arguments.trial)
    done = export(pose(spec), trial.result.candidate, Path(arguments.output), remarks(summary, trial))
    for remark in remarks(summary, trial):
        print(remark)
    print(f"wrote {done.env_file} and {done.config}; both were read back. Start with:")
    print("\n".join(f"  {command}" for command in done.commands))
    for warning in done.warnings:
        print(f"partitune: warning: {warning}", file=sys.stderr)
    return 0


def _pareto(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.terminal import print_pareto

    with _reading(arguments) as store:
        summary = _summary(store, _study_name(store, arguments.study))
    if arguments.json:
        print(json.dumps(summary.pareto_json()))
    elif arguments.csv:
        sys.stdout.write(summary.to_csv())
    else:
        print_pareto(stdout(), summary)
    return 0


def _studies(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.terminal import studies_table

    with _reading(arguments) as store:
        studies = [(study, store.counts(study.name)) for study in store.studies()]
    if arguments.json:
        print(json.dumps([{"study": s.name, "state": s.state, "trials": c, "engine": s.engine} for s, c in studies]))
    else:
        stdout().draw(studies_table(studies))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.summary import trial_detail
    from partitune.report.terminal import print_summary, print_trial

    with _reading(arguments) as store:
        summary = _summary(store, _study_name(store, arguments.study))
        trial = None if arguments.trial is None else store.trial(summary.study, summary.trial(arguments.trial).number)
    if trial is None:
        print(json.dumps(summary.to_json())) if arguments.json else print_summary(stdout(), summary, every=True)
        return 0
    print(json.dumps(trial_detail(trial))) if arguments.json else print_trial(stdout(), trial)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from partitune.catalog import Kind, list_catalog
    from partitune.model.published import catalog_names
    from partitune.report.output import stdout
    from partitune.report.terminal import catalog_table

    entries = [entry for kind in Kind for entry in list_catalog(kind)]
    if arguments.json:
        files = [{"name": e.name, "kind": e.kind.value, "origin": e.origin, "file": e.label} for e in entries]
        print(json.dumps({"files": files, "models": list(catalog_names())}))
    else:
        stdout().draw(catalog_table(entries))
        print(f"models: {', '.join(catalog_names())}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from partitune.report.verification import verify_kv, verify_schedules

    check = {"schedules": verify_schedules, "kv": verify_kv}[arguments.what]
    found = check(arguments.files)
    for one in found:
        print(one.text)
    return 0 if all(one.agrees for one in found) else 1


def _spec(arguments: argparse.Namespace, stored: SearchSpace | None = None) -> SearchSpace:
    """The search space that the arguments mean; also puts the knobs of `--set` into `arguments.knobs`."""
    from partitune.spec.overrides import from_flags, parse_settings, with_settings
    from partitune.spec.search_space import load_search_space

    arguments.knobs, keys = parse_settings(arguments.set)
    given = {name: getattr(arguments, name) for name in _NO_YAML if getattr(arguments, name) is not None}
    if arguments.space is not None and given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise SpecError(f"{names}: found beside the search space {arguments.space}; allowed: one of the two forms")
    if stored is not None and (given or arguments.space is not None or arguments.study is not None):
        raise SpecError("--resume: found beside a search space or --study; allowed: --resume STUDY, and what changes")
    named = from_flags(given) if stored is None and arguments.space is None else stored
    spec = load_search_space(arguments.space) if named is None else named
    spec = with_settings(spec, keys)
    for flag, key, value in (
        ("--trials", "budget.trials", arguments.trials),
        ("--seed", "random_seed", arguments.seed),
    ):
        if value is not None:
            spec = with_settings(spec, {key: value}, flag)
    return spec


def _summary(store: Store, study: str) -> Summary:
    from partitune.report.summary import summarise
    from partitune.spec.search_space import SearchSpace
    from partitune.study import objectives_of

    spec = SearchSpace.from_mapping(store.study(study).spec, source=f"{store.label}: study {study}")
    return summarise(store, study, objectives_of(spec))


def _reading(arguments: argparse.Namespace) -> Store:
    from partitune.store import Store

    return Store.open(arguments.db, read_only=True)


def _study_name(store: Store, given: str | None) -> str:
    """The study a command means: the one named, else the one created last."""
    if given is not None:
        return store.study(given).name
    studies = store.studies()
    if not studies:
        raise SpecError(f"{store.label}: holds no study yet; run partitune search first")
    return studies[-1].name


#: Arguments of the form without YAML: name -> (type, metavar, help).
_NO_YAML: dict[str, tuple[Any, str, str]] = {
    "model": (str, "MODEL", "a catalog name, or the path of a config.json"),
    "gpu": (str, "GPU", "GPU type, such as H200"),
    "nodes": (int, "N", "machines"),
    "gpus_per_node": (int, "N", "GPUs in each machine"),
    "tp": (int, "N", "tensor-parallel size: GPUs per stage"),
    "pp": (int, "N", "pipeline stages"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="partitune",
        description="Finds the pipeline partition and scheduler flags of an LLM server, and shows why.",
        epilog="Start with: partitune search tiny",
    )
    parser.add_argument("--version", action="version", version=f"partitune {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = _command(commands, "search", _search, "try candidates and record them; resumes a study of the same name")
    _space_arguments(command)
    command.add_argument("--study", help="name of the study (default: that of the search space)")
    command.add_argument("--resume", metavar="STUDY", help="go on with a study of the database, in place of SPACE")
    command.add_argument("--extend", action="store_true", help="go on though its knobs, seeds or objectives changed")
    command.add_argument("--runner", help="how candidates are measured (default: simulator, or as the study was begun)")
    command.add_argument(
        "--pool", choices=("ray", "local"), default="ray", help="where they run: Ray workers, or this process"
    )
    command.add_argument("--ray-address", metavar="HOST:PORT", help="a running Ray cluster (default: one of its own)")
    command.add_argument("--quiet", action="store_true", help="no progress on stderr")
    _output_arguments(command, "end with one JSON object on stdout")

    command = _command(commands, "explain", _explain, "one candidate stage by stage, beside the engine's default")
    _space_arguments(command)
    command.add_argument("--partition", metavar="V", help="layers per stage, such as 11,11,12 (default: the engine's)")
    command.add_argument("--trace", metavar="FILE", help="write the simulated pipeline as a Chrome trace, for Perfetto")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")

    command = _command(commands, "pareto", _pareto, "the Pareto front of a study")
    _study_arguments(command)
    command.add_argument("--csv", action="store_true", help="all trials as CSV")

    command = _command(commands, "studies", _studies, "the studies of a database")
    _output_arguments(command, "JSON on stdout")

    command = _command(commands, "show", _show, "a study, or one trial of it")
    _study_arguments(command)
    command.add_argument("--trial", type=int, metavar="N", help="only this trial, with its stages")

    command = _command(commands, "export", _export, "write a trial as an env-file and an engine config")
    command.add_argument("study", nargs="?", help="study (default: the one created last)")
    command.add_argument(
        "--trial", type=int, metavar="N", help="this trial (default: the best, or the engine's default)"
    )
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the env-file, such as deploy.env")
    command.add_argument("--db", default=DEFAULT_DATABASE, help=f"results database (default: {DEFAULT_DATABASE})")

    command = _command(commands, "list", _list, "search spaces, runners and models that a name can mean")
    command.add_argument("--json", action="store_true", help="JSON on stdout")

    command = _command(commands, "verify", _verify, "hold the simulator against recordings of the real engine")
    command.add_argument("what", choices=("schedules", "kv"), help="recorded schedules, or recorded KV plans")
    command.add_argument("files", nargs="+", metavar="FILE", help="a JSON file of recordings")
    add_upkeep_commands(commands, DEFAULT_DATABASE)
    add_job_commands(commands)
    return parser


def _command(commands: Any, name: str, handler: Any, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    command.set_defaults(handler=handler)
    return command


def _space_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("space", nargs="?", metavar="SPACE", help="a search space by name or path")
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="an engine flag (explain), or a key of the search space such as engine.version; repeatable",
    )  # fmt: skip
    command.add_argument("--trials", type=int, metavar="N", help="budget of trials, over the space's own")
    command.add_argument("--seed", type=int, metavar="N", help="random seed, over the space's own")
    group = command.add_argument_group("without a search space file")
    for name, (kind, metavar, text) in _NO_YAML.items():
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar=metavar, help=text)


def _study_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", nargs="?", help="study (default: the one created last)")
    _output_arguments(command, "JSON on stdout")


def _output_arguments(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--db", default=DEFAULT_DATABASE, help=f"results database (default: {DEFAULT_DATABASE})")
    command.add_argument("--json", action="store_true", help=text)

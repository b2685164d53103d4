"""Whether a runner, a search space and the machines fit: asked once, before the first candidate is started.

Decision: every flag and every variable has one author. The search space says what a candidate means, the runner what
holds for the site, the launcher what joins the processes; whoever says what another has said is refused, with his line,
as one of the two would silently win.

A flag that the installed release does not have, an engine that is not there, a partition that lies in a raylet's
environment: each would fail every single trial, after minutes and with a message of its own. So they are looked for on
the machines themselves, which are cleaned first, and end the study before it begins.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from partitune.engines.installed_flags import read_help
from partitune.engines.launch import LoadRun, Target, TraceReading
from partitune.errors import LaunchFailed, SpecError
from partitune.execution.processes.masking import keep_secret
from partitune.execution.processes.node import Node, NodeSource, run_to_end
from partitune.execution.ray.raylets import check_raylets
from partitune.execution.server.load_generators import unable
from partitune.execution.server.server_commands import ServerCommands
from partitune.execution.server.setup import LoadCommands, Setup
from partitune.hardware.gpus import Gpu
from partitune.planning.candidate_layouts import possible
from partitune.planning.problem import Problem
from partitune.spec.catalog import readable_path
from partitune.spec.metrics import CLIENT_METRICS
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.spec.workload import SingleLoad, TraceWorkload, single_loads

#: Seconds that an engine may take to list its flags: it imports everything first.
HELP_LIMIT_S = 600.0
_HELP = "help"


def setup_for(problem: Problem, space: SearchSpace, runner: Runner) -> Setup:
    """How candidates of `problem` are measured by `runner`.

    Raises:
        SpecError: the two do not fit, with the file's line.
    """
    flags = {**space.knobs.flags, **space.knobs.env}
    metrics = (*(objective.metric for objective in space.objectives), *space.slo)
    setup = Setup(
        problem,
        runner,
        tuple(_absolute(load, space) for load in single_loads(space.workload)),
        _forwarded(runner),
        {name: knob if isinstance(knob, tuple) else (knob.low, knob.high) for name, knob in flags.items()},
        tuple(dict.fromkeys(metric for metric in metrics if metric in CLIENT_METRICS)),
        () if space.parallel.layouts is None else tuple(layout.name for layout in possible(problem, space)),
    )
    _check_names(space, setup)
    if runner.starts_server:
        _check_nodes(setup)
        if refusal := setup.server.ranks.refusal:
            raise space.error("parallel", "dp", text=refusal)
    for load in setup.loads:
        _check_load(load)
    return setup


def _absolute(load: SingleLoad, space: SearchSpace) -> SingleLoad:
    if isinstance(load, TraceWorkload):
        return load.model_copy(update={"file": str(readable_path(space.absolute(load.file)))})
    return load


def _forwarded(runner: Runner) -> dict[str, str]:
    """Values of the variables that a runner takes from here. Raises SpecError for those that are not set."""
    missing = [name for name in runner.forward_env if name not in os.environ]
    if missing:
        raise runner.error("forward_env", text=f"found {', '.join(missing)}, not set here; allowed: variables that are")
    forwarded = {name: os.environ[name] for name in runner.forward_env}
    keep_secret(forwarded.values())
    return forwarded


def _check_names(space: SearchSpace, setup: Setup) -> None:
    """Every flag and variable has one author: the search space, the runner, or the launcher."""
    runner, engine = setup.runner, setup.server.engine
    by_key = setup.problem.engine.written_by_partitune
    of_space: dict[str, tuple[str, ...]] = dict.fromkeys(space.engine.flags, ("engine", "flags"))
    of_space |= dict.fromkeys(space.knobs.flags, ("knobs",))
    of_space |= dict.fromkeys(space.engine.env, ("engine", "env"))
    of_space |= dict.fromkeys(space.knobs.env, ("knobs", "env"))
    written = engine.own_flags | {*engine.removed}
    if runner.starts_server:
        written |= {load.tool.key_variable for load in setup.loads}
    reported = engine.layer_report.written if engine.layer_report and runner.layer_report else frozenset()
    for name, path in of_space.items():
        if name in written | reported:
            raise space.error(
                *path, name, text="partitune writes it when it starts the engine; allowed: to leave it out"
            )
        if name in engine.placing_flags and path == ("knobs",):
            raise space.error(*path, name, text="decides on which nodes what is started; allowed: in engine.flags")
    sections = (("arguments", runner.arguments), ("env", runner.env), ("forward_env", runner.forward_env))
    for section, names in sections:
        for name in names:
            if name in by_key:
                raise runner.error(section, name, text=f"partitune writes it; allowed: {by_key[name]}")
            if name in written | {flag for flag in reported if not flag.isupper()}:  # variables are joined with ours
                text = "partitune writes it itself, or removes it everywhere; allowed: to leave it out"
                raise runner.error(section, name, text=text)
            if name in of_space:
                where = ".".join(of_space[name])
                raise runner.error(
                    section, name, text=f"the search space {space.name} says it under {where}; allowed: once"
                )


def _check_nodes(setup: Setup) -> None:
    runner, problem, by_ray = setup.runner, setup.problem, setup.server.ranks.by_ray
    if runner.driver != problem.engine.name:
        raise runner.error("driver", text=f"found {runner.driver}, and the search space is for {problem.engine.name}")
    hosts, local = runner.nodes.hosts, runner.nodes.start == "local"
    count = setup.reservation.nodes
    if hosts and len(hosts) != count:
        per = "one a node of the cluster, as layouts vary" if setup.layouts else "one a process group"
        raise runner.error("nodes", "hosts", text=f"found {len(hosts)} addresses; allowed: {count}, {per}")
    if local and count > 1 and not hosts:
        text = (
            f"found local, and the search space stands on {count} nodes; allowed: ray (or {count} addresses of this "
            "machine under nodes.hosts)"
        )
        raise runner.error("nodes", "start", text=text)
    if not local and by_ray:
        flags, engine = " and ".join(setup.server.engine.placing_flags), setup.server.engine.title
        text = (
            f"found ray beside {flags} ray, where {engine} has Ray place its workers; allowed: local, with partitune "
            "on a node of the Ray cluster"
        )
        raise runner.error("nodes", "start", text=text)
    if not local and not hosts and len(set(_gpus_of_nodes(setup))) > 1:
        text = "missing; allowed: the addresses of the nodes in the order of the stages, as their GPUs differ"
        raise runner.error("nodes", "hosts", text=text)
    if local and isinstance(runner.workers, int) and runner.workers > 1:
        raise runner.error("workers", text="found more than one on this machine; allowed: 1, or nodes.start: ray")


def _gpus_of_nodes(setup: Setup) -> list[frozenset[Gpu]]:
    problem, cluster = setup.problem, setup.problem.cluster
    placement = problem.placement
    firsts = zip(placement.nodes, placement.gpus, strict=True)
    pairs = [(first + further, gpu) for first, gpu in firsts for further in range(placement.tensor_nodes)]
    if setup.layouts and len(cluster.gpus) == cluster.total:
        pairs = [(index // cluster.gpus_per_node, gpu) for index, gpu in enumerate(cluster.gpus)]
    return [frozenset(gpu for at, gpu in pairs if at == node) for node in sorted({at for at, _ in pairs})]


def _check_load(load: LoadCommands) -> None:
    runner, tool, problem = load.server.runner, load.tool, load.problem
    if reason := unable(tool, load.load, problem.goodput):
        of_part = f" (load {problem.load.name} of the mix)" if problem.load.name else ""
        raise runner.error("benchmark", "tool", text=f"{tool.name} {reason}{of_part}")
    if isinstance(load.load, TraceWorkload) and (needs := tool.trace):
        _check_trace(Path(load.load.file), load.load.requests, needs, tool.title)
        if needs.argument not in runner.benchmark.arguments:
            text = f"has no {needs.argument}; allowed: {needs.meaning}"
            raise runner.error("benchmark", "arguments", text=text)
    target = Target("http://", problem.engine.name, "", "", {})
    own = set(tool.words(load.load, target, LoadRun(1, 1, "")))
    for name in runner.benchmark.arguments:
        if "--" + name.replace("_", "-") in own:
            text = "partitune writes it, from the search space; allowed: further flags of the tool"
            raise runner.error("benchmark", "arguments", name, text=text)


def _check_trace(path: Path, most: int | None, needs: TraceReading, title: str) -> None:
    """Every line that is sent has what the tool makes a request of, and asks for nothing that it leaves out."""
    with path.open(encoding="utf-8") as file:
        numbered = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        for number, line in islice(numbered, most):
            row = json.loads(line)
            place = f"{path}:{number}"
            if missing := [name for name in needs.fields if name not in row]:
                raise SpecError(f"{place}: a request has no {missing[0]}, and `{title}` makes the prompts from it")
            if unsent := [name for name in needs.others if row.get(name) is not None]:
                why = needs.others[unsent[0]]
                raise SpecError(f"{place}: has {unsent[0]}, and `{title}` would send another load: {why}")


def prepare(setup: Setup, source: NodeSource) -> tuple[str, ...]:
    """Run every check; what the janitor ended.

    Raises:
        SpecError: the engine is not there, does not know a flag, or a variable on a node would win over ours.
        ClusterError: an engine that has Ray place its ranks would wait for GPUs that are not there.
        NodeLost: a machine went away meanwhile.
    """
    with source.nodes(setup.reservation.nodes) as nodes:
        cleaned = tuple(line for node in dict.fromkeys(nodes) for line in node.clean())
        if setup.server.ranks.by_ray:
            check_raylets(setup)
        _check_flags(setup, nodes[0])
    return cleaned


def all_commands(setup: Setup) -> Iterator[tuple[str, ...]]:
    """Words behind the program in which every flag has each of its values once, whatever the engine's rules say.

    And those of every layout that can be placed, with the first values.
    """

    def commands(server: ServerCommands, turn: int) -> list[tuple[str, ...]]:
        return server.words_of_flags(
            {name: values[min(turn, len(values) - 1)] for name, values in setup.searched.items()}
        )

    for turn in range(max(map(len, setup.searched.values()), default=1)):
        yield from commands(setup.server, turn)
    for name in setup.layouts:
        with suppress(SpecError):
            yield from commands(replace(setup, problem=setup.problem.on(name)).server, 0)


def _check_flags(setup: Setup, node: Node) -> None:
    process = setup.server.process(node.host, (*setup.server.program, *setup.server.engine.help_words))
    command, deadline_s = " ".join(process.argv), time.monotonic() + HELP_LIMIT_S

    def failed(how: str, log: str) -> SpecError:
        lines = [line.strip() for line in log.splitlines() if line.strip()][-3:]
        words = f"said: {' | '.join(lines)}" if lines else "said nothing"
        return setup.runner.error("engine_command", text=f"{command} on {node.host} {how} and {words}")

    def look() -> None:
        if time.monotonic() > deadline_s:
            raise failed(f"did not end in {HELP_LIMIT_S:.0f} s", node.log(_HELP))

    try:
        code, text = run_to_end(node, _HELP, f"preflight-{uuid.uuid4().hex[:12]}", process, 5.0, look)
    except LaunchFailed as error:
        raise setup.runner.error(
            "engine_command", text=f"{command} cannot be started on {node.host}: {error}"
        ) from error
    if code != 0:
        raise failed(f"ended with exit code {code}", text)
    read_help(text, f"{command} on {node.host}").check(all_commands(setup), setup.problem.engine.name)

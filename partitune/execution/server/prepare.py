"""What is checked once, before the first candidate is started: the machines are clean, and the engine knows the flags.

Decision: a flag that the installed release does not have, an engine that is not there, a partition that lies in a
raylet's environment: each would fail every single trial, after minutes and with a message of its own. So they are found
here, on the machines themselves, and end the study before it begins.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from partitune.engines.installed_flags import read_help
from partitune.errors import LaunchFailed, SpecError
from partitune.execution.processes.node import Node, NodeSource, run_to_end
from partitune.execution.ray.raylets import check_raylets
from partitune.execution.server.server_commands import ServerCommands
from partitune.execution.server.setup import Setup

#: Seconds that an engine may take to list its flags: it imports everything first.
HELP_LIMIT_S = 600.0
_HELP = "help"


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

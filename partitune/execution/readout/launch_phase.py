"""How far an engine's start has come, from its own log.

Decision: five phases, each with a time limit of its own, because "did not start in an hour" tells nobody whether nodes
did not find one another, weights were slow or graphs were captured. A phase begins with a line that the engine writes;
phases never go back. Time-outs and failure causes name the phase that was going on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from partitune.engines.readout import Phase, Readout
from partitune.execution.readout.log_lines import lines_of


def phase_begun_by(message: str, readout: Readout) -> Phase | None:
    """The phase that has begun when the engine writes `message`; None: the line says nothing about it."""
    return next((phase for phase, pattern in readout.logs.phases if re.search(pattern, message)), None)


def phase_of(logs: Sequence[str], readout: Readout) -> Phase:
    """What is going on: where nodes differ, the furthest any of them came."""
    lines = (line for node, log in enumerate(logs) for line in lines_of(log, node, readout))
    return max((phase_begun_by(line.message, readout) or Phase.SPAWN for line in lines), default=Phase.SPAWN)

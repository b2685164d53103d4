"""One line of an engine's log: which process said it, when, how loud, and what; and how far its start has come.

Decision: every reader of logs works on the same parsed lines, so that a colour code, a carriage return, broken UTF-8 or
Ray's own prefix is dealt with once. A line without a head (a traceback, a library that prints) belongs to the second of
the line before it; to its process only where the engine puts one head before a record of many lines.

A start has five phases, each with a time limit of its own, because "did not start in an hour" tells nobody whether
nodes did not find one another, weights were slow or graphs were captured. A phase begins with a line that the engine
writes; phases never go back. Time-outs and failure causes name the phase that was going on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partitune.engines.readout import Head, Phase, Readout

#: Most characters of one line that are looked at: a config dump of one line can be 50 KB.
_LONGEST_LINE = 20_000
#: Most characters of one log; of a longer one the beginning and the end are read.
_LONGEST_LOG = 32 << 20

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Ray's own head, which vLLM writes as well.
_SPEAKER = re.compile(r"\s*\((?P<process>[A-Za-z][\w.:-]{0,99}) pid=\d{1,10}(?:, ip=[^\s,()]{1,100})?\)[ \t]?")
_PLACE = re.compile(r"(?<![A-Z])(?P<what>DP|PP|TP)(?P<rank>\d{1,5})(?!\d)")
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `time` is `MM-DD hh:mm:ss` of that node's clock, empty before the first line that carries one."""

    node: int
    number: int  # 1-based
    process: str  # `Worker_PP1_TP0`, `EngineCore`, ` PP1 TP0`; empty where the line does not say
    time: str
    level: str  # empty where the line does not say
    message: str

    @property
    def is_quiet(self) -> bool:
        """True for what the engine itself calls less than an error."""
        return self.level in _QUIET

    @property
    def place(self) -> dict[str, int]:
        """Ranks in the process's name: `{"PP": 1, "TP": 0}`; a rank whose group has one member is not named."""
        return {rank["what"]: int(rank["rank"]) for rank in _PLACE.finditer(self.process)}


def lines_of(log: str, node: int, readout: Readout) -> Iterator[LogLine]:
    """The lines of what the processes of one node wrote. Takes any text."""
    if len(log) > _LONGEST_LOG:
        log = log[: _LONGEST_LOG // 2] + "\n" + log[-_LONGEST_LOG // 2 :]
    heir = time = ""
    for number, raw in enumerate(log.split("\n"), start=1):
        for text in _COLOUR.sub("", raw[:_LONGEST_LINE]).split("\r"):
            if head := readout.head(text) or _head_of_ray(text):
                time, heir = head.time or time, head.process if head.is_heir else ""
            else:
                head = Head(heir, text)
            if head.message.strip():
                yield LogLine(node, number, head.process, time, head.level, head.message.rstrip())


def _head_of_ray(text: str) -> Head | None:
    head = _SPEAKER.match(text)
    return Head(head["process"], text[head.end() :]) if head else None


def phase_begun_by(message: str, readout: Readout) -> Phase | None:
    """The phase that has begun when the engine writes `message`; None: the line says nothing about it."""
    return next((phase for phase, pattern in readout.logs.phases if re.search(pattern, message)), None)


def phase_of(logs: Sequence[str], readout: Readout) -> Phase:
    """What is going on: where nodes differ, the furthest any of them came."""
    lines = (line for node, log in enumerate(logs) for line in lines_of(log, node, readout))
    return max((phase_begun_by(line.message, readout) or Phase.SPAWN for line in lines), default=Phase.SPAWN)

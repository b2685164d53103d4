"""One line of an engine's log: which process said it, when, how loud, and what.

Decision: every reader of logs works on the same parsed lines, so that a colour code, a carriage return, broken UTF-8 or
Ray's own prefix is dealt with once. A line without a head (a traceback, a library that prints) belongs to the second
of the line before it; to its process only in SGLang, as vLLM puts a head before every line of a record.

Source: vLLM 0.32.0 `logger.py` (_FORMAT, _DATE_FORMAT) and `logging_utils/formatter.py`; up to 0.30 the process stands
before every line and the main process has none. SGLang 0.5.23 `srt/utils/common.py` (configure_logger) and
`srt/managers/scheduler.py` (prefix). The names of vLLM's workers: `v1/executor/multiproc_executor.py`
(setup_proc_title_and_log_prefix).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Most characters of one line that are looked at: a config dump of one line can be 50 KB.
_LONGEST_LINE = 20_000
#: Most characters of one log; of a longer one the beginning and the end are read.
_LONGEST_LOG = 32 << 20

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPEAKER = r"\((?P<process>[A-Za-z][\w.:-]{0,99}) pid=\d{1,10}(?:, ip=[^\s,()]{1,100})?\)[ \t]?"
_FIRST_SPEAKER = re.compile(rf"\s*{_SPEAKER}")
_LAST_SPEAKER = re.compile(rf"{_SPEAKER}\Z")
#: Searched, not matched: a progress bar leaves no line end before the next record.
_VLLM = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[[^\]]{1,200}\] ?"
)
_SGLANG = re.compile(r"\[\d{4}-(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?P<process>(?: [A-Z_]+\d+)*)\] ?")
_PLACE = re.compile(r"(?<![A-Z])(?P<what>DP|PP|TP)(?P<rank>\d{1,5})(?!\d)")
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `time` is `MM-DD hh:mm:ss` of that node's clock, empty before the first line that carries one."""

    node: int
    number: int  # 1-based
    process: str  # `Worker_PP1_TP0`, `EngineCore`, ` PP1 TP0` of SGLang; empty where the line does not say
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
        return {found["what"]: int(found["rank"]) for found in _PLACE.finditer(self.process)}


def lines_of(log: str, node: int) -> Iterator[LogLine]:
    """The lines of what the processes of one node wrote. Takes any text."""
    if len(log) > _LONGEST_LOG:
        log = log[: _LONGEST_LOG // 2] + "\n" + log[-_LONGEST_LOG // 2 :]
    heir = time = ""
    for number, raw in enumerate(log.split("\n"), start=1):
        for part in _COLOUR.sub("", raw[:_LONGEST_LINE]).split("\r"):
            level, process, text = "", heir, part
            if found := _VLLM.search(text):
                level, time = found["level"], found["time"]
                speaker = _LAST_SPEAKER.search(text, max(0, found.start() - 250), found.start())
                process, text, heir = speaker["process"] if speaker else "", text[found.end() :], ""
            elif found := _SGLANG.match(text):
                time, process, text = found["time"], found["process"].strip(), text[found.end() :]
                heir = process
            elif found := _FIRST_SPEAKER.match(text):
                process, text, heir = found["process"], text[found.end() :], ""
            if text.strip():
                yield LogLine(node, number, process, time, level, text.rstrip())

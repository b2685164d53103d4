"""Why an engine died: the earliest error over all ranks' logs that is not the consequence of another one.

Decision: one root fells many processes, and the loudest lines (NCCL, EngineDeadError, "died unexpectedly") come last.
So every line that looks like an error is put into a rank: what explains itself (memory, arguments, model, port, the
site), then any other exception, then a watchdog, then the network, which fails wherever a peer dies, then the echoes.
The first line of the best rank is the cause, over all nodes by time. Where an amount is said, the failure is graded
with it: the search learns that 0.2 GiB over is nearer than 20. What a site's containers, drivers, disks, hubs or
scheduler did says nothing about the candidate, which is `lost` and tried once more. Nothing is guessed: without a line
there is no cause.

Source of the messages that are no engine's own: Python, PyTorch's allocators and stores, pydantic, argparse, Ray; of
those of compilers, containers, drivers, hubs and Slurm the threads that `tests/data/failure_messages.txt` names one by
one.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partitune.engines.readout import FailureKind, Phase, Readout
from partitune.errors import LaunchFailed, NodeLost, OutOfMemory, Refused, RunError, Stalled, Unhealthy
from partitune.execution.readout.log_lines import LogLine, lines_of, phase_begun_by

#: Which lines can be the cause of which: a lower rank explains a higher one. Every other kind explains itself.
_RANKS: Mapping[FailureKind, int] = {
    FailureKind.ENGINE: 1,
    FailureKind.COMPILE: 1,
    FailureKind.STALL: 2,
    FailureKind.RENDEZVOUS: 3,
    FailureKind.COLLECTIVE: 3,
    FailureKind.KILLED: 4,
    FailureKind.DEAD: 5,
}
_EXPLAINED = 0
_MEMORY = frozenset({FailureKind.OOM, FailureKind.KV_TOO_SMALL, FailureKind.MEMORY_TAKEN})
_ERRORS: Mapping[FailureKind, type[RunError]] = {
    FailureKind.ARGUMENT: Refused,
    FailureKind.UNSUPPORTED: Refused,
    FailureKind.SITE: NodeLost,
    FailureKind.PORT: NodeLost,
    FailureKind.STALL: Stalled,
}

#: What lines look like beside the engine's own words, tried in this order. Searched in one line, `^` is where its
#: message begins.
_SIGNS: Mapping[FailureKind, tuple[str, ...]] = {
    FailureKind.KILLED: (
        r"exit code:? (?:None|-(?:4|6|7|8|9|11))\b",
        r"^Killed$",
        r"killed due to the node running low on memory",
        r"oom[-_]kill|\b(?:Segmentation fault|Bus error|Aborted) +\(core dumped\)",
        r"^srun: error: .*: (?:Out Of Memory|Killed|Segmentation fault|Bus error|Aborted)",
    ),
    FailureKind.DEAD: (
        r"died unexpectedly|died with exit code|died during initialization",
        r"^srun: error: \S+: tasks? |^slurmstepd: error: \*\*\*(?!.* DUE TO )",
    ),
    FailureKind.OOM: (
        r"(?:CUDA|HIP|XPU|NPU) out of memory",
        r"CUDA error: out of memory|Cuda failure.*'out of memory'",
        r"\bOutOfMemoryError|^MemoryError|std::bad_alloc|can't allocate memory",
    ),
    FailureKind.KV_TOO_SMALL: (),
    FailureKind.MEMORY_TAKEN: (),
    FailureKind.UNSUPPORTED: (r"(?i)^\S*(?:Error|Exception)\b.*\bnot support\w* pipeline parallel",),
    FailureKind.PARTITION: (r"Invalid partition string", r"(?:len|sum)\(partitions\)=\d+ does not match"),
    FailureKind.PORT: (r"(?i)address already in use|EADDRINUSE|port is already (?:in use|allocated)",),
    FailureKind.SITE: (
        # Containers; GPUs and their drivers; libraries; disks and limits; the model's files; Ray and Slurm.
        r"Error response from daemon: |Cannot connect to the Docker daemon|nvidia-container-cli: |unresolvable CDI",
        r"No CUDA GPUs are available|no GPU available|NVIDIA driver on your system is too old|unsupported display",
        r"uncorrectable ECC error|^ImportError: .*(?:cannot open shared object file|version `GLIBC)",
        r"No space left on device|pthread_create failed",
        r"a gated repo\b|GatedRepoError|Error while deserializing header",
        r"has been marked dead because the detector|^(?:slurmstepd|srun|sbatch): error: ",
    ),
    FailureKind.COMPILE: (
        r"^(?:torch\._dynamo|torch\._inductor|triton)\.[\w.]+: |^(?:LLVM ERROR|error: LLVM)\b",
        r"^(?:nvcc|ptxas[\w-]*) fatal\b|^ninja: build stopped|^gcc: |^/usr/bin/ld: ",
        r"no kernel image is available",
    ),
    FailureKind.ARGUMENT: (r"^[\w. -]{1,80}: error: ", r"\d+ validation errors? for \w*(?:Config|Args)\b"),
    FailureKind.STALL: (),
    FailureKind.RENDEZVOUS: (
        r"Unable to find address for|no socket interface found",
        r"DistStoreError|DistNetworkError|client socket has (?:timed out|failed)",
        r"connectFullMesh failed",
        r"Timed out after \d+ seconds waiting for clients",
    ),
    FailureKind.COLLECTIVE: (
        r"\bNCCL error|\bnccl(?:Unhandled|Internal|System|Remote)\w*Error",
        r"Watchdog caught collective|DistBackendError|Connection closed by peer",
        r"^(?:[\w.]+\.)?(?:Connection\w+Error|BrokenPipeError|EOFError|ZMQError|CancelledError|TimeoutError)\b",
    ),
    FailureKind.ENGINE: (
        r"^(?:[A-Za-z_][\w.]*\.)?(?:[A-Z]\w{0,80})?(?:Error|Exception)(?:: |$)",
        r"^Fatal Python error|Segfault encountered|^terminate called after throwing",
    ),
}
#: Exceptions with which an engine turns its arguments down before it starts anything.
_TURNED_DOWN = re.compile(r"^(?:ValueError|NotImplementedError|AssertionError|TypeError)\b")

_TRIED = re.compile(r"[Tt]ried to allocate (?P<size>\d[\d.]*) ?(?P<unit>[KMGT]iB|bytes)")
_FREE = re.compile(r"(?P<size>\d[\d.]*) ?(?P<unit>[KMGT]iB|bytes)(?: is)? free")
_GIB = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
#: A failure is over its limit by something, even where fragmentation and not the amount was at fault.
_LEAST_EXCESS_GIB = 2.0**-10
_LONGEST_MESSAGE = 700


@dataclass(frozen=True, slots=True)
class Cause:
    """The line that explains a failure."""

    kind: FailureKind
    phase: Phase  # how far the engine had come
    line: LogLine
    words: str  # the engine's own, shortened
    excess_gib: float | None  # memory that was missing, where the line says it

    @property
    def message(self) -> str:
        """FailureKind, phase, stage, process and node, and the engine's own words."""
        stage = self.line.place.get("PP")
        where = [self.line.process] if self.line.process else []
        where += [f"node {self.line.node}", f"log line {self.line.number}"]
        on_stage = "" if stage is None else f" on stage {stage}"
        return f"{self.kind} {self.phase.going_on}{on_stage} ({', '.join(where)}): {self.words}"

    def error(self) -> RunError:
        """What the search records: memory is graded and refusals teach; the rest only says that it broke."""
        if self.kind in _MEMORY:
            return OutOfMemory(self.message, excess=self.excess_gib)
        if error := _ERRORS.get(self.kind):
            return error(self.message)
        return Unhealthy(self.message) if self.phase is Phase.READY else LaunchFailed(self.message)


def find_cause(logs: Sequence[str], readout: Readout) -> Cause | None:
    """The earliest line of the best rank in `logs`, None where no line looks like an error. Never raises.

    Args:
        logs: what the processes of node n wrote, node by node.
        readout: of the engine.
    """
    words = readout.logs
    signs = {kind: [re.compile(sign) for sign in (*_SIGNS[kind], *words.failures.get(kind, ()))] for kind in _SIGNS}
    lines = list(
        heapq.merge(*(lines_of(log, node, readout) for node, log in enumerate(logs)), key=lambda line: line.time)
    )
    best: tuple[int, Cause] | None = None
    furthest, kv_left_gib = Phase.SPAWN, 0.0
    of_process: dict[tuple[int, str], Phase] = {}
    for index, line in enumerate(lines):
        if begun := phase_begun_by(line.message, readout):
            furthest = max(furthest, begun)
            speaker = line.node, line.process
            of_process[speaker] = max(begun, of_process.get(speaker, begun))
        if left := re.search(words.memory_left, line.message):
            kv_left_gib = min(kv_left_gib, _number(left[1]))
        # An indented line is source code in a traceback, which quotes messages that were not said.
        quoted = line.message.startswith((" ", "\t")) and not line.message.lstrip().startswith("what():")
        phase = _phase_of(line, furthest, of_process)
        kind = None if line.is_quiet or quoted else _kind_of(line, signs)
        if kind is None:
            continue
        outside = phase is Phase.SPAWN and line.process in words.outer_processes
        if kind is FailureKind.ENGINE and outside and _TURNED_DOWN.match(line.message):
            kind = FailureKind.ARGUMENT
        rank = _RANKS.get(kind, _EXPLAINED)
        if best is not None and best[0] <= rank:
            continue
        text = " ".join([line.message, *_around(lines, index)])[:_LONGEST_MESSAGE]
        if kind is FailureKind.ARGUMENT and re.search(words.no_such_model, text):
            kind = FailureKind.UNSUPPORTED
        best = rank, Cause(kind, phase, line, text, _excess(kind, text, kv_left_gib, words.missing_memory))
        if rank == _EXPLAINED:
            break
    return None if best is None else best[1]


def last_lines(logs: Sequence[str], readout: Readout, count: int = 20) -> str:
    """What each node said last, for a failure that no line explains."""
    lines = []
    for node, log in enumerate(logs):
        messages = [line.message for line in lines_of(log[-200_000:], node, readout)][-count:]
        title = f"node {node}, last {len(messages)} lines:" if messages else f"node {node}: no output"
        lines += [title, *messages]
    return "\n".join(lines)


def _phase_of(line: LogLine, furthest: Phase, of_process: Mapping[tuple[int, str], Phase]) -> Phase:
    """A worker has its own phase, which it names, until all serve; the others speak for the engine."""
    if furthest is Phase.READY or not line.place:
        return furthest
    return of_process.get((line.node, line.process), furthest)


def _kind_of(line: LogLine, signs: Mapping[FailureKind, Sequence[re.Pattern[str]]]) -> FailureKind | None:
    return next((kind for kind, own in signs.items() if any(sign.search(line.message) for sign in own)), None)


def _around(lines: Sequence[LogLine], index: int) -> Iterator[str]:
    """What makes `lines[index]` whole: the indented lines after it, in which pydantic says what is wrong.

    An exception without a text (a bare assertion) has only the source line before it.
    """
    first = lines[index]
    if ":" not in first.message:
        for line in reversed(lines[max(0, index - 3) : index]):
            code = line.message.strip()
            if (line.node, line.process) == (first.node, first.process) and code.strip("^~ "):
                yield f"at `{code}`"
                break
    for line in lines[index + 1 : index + 4]:
        if (line.node, line.process) != (first.node, first.process) or not line.message.startswith((" ", "\t")):
            return
        yield line.message.strip()


def _excess(kind: FailureKind, words: str, kv_left_gib: float, amounts: Sequence[str]) -> float | None:
    """GiB that were missing."""
    missing: float | None = None
    if kind is FailureKind.OOM:
        tried, free = _TRIED.search(words), _FREE.search(words)
        missing = None if tried is None or free is None else _gib(tried) - _gib(free)
    elif kind in _MEMORY:
        amount = next((match for pattern in amounts if (match := re.search(pattern, words))), None)
        if amount is not None:
            missing = _number(amount["needed"]) - _number(amount["had"])
        elif kv_left_gib < 0:
            missing = -kv_left_gib
    return None if missing is None else max(missing, _LEAST_EXCESS_GIB)


def _gib(amount: re.Match[str]) -> float:
    return _number(amount["size"]) * _GIB[amount["unit"]]


def _number(text: str) -> float:
    """`text` up to a second dot: a sentence may end right behind its number."""
    whole, _, rest = text[:30].partition(".")
    return float(f"{whole}.{rest.partition('.')[0] or '0'}")

"""What a running engine says: where its logs, its metrics page and its benchmark's result have what.

Decision: an engine gives names and patterns, `execution.readout` reads with them, so that what holds for every engine
(the earliest error that no other explains, phases that never go back, a missing figure that is None and never 0) is
written once. What an engine does not say has no pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from partitune.engines.deployment import Deployment


class Phase(IntEnum):
    """What is going on while an engine starts; later ones are further."""

    SPAWN = 0  # processes start and read their arguments
    RENDEZVOUS = 1  # ranks find one another
    LOAD = 2  # weights
    CAPTURE = 3  # profile run, KV cache, compilation, graphs
    READY = 4  # it serves

    @property
    def going_on(self) -> str:
        """What happens meanwhile, as part of a sentence: `while loading weights`."""
        return _GOING_ON[self]


_GOING_ON = {
    Phase.SPAWN: "while its processes started",
    Phase.RENDEZVOUS: "while its processes looked for one another",
    Phase.LOAD: "while loading weights",
    Phase.CAPTURE: "while it profiled, compiled or captured",
    Phase.READY: "while serving",
}


class FailureKind(StrEnum):
    """What went wrong; the value is how a person reads it. Closed set."""

    OOM = "out of memory"
    KV_TOO_SMALL = "too little memory left for the KV cache"
    MEMORY_TAKEN = "too little memory was free"
    ARGUMENT = "the engine refused its arguments"
    UNSUPPORTED = "the engine cannot run this model in this way"
    PARTITION = "the engine refused the partition"
    PORT = "a port was in use"
    SITE = "the site failed, not the candidate,"
    COMPILE = "a kernel could not be compiled for this GPU"
    ENGINE = "the engine failed"
    STALL = "the engine's own watchdog saw it stand still"
    RENDEZVOUS = "the processes did not find one another"
    COLLECTIVE = "communication between the processes failed"
    KILLED = "a process died without a word (killed, or out of the machine's memory)"
    DEAD = "the engine died and its log does not say why"


@dataclass(frozen=True, slots=True)
class Counters:
    """A metrics page at one moment, summed over data-parallel engines; None: not exported."""

    kv_blocks: int | None = None  # of the engine with the fewest
    kv_tokens: int | None = None
    block_size: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None  # tokens looked up
    prefix_hits: float | None = None  # tokens found
    preemptions: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    running: float | None = None  # requests


@dataclass(frozen=True, slots=True)
class LogReading:
    """What the logs of one start say; None or missing where they say nothing."""

    node_of_stage: Mapping[int, tuple[int, ...]]  # stage -> nodes (indices of the start) that a worker of it wrote from
    weights_gib: Mapping[tuple[int, int], float]  # (stage, tensor-parallel rank) -> GiB of its GPU
    own_split: tuple[int, ...] | None  # layers per stage that vLLM chose because it was given no partition
    kv_tokens: int | None
    is_async: bool | None
    runner: str | None  # `v1` or `v2` of vLLM


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Where a page in Prometheus' text format has the engine's counters."""

    prefix: str  # of every metric of the engine
    counters: Mapping[str, str]  # field of Counters -> metric
    info: str = ""  # metric whose labels have sizes of the KV cache
    info_labels: Mapping[str, str] = field(default_factory=dict)  # field of Counters -> label
    repeating: tuple[str, ...] = ()  # labels of ranks that repeat the figures of rank 0


@dataclass(frozen=True, slots=True)
class BenchFormat:
    """Where a load generator's result has what. Keys are paths with dots; of several the first that is there counts."""

    keys: Mapping[str, tuple[str, ...]]  # of counts, and the duration
    latencies: Mapping[str, tuple[str, float]]  # ours -> key with `{}` for the point, milliseconds of its unit
    points: Mapping[str, tuple[str, ...]]  # ours -> the tool's
    throughputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the tool's own, to compare with
    rates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ours -> keys of what only the tool can count
    results: str = ""  # key of a list whose last entry is the result; empty: the file is it


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the message of a log line."""

    process: str
    message: str
    time: str = ""  # `MM-DD hh:mm:ss`; empty: it says none
    level: str = ""
    is_heir: bool = False  # lines without a head that follow are of the same process


@dataclass(frozen=True, slots=True)
class LogWords:
    """Patterns of messages, without their heads; `^` is where a message begins."""

    phases: tuple[tuple[Phase, str], ...]  # a phase has begun when this is said
    failures: Mapping[FailureKind, tuple[str, ...]]  # beside those of Python, PyTorch and the machine
    #: What is said once of a start (a field of LogReading, its value), the first that is seen; without a value it is
    #: the first group.
    facts: tuple[tuple[str, str, str], ...]
    weights: str  # group: GiB that the weights of a rank take of its GPU
    stage: str = r"(?!)"  # group: pipeline stage of the rank that speaks
    missing_memory: tuple[str, ...] = ()  # groups `needed` and `had`, in GiB
    memory_left: str = r"(?!)"  # group: GiB that a rank has left for KV, where that is negative
    no_such_model: str = r"does not recognize this architecture"  # behind a message that refuses the arguments
    outer_processes: AbstractSet[str] = frozenset({""})  # that read the arguments before any other is started


class Readout(Protocol):
    """What one engine's server says. What has a body here holds for an engine that says nothing of it."""

    metrics: MetricsPage  # names on its metrics page
    logs: LogWords  # patterns of what it logs

    def head(self, line: str) -> Head | None:
        """The head of a log line, without colours; None: the line has none of the engine's own."""

    def schedules_ahead(self, config: Mapping[str, object]) -> bool | None:
        """Whether steps are scheduled before the last is sampled, by the running server's configuration."""
        return None

    def flow_name(self, predicted: str, reading: LogReading, is_async: bool | None) -> str:
        """How the pipeline is filled (`Flow.name`): as read, and where nothing was read as predicted."""
        return predicted

    def differences(
        self, deployment: Deployment, reading: LogReading, is_async: bool | None, kv_blocks: int | None
    ) -> Iterable[str]:
        """What a flag of `deployment` asked for and the server does not do, a sentence each."""
        return ()

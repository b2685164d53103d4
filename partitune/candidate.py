"""Candidate in, Result out: the values that cross process, pool and database borders.

Decision: frozen and JSON-able both ways, with a content hash, so that a duplicate is recognised by what it is and a
stored trial can be replayed into a new sampler. Failure is a value: five outcomes, each but `ok` with a reason, and
nothing is ever scored 0 or infinity. Whoever proposes, runs, records and watches passes on the same Submission, so that
nobody takes a text apart again to learn why a trial was tried.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Literal

from partitune.partition import Partition

#: The key of the layout among the flags, where files, tables and messages write a candidate.
LAYOUT = "layout"
#: Values a flag can take. Optuna, SQLite and JSON all know these four.
FlagValue = bool | int | float | str


class Outcome(StrEnum):
    """How a trial ended. Closed set."""

    OK = "ok"  # measured
    INFEASIBLE = "infeasible"  # cannot work or misses a limit; teaches the sampler through a graded constraint
    FAILED = "failed"  # the attempt broke (engine bug, launch failure)
    INVALID = "invalid"  # it ran and the figures cannot be trusted
    LOST = "lost"  # infrastructure took it (node, worker); rerun once


@dataclass(frozen=True, slots=True)
class Candidate:
    """One deployment to try: layers per stage, the engine flags that vary, and the layout where that varies."""

    partition: tuple[int, ...]
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    layout: str | None = None  # by name; None: the search space's own

    @classmethod
    def of_settings(cls, partition: Iterable[int], settings: Mapping[str, FlagValue]) -> Candidate:
        """The candidate whose `settings` these are."""
        flags = {name: value for name, value in settings.items() if name != LAYOUT}
        return cls(tuple(partition), flags, str(settings[LAYOUT]) if LAYOUT in settings else None)

    @property
    def partition_text(self) -> str:
        """The partition as every engine spells it: `11,11,12`."""
        return Partition(self.partition).text

    @property
    def settings(self) -> dict[str, FlagValue]:
        """The flags, and the layout as if it were one, then by name: what is written wherever a candidate is."""
        return dict(self.flags if self.layout is None else sorted({**self.flags, LAYOUT: self.layout}.items()))

    @property
    def digest(self) -> str:
        """12 hex digits of the content; equal candidates have equal digests in any process."""
        text = json.dumps([list(self.partition), sorted(self.settings.items())], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """JSON object with `partition`, and under `knobs` the flags and the layout."""
        return {"partition": list(self.partition), "knobs": self.settings}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        """The candidate that `to_json` wrote, as a database or a job's log holds it."""
        return cls.of_settings(map(int, data["partition"]), data["knobs"])


class Origin(StrEnum):
    """What really made a proposal, as it is stored and shown. Closed set; `docs/architecture.md` has it as a table."""

    DEFAULT = "default"  # the engine's own split with its own flags, which all others are compared with
    BASELINE = "baseline"  # what runs at the site today
    EXACT = "exact"  # the planner: least slowest stage, or most KV blocks, under the starting flags
    SEED = "seed"  # a vector that a person wrote
    PREDICTED = "predicted"  # what closed form believes to be the fastest
    ENUMERATED = "enumerated"  # a point of a finite space whose points are walked through; written by former releases
    DESCENT = "descent"  # a neighbour of the best: one flag or one layer away
    SAMPLER = "sampler"  # the sampler's model of what was told
    RANDOM = "random"  # a random draw: nothing is modelled yet
    REFIT = "refit"  # solved again with stage times that were measured
    CLOSING = "closing"  # found by the analysis with which a search ends
    FINAL = "final"  # a finalist's or the default's run on fresh servers


#: Plan of the engine's own split.
DEFAULT_PLAN = "default"
#: Origins of what a search makes up point by point: many, and none of them news unless it is better.
MADE_UP = frozenset({Origin.ENUMERATED, Origin.DESCENT, Origin.SAMPLER, Origin.RANDOM})
#: Written by releases that named how a candidate was chosen and not what made it; the screen's were the sampler's.
_FORMER_PROMOTED = "screen"
_PROMOTED = " promoted"


@dataclass(frozen=True, slots=True)
class Submission:
    """One run of a candidate."""

    candidate: Candidate
    origin: Origin | None = None  # None: a single launch, or the word of a release that knows others
    plan: str = ""  # that gave its partition
    repeat: int = 0  # which run of the candidate; 0 is its trial, others have another load
    promoted: bool = False  # whether a screen chose it for a launch; its origin is what made it all the same

    @property
    def key(self) -> tuple[str, int]:
        """What its result is known by."""
        return self.candidate.digest, self.repeat

    @property
    def label(self) -> str:
        """`origin:plan`, as it is stored and shown; of what a screen chose it says so."""
        return f"{self.origin or ''}:{self.plan}{_PROMOTED * self.promoted}"

    @classmethod
    def labelled(cls, candidate: Candidate, label: str) -> Submission:
        """The trial of a candidate that was stored under `label`."""
        origin, _, plan = label.partition(":")
        promoted = origin == _FORMER_PROMOTED or plan.endswith(_PROMOTED)
        known = Origin.SAMPLER if origin == _FORMER_PROMOTED else Origin(origin) if origin in {*Origin} else None
        return cls(candidate, known, plan.removesuffix(_PROMOTED), promoted=promoted)


#: Which way a metric is better, in Optuna's words.
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric of a result and which way is better."""

    metric: str
    direction: Direction

    def cost(self, value: float) -> float:
        """`value` turned so that less is better."""
        return -value if self.direction == "maximize" else value


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of one measured candidate: a row of the table a person acts on. Times are sums over the run."""

    stage: int
    layers: int
    kinds: Mapping[str, int]  # layer kind -> count
    compute_s: float
    transfer_s: float
    wait_s: float
    busy_fraction: float
    weights_bytes: int  # per GPU
    free_bytes: int  # per GPU, for KV after weights, activations and reserve
    kv_blocks: int  # that this stage alone could hold
    stranded_bytes: int  # of free_bytes that the tightest stage leaves unused


#: What results that were stored before 2026-12 call the ways vLLM keeps a pipeline busy: read, and never written again.
FORMER_REGIMES = {"R1": "async-v1", "R2": "sync-v1", "R3": "async-v2", "R4": "sync-v2"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a driver measured. `simulated` says whether any hardware was involved."""

    metrics: Mapping[str, float]
    stages: tuple[StageReport, ...]
    regime: str
    kv_blocks: int
    kv_tokens: int
    limiting_stage: int
    limiting_reason: str
    simulated: bool
    constraints: Mapping[str, float] = field(default_factory=dict)  # <= 0 is satisfied; graded

    def __post_init__(self) -> None:
        object.__setattr__(self, "regime", FORMER_REGIMES.get(self.regime, self.regime))

    def to_json(self) -> dict[str, Any]:
        """JSON object of every field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    """How a candidate ended: its outcome with the reason, and what was measured where it ran."""

    candidate: Candidate
    outcome: Outcome
    reason: str = ""  # empty only for ok
    measurement: Measurement | None = None  # always there for ok
    constraints: Mapping[str, float] = field(default_factory=dict)  # <= 0 is satisfied; what the sampler learns from
    duration_s: float = 0.0
    detail: str = field(default="", compare=False)  # for the trial's log only: a traceback, a server's last words
    repeat: int = 0  # which run of the candidate; 0 is its trial

    def metric(self, name: str) -> float | None:
        """The value of one metric, None where nothing was measured."""
        return None if self.measurement is None else self.measurement.metrics.get(name)


@dataclass(frozen=True, slots=True)
class Caveats:
    """What simulated figures leave out, and what they rest on that nobody has checked: said beside every figure."""

    not_modelled: Mapping[str, str] = field(default_factory=dict)  # flag -> why its value changes no figure here
    doubts: tuple[str, ...] = ()  # sentences: of the model, the GPUs, the engine's version

    def to_json(self) -> dict[str, Any]:
        """The two keys that every `--json` with figures has."""
        named = [{"flag": flag, "reason": reason} for flag, reason in self.not_modelled.items()]
        return {"not_modelled": named, "doubts": list(self.doubts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Caveats:
        """What `to_json` wrote, as a study holds it; None of a study that is older than this was stored."""
        if data is None:
            return cls(doubts=("the study is older than its caveats: what its figures leave out was not stored",))
        return cls({entry["flag"]: entry["reason"] for entry in data["not_modelled"]}, tuple(data["doubts"]))

    def lines(self) -> list[str]:
        """One sentence a flag, then the doubts."""
        flags = [f"not modelled: {flag}: {reason}" for flag, reason in self.not_modelled.items()]
        return [*flags, *(f"doubt: {doubt}" for doubt in self.doubts)]


def flaw_in(value: object, name: str = "result") -> str | None:
    """Why `value` cannot be stored as JSON and read back unchanged, None when it can.

    NaN and infinity are flaws: a figure that is not a number must end as an `invalid` trial, never as a score.
    """
    if value is None or isinstance(value, bool | str):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{name} is {value}"
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else f"{name} is {value}, beyond 64 bits"
    if is_dataclass(value):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        keys = next((f"{name} has the key {key!r}, not a text" for key in value if not isinstance(key, str)), None)
        return keys or next((flaw for key, item in value.items() if (flaw := flaw_in(item, f"{name}.{key}"))), None)
    if isinstance(value, list | tuple):
        return next((flaw for i, item in enumerate(value) if (flaw := flaw_in(item, f"{name}[{i}]"))), None)
    return f"{name} is a {type(value).__name__}; allowed are numbers, texts, true, false and null"

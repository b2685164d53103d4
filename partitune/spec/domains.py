"""What a search may vary: the partition's bounds, engine flags, environment variables.

Decision: a domain is a list of values or a range, nothing else; one fixed value belongs in `engine.flags`, and a flag
in both starts there and varies within its domain. The partition is not a flag among others: its bounds stand under a
name of their own and the exact planner fills them. Whether the engine knows a flag is asked later, of the engine; here
a name only has to look like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from partitune.candidate import FlagValue, flaw_in
from partitune.spec.environment import name_fault, value_fault
from partitune.spec.yaml.faults import Fault, describe, text_fault
from partitune.spec.yaml.strict_model import StrictModel, allowed, number, refusing, whole, wrong

_Value = TypeVar("_Value")

MAX_LAYERS = 4096
MAX_STAGES = 1024
_MAX_VALUES = 1000
_BOUND = 10**12  # of whole numbers in ranges; engine flags stay far below

_FLAG_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}", re.ASCII)
#: Words that say a value is a secret: any word of a variable's name, the last one of a flag's (`..._token_threshold`).
_SECRETS = frozenset(("KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"))
_ENV_NAME = re.compile(r"_{0,9}[A-Z][A-Z0-9_]{0,99}", re.ASCII)  # upper case tells it from a flag


def _flag_value(value: object) -> object:
    if isinstance(value, str) and (text := text_fault(value)):
        raise wrong(text)
    if isinstance(value, bool | int | float | str) and not flaw_in(value):
        return value
    raise wrong(f"found {describe(value)}; allowed: text, a finite number, true or false")


def _env_value(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return str(value)
    if isinstance(value, str) and "\n" not in value and not text_fault(value):
        return value
    raise wrong(f'found {describe(value)}; allowed: one line of text, in quotes (a variable is text: "1", "true")')


def _env_name_fault(name: object) -> str | None:
    if not _ENV_NAME.fullmatch(str(name)):
        return "not a name; allowed: an environment variable in upper case, such as NCCL_DEBUG"
    return secret_fault(str(name))


def _exported_fault(value: str) -> str | None:
    fault = value_fault(value)
    return fault and f"found {describe(value)}, which {fault}; what only a site needs belongs in env of a runner"


def _stage_number(stage: object) -> object:
    # JSON, in which studies store their spec, has no whole numbers as keys.
    return int(stage) if isinstance(stage, str) and re.fullmatch("0|[1-9][0-9]{0,8}", stage, re.ASCII) else stage


def _distinct(values: tuple[CheckedFlagValue, ...]) -> tuple[CheckedFlagValue, ...]:
    # Compared as Optuna compares choices, for which 1, 1.0 and true are one.
    for index, value in enumerate(values):
        if value in values[:index]:
            raise wrong(f"found {describe(value)} twice; allowed: different values (1, 1.0 and true count as one)")
    return values


def secret_fault(name: str) -> str | None:
    """Why a flag or variable of this name cannot be part of a study: it holds a secret; None when it does not."""
    words = name.upper().split("_")
    if _SECRETS.isdisjoint(words if name.isupper() else words[-1:]):
        return None
    return (
        "holds a secret, and what a study is made of is stored, shown and exported; allowed: to leave it out, and to "
        "set it in the environment of whatever starts the engine"
    )


def flag_name_fault(key: object) -> str | None:
    """What is wrong with `key` as the name of an engine flag; None when it looks like one, and not like a secret."""
    name = str(key)
    if _FLAG_NAME.fullmatch(name):
        return secret_fault(name)
    other = name.strip().lstrip("-").lower().replace("-", "_")
    hint = f", did you mean {other}?" if _FLAG_NAME.fullmatch(other) else ""
    return f"not a name{hint}; allowed: an engine flag in snake_case, such as max_num_seqs"


CheckedFlagValue = Annotated[bool | int | float | str, BeforeValidator(_flag_value)]
EnvValue = Annotated[str, BeforeValidator(_env_value), WithJsonSchema({"type": ["string", "integer"]})]
FlagName = Annotated[str, BeforeValidator(refusing(flag_name_fault))]
EnvName = Annotated[str, BeforeValidator(refusing(_env_name_fault))]
FlagValues = dict[FlagName, CheckedFlagValue]
EnvValues = dict[EnvName, EnvValue]
#: Of a deployment, which an export writes down.
ExportedName = Annotated[EnvName, AfterValidator(refusing(name_fault))]
ExportedValue = Annotated[EnvValue, AfterValidator(refusing(_exported_fault))]


class _Range(StrictModel):
    """What both kinds of range share; they say which numbers their ends and step may be."""

    log: Annotated[bool, allowed("true or false (sample the range by magnitude)")] = False
    low: float
    high: float
    step: float | None = None

    def faults(self) -> Iterator[Fault]:
        """Low above high, a step that misses high, log with a step or from 0."""
        low, high, step = self.low, self.high, self.step
        if self.log and low <= 0:
            yield Fault(("low",), f"found {low} in a log range; allowed: more than 0")
        if self.log and step is not None:
            yield Fault(("step",), "found a step in a log range; allowed: step or log, not both")
        if low > high:
            yield Fault(("low",), f"found {low} above high ({high}); allowed: at most high")
        elif rest := _beyond(high, low, step):
            ends = [(Decimal(str(high)) - rest + extra).normalize() for extra in (Decimal(0), Decimal(str(step)))]
            text = f"found {high}, which steps of {step} from {low} miss; allowed: {ends[0]:f} or {ends[1]:f}"
            yield Fault(("high",), text)


class WholeRange(_Range):
    """Whole numbers from low to high, both included."""

    low: Annotated[int, whole(-_BOUND, _BOUND, "the lowest value")]
    high: Annotated[int, whole(-_BOUND, _BOUND, "the highest value, included")]
    step: Annotated[int | None, whole(1, _BOUND, "distance of two values; 1 if left out")] = None


class RealRange(_Range):
    """Real numbers from low to high; with a step, only those on it."""

    low: Annotated[float, number(-_BOUND, _BOUND, "the lowest value")]
    high: Annotated[float, number(-_BOUND, _BOUND, "the highest value")]
    step: Annotated[float | None, number(0, _BOUND, "distance of two values", above=True)] = None


def _beyond(value: float, low: float, step: float | None) -> Decimal:
    """How far `value` lies beyond the last step from `low`, in decimal: 0.3 is three steps of 0.1."""
    return Decimal(0) if step is None else (Decimal(str(value)) - Decimal(str(low))) % Decimal(str(step))


def _form(value: object) -> str | None:
    """Which of the three forms of a domain `value` is meant to be."""
    if isinstance(value, Mapping):
        return "real" if any(isinstance(value.get(end), float) for end in ("low", "high", "step")) else "whole"
    if isinstance(value, WholeRange | RealRange):
        return "real" if isinstance(value, RealRange) else "whole"
    return "choices" if isinstance(value, list | tuple) else None


#: The values a flag may take, in the order written.
Choices = Annotated[
    tuple[_Value, ...], Field(strict=False, min_length=1, max_length=_MAX_VALUES), AfterValidator(_distinct)
]
Domain = Annotated[
    Annotated[Choices[CheckedFlagValue], Tag("choices")]
    | Annotated[WholeRange, Tag("whole")]
    | Annotated[RealRange, Tag("real")],
    Discriminator(_form),
]


def domain_allows(domain: Domain, value: bool | int | float | str) -> bool:
    """True when a search over `domain` could propose `value`. 1 is 1.0 and not true."""
    if isinstance(domain, tuple):
        return any(item == value and isinstance(item, bool) == isinstance(value, bool) for item in domain)
    if isinstance(value, bool | str) or (isinstance(domain, WholeRange) and not isinstance(value, int)):
        return False
    return domain.low <= value <= domain.high and not _beyond(value, domain.low, domain.step)


def domain_ends(domain: Domain) -> tuple[FlagValue, ...]:
    """The values between which all others of a domain lie: both ends of numbers, every choice of anything else."""
    if not isinstance(domain, tuple):
        return (domain.low, domain.high)
    numbers = [value for value in domain if isinstance(value, int | float) and not isinstance(value, bool)]
    return (min(numbers), max(numbers)) if len(numbers) == len(domain) else domain


def domain_words(domain: Domain) -> str:
    """The values of a domain as a message lists them."""
    if isinstance(domain, tuple):
        return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in domain)
    return f"{domain.low} to {domain.high}" + (f" in steps of {domain.step}" if domain.step else "")


class PartitionDomain(StrictModel):
    """Which partitions the planner may choose. The engine's own rules (a layer a stage, legal cuts) hold anyway."""

    min_layers: Annotated[int, whole(1, MAX_LAYERS, "fewest layers on any stage")] = 1
    max_layers: Annotated[int | None, whole(1, MAX_LAYERS, "most layers on any stage; no limit if left out")] = None
    pinned: Annotated[
        dict[Annotated[int, BeforeValidator(_stage_number)], Annotated[int, Field(ge=1, le=MAX_LAYERS)]],
        allowed("a mapping of stage number, counted from 0, to its number of layers, such as {0: 11}"),
    ] = Field(default_factory=dict)
    search: Annotated[
        Literal["exact", "free"],
        allowed(
            "exact (solved exactly under the cost model) or free (also partitions that the cost model thinks worse)"
        ),
    ] = "exact"

    def faults(self) -> Iterator[Fault]:
        """Bounds that cross, pinned stages outside them."""
        most = MAX_LAYERS if self.max_layers is None else self.max_layers
        if self.min_layers > most:
            yield Fault(("min_layers",), f"found {self.min_layers} above max_layers ({most}); allowed: at most {most}")
        for stage, layers in self.pinned.items():
            if not self.min_layers <= layers <= most and self.min_layers <= most:
                text = f"found {layers} layers; allowed: {self.min_layers} to {most} (min_layers and max_layers)"
                yield Fault(("pinned", stage), text)


class Domains(StrictModel):
    """Everything that varies. Keys other than `partition` and `env` are engine flags in snake_case."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Domain]
    other_keys: ClassVar[str | None] = (
        "a list of values, or a range such as {low: 16, high: 256, step: 16}; a fixed value belongs in engine.flags"
    )

    partition: Annotated[PartitionDomain, allowed("a mapping with min_layers, max_layers, pinned, search")] = (
        PartitionDomain()
    )
    env: Annotated[
        dict[ExportedName, Choices[ExportedValue]],
        allowed("a mapping of environment variables to lists of texts, such as {NAME: ['0', '1']}"),
    ] = Field(default_factory=dict)

    @property
    def flags(self) -> Mapping[str, Domain]:
        """The engine flags that vary, in the order written."""
        return self.__pydantic_extra__ or {}

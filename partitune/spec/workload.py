"""The load a candidate is measured under: random requests, a recorded trace, or a mix of several such loads.

Decision: a load is either closed (so many requests in flight) or open (so many arrive a second), never both and never
neither: the two answer different questions, and a rate silently capped by a concurrency measures the cap. The loads of
a mix are measured one after the other, never at once: what comes at once is one load, and a trace says it best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from partitune.spec.yaml.faults import Fault
from partitune.spec.yaml.strict_model import StrictModel, allowed, number, whole

MAX_REQUESTS = 1_000_000
_MAX_TOKENS = 10_000_000  # a context of ten million tokens is the longest announced


class RandomWorkload(StrictModel):
    """Requests of random tokens, greedy, running to their full length. The defaults are a short chat load.

    As in the load generators, what requests share comes before the tokens of each: a prompt is its system prompt, the
    turns before it with their answers, and `prompt_tokens` of its own.
    """

    kind: Literal["random"] = "random"
    requests: Annotated[int, whole(1, MAX_REQUESTS, "requests in all")] = 128
    prompt_tokens: Annotated[int, whole(1, _MAX_TOKENS, "tokens of a prompt, on average")] = 1024
    output_tokens: Annotated[int, whole(1, _MAX_TOKENS, "tokens generated a request, on average")] = 128
    range_ratio: Annotated[
        float, number(0, 1, "0.2: lengths vary evenly by up to 20 % to both sides of the average", below=True)
    ] = 0.0
    prefix_tokens: Annotated[
        int, whole(0, _MAX_TOKENS, "tokens of a system prompt, which come before prompt_tokens and are shared")
    ] = 0
    prefixes: Annotated[int, whole(1, MAX_REQUESTS, "different system prompts, each for as many conversations")] = 1
    turns: Annotated[
        int, whole(1, MAX_REQUESTS, "requests of a conversation, each with all before it, answers too, in its prompt")
    ] = 1
    concurrency: Annotated[int | None, whole(1, MAX_REQUESTS, "closed load: requests in flight")] = None
    request_rate_req_s: Annotated[float | None, number(0, 1e6, "open load: arrivals a second", above=True)] = None
    burstiness: Annotated[
        float, number(0, 1e3, "shape of the gaps of an open load: 1 Poisson, less is burstier", above=True)
    ] = 1.0

    @property
    def conversations(self) -> int:
        """As many requests as begin anew."""
        return self.requests // self.turns

    def bounds(self, mean: int) -> tuple[int, int]:
        """The fewest and the most tokens of a length around `mean`."""
        return math.floor(mean * (1 - self.range_ratio)), math.ceil(mean * (1 + self.range_ratio))

    def faults(self) -> Iterator[Fault]:
        """Both loads or none; burstiness of a closed load; conversations without an end, or a prefix for none."""
        if (self.concurrency is None) == (self.request_rate_req_s is None):
            loads = "neither concurrency nor request_rate_req_s" if self.concurrency is None else "both"
            text = f"found {loads}; allowed: concurrency (requests in flight) or request_rate_req_s (arrivals a second)"
            yield Fault((), text)
        if self.request_rate_req_s is None and "burstiness" in self.model_fields_set and self.burstiness != 1.0:
            yield Fault(("burstiness",), "found without request_rate_req_s; allowed: only for an open load")
        if self.requests % self.turns:
            text = f"found {self.turns} of {self.requests} requests; allowed: a divisor of requests"
            yield Fault(("turns",), text)
        elif self.prefixes > self.conversations:
            text = f"found {self.prefixes} for {self.conversations} conversations; allowed: at most as many"
            yield Fault(("prefixes",), text)
        if self.prefixes > 1 and not self.prefix_tokens:
            yield Fault(("prefixes",), "found without prefix_tokens; allowed: with the length of a system prompt")


class TraceWorkload(StrictModel):
    """Requests replayed from a file at their recorded times."""

    kind: Literal["trace"]
    file: Annotated[str, allowed("the path of a trace file, relative to this file", min_length=1, max_length=4096)]
    requests: Annotated[int | None, whole(1, MAX_REQUESTS, "only the first ones; all if left out")] = None


class _Part(StrictModel):
    name: Annotated[
        str | None,
        allowed("a name of a-z, 0-9, '.', '_' and '-', at most 32 characters", pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$"),
    ] = None
    weight: Annotated[
        float, number(0, 1e6, "share of the time under this load, relative to the other weights", above=True)
    ] = 1.0


class RandomPart(_Part, RandomWorkload):
    """Random requests as one load of a mix."""


class TracePart(_Part, TraceWorkload):
    """A trace as one load of a mix."""


class MixWorkload(StrictModel):
    """Several loads, each measured by itself; every figure is their weighted mean, or that of the worst."""

    kind: Literal["mix"]
    over: Annotated[
        Literal["mean", "worst"], allowed("mean (weighted over the parts) or worst (of the parts, figure by figure)")
    ] = "mean"
    parts: Annotated[
        tuple[Annotated[RandomPart | TracePart, Field(discriminator="kind")], ...],
        Field(strict=False, min_length=1, max_length=100),
        allowed("a list of two to 100 loads, each a mapping with kind: random or trace, name, weight and its own keys"),
    ]

    @property
    def names(self) -> tuple[str, ...]:
        """One a part: as written, else its kind."""
        return tuple(part.name or part.kind for part in self.parts)

    def faults(self) -> Iterator[Fault]:
        """One load only; a name twice; weights where they would not count."""
        if len(self.parts) == 1:
            yield Fault(("parts",), "found one load; allowed: two or more, or that load as the workload itself")
        for index, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            if name in self.names[:index]:
                twice = name if part.name else f"none, which stands for {name},"
                yield Fault(("parts", index, "name"), f"found {twice} a second time; allowed: every name once")
            if self.over == "worst" and part.weight != 1.0:
                text = f"found {part.weight:g} beside over: worst, where no part counts more; allowed: with over: mean"
                yield Fault(("parts", index, "weight"), text)


#: What one run of a load generator can send; the loads of a mix are several runs.
SingleLoad: TypeAlias = RandomWorkload | TraceWorkload
Workload = Annotated[RandomWorkload | TraceWorkload | MixWorkload, Field(discriminator="kind")]


def single_loads(workload: Workload) -> tuple[SingleLoad, ...]:
    """The loads of a mix; the load itself where there is one."""
    return workload.parts if isinstance(workload, MixWorkload) else (workload,)

"""The loads a deployment is judged under: what batches each turns into, and how figures under each become one figure.

Decision: whatever plans, runs or launches is written for one load and done once a load; only here are the parts put
together again. Weights are shares of time. A deployment that spends two thirds of its time under one load and one
third under another makes, averaged over its time, the weighted arithmetic mean of the two throughputs, and what it is
paid for follows from that mean. Latencies are averaged alike: a percentile of a mix is the weighted mean of the parts'
percentiles, what is to be expected at a moment drawn by chance, and not that of all requests thrown together, in which
a load of few requests would vanish. `worst` takes each figure from the part where it is worst.

Stages are balanced for typical batches before anything is simulated: how much prefill and how much decode a stage will
see, not when. A burst is cut into steps of at most the token budget; requests whose prompts end in one step decode
together for life, so the number of cohorts, and with it the size of a decode batch, follows from the budget and from
what the engine puts into one batch at most (facts of the schedulers, see engines/*/scheduler).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from partitune.costs.cost_model import Batch
from partitune.engines.scheduling import Flow
from partitune.simulation.content import apart, fewest_computed
from partitune.simulation.request import Request
from partitune.spec.metrics import METRICS, OF_LOAD


class Over(StrEnum):
    """What the parts of a mix come to."""

    MEAN = "mean"
    WORST = "worst"


@dataclass(frozen=True, slots=True)
class Load:
    """One load: requests, and how they come."""

    requests: tuple[Request, ...]
    concurrency: int | None  # closed load; None: requests come at their arrival times
    name: str = ""  # in a mix
    weight: float = 1.0
    doubts: tuple[str, ...] = ()  # what every figure under it leaves out

    @property
    def mean_prompt_tokens(self) -> float:
        """Tokens of a prompt, on average."""
        return sum(request.prompt_tokens for request in self.requests) / len(self.requests)

    @property
    def output_tokens(self) -> int:
        """Tokens that all requests together generate."""
        return sum(request.output_tokens for request in self.requests)

    def of_rank(self, ranks: int) -> Load:
        """What the first of so many data ranks gets, which has as much as any: requests are dealt out in turn.

        Each rank has a cache of its own, so a request that continues one of another rank finds nothing of it.
        """
        outstanding = None if self.concurrency is None else -(-self.concurrency // ranks)
        return replace(self, requests=apart(self.requests[::ranks], self.requests), concurrency=outstanding)

    def typical_batches(self, flow: Flow) -> tuple[tuple[Batch, float], ...]:
        """The prefill step and the decode step of this load of one data rank, each with how often it comes.

        Without a limit on those outstanding the engine admits as many as it can.

        Args:
            flow: how the engine cuts the load into batches.
        """
        count, prompt, new = len(self.requests), self.mean_prompt_tokens, self._new_tokens(flow)
        output = self.output_tokens / count
        outstanding, chunk = self._first_steps(flow)
        prefill_steps = count * new / chunk
        finished = max(1, round(count / prefill_steps))  # prompts that end in a step
        pairs = chunk * (2 * prompt - new + 1) / 2  # the new ones are the last
        prefill = Batch(prefill_tokens=chunk, prefill_pairs=pairs, sampled=finished)
        if output <= 1:
            return ((prefill, prefill_steps),)
        together = max(1, round(outstanding / self.cohorts(flow)))
        context = round(together * (prompt + output / 2))
        decode = Batch(decode_tokens=together, decode_context=context, sampled=together)
        return (prefill, prefill_steps), (decode, count * (output - 1) / together)

    def densest_batches(self) -> tuple[tuple[tuple[Batch, float], ...], ...]:
        """The fewest steps this load of one data rank could be served in, whatever the engine: what a limit rests on.

        All requests that are outstanding share every decode step, so that weights are read for as many as there are.
        Their prompts pass in one step, or are spread over the decode steps; which takes less time the costs decide.
        What prompts share is computed once.

        Returns:
            Both ways, each as batches and how often they come; one where every request makes one token.
        """
        requests, count = self.requests, len(self.requests)
        together = min(count, self.concurrency or count)
        prompts, pairs = fewest_computed(requests)
        waves = count / together
        tokens = max(1, round(prompts / waves))
        prefill = Batch(prefill_tokens=tokens, prefill_pairs=pairs * tokens / prompts, sampled=together)
        decoded = self.output_tokens - count
        if not decoded:
            return (((prefill, prompts / tokens),),)
        context = sum((r.output_tokens - 1) * r.prompt_tokens + _pairs(r.output_tokens - 1) for r in requests)
        steps, mean = decoded / together, round(context * together / decoded)
        decode = Batch(decode_tokens=together, decode_context=mean, sampled=together)
        spread = round(prompts / steps)
        both = replace(decode, prefill_tokens=spread, prefill_pairs=pairs / steps)
        apart = ((prefill, prompts / tokens), (decode, steps))
        return (apart, ((both, steps),)) if spread else (apart,)

    def cohorts(self, flow: Flow) -> int:
        """Groups of requests that decode apart from one another: batches in flight. As for `typical_batches`."""
        outstanding, chunk = self._first_steps(flow)
        return min(flow.cohorts, outstanding, max(1, round(outstanding * self._new_tokens(flow) / chunk)))

    def _new_tokens(self, flow: Flow) -> float:
        """Tokens of a prompt that are computed, on average, where a cache of prefixes forgets nothing."""
        if not flow.reuses or all(each.continues is None and not each.prefix for each in self.requests):
            return self.mean_prompt_tokens
        tokens, _ = fewest_computed(self.requests)
        return tokens / len(self.requests)

    def _first_steps(self, flow: Flow) -> tuple[int, int]:
        """Requests that are served at once, and prompt tokens of a step."""
        count = len(self.requests)
        outstanding = min(count, flow.max_requests, self.concurrency or count)
        together = min(outstanding, flow.cohort_requests)
        return outstanding, max(1, round(min(flow.step_tokens, together * self._new_tokens(flow))))


def _pairs(tokens: int) -> float:
    """Tokens that so many new ones look back on, themselves included."""
    return tokens * (tokens + 1) / 2


@dataclass(frozen=True, slots=True)
class Mix:
    """One load, or several that are judged together."""

    loads: tuple[Load, ...]
    over: Over = Over.MEAN

    @property
    def shares(self) -> tuple[float, ...]:
        """Weights that sum to 1; equal ones where the worst counts."""
        total = sum(load.weight for load in self.loads)
        return tuple(load.weight / total for load in self.loads)

    def combined(self, served: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """One figure a metric from those of every load, in the order of `loads`.

        A part that has no such figure (time per output token where every request makes one token) does not count.
        Figures that are neither good nor bad, such as the number of batches, are averaged under `worst` too.
        """
        if len(served) == 1:
            return dict(served[0])
        names = dict.fromkeys(name for figures in served for name in figures)
        return {name: self.figure(name, [figures.get(name) for figures in served]) for name in names}

    def figure(self, name: str, figures: Sequence[float | None]) -> float:
        """The one figure of metric `name`, of which at least one load has one."""
        weighted = [(value, share) for value, share in zip(figures, self.shares, strict=True) if value is not None]
        if self.over is Over.WORST and name in METRICS:
            values = [value for value, _ in weighted]
            return min(values) if METRICS[name] == "maximize" else max(values)
        return sum(value * share for value, share in weighted) / sum(share for _, share in weighted)

    def by_part(self, served: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The figures of every part under `part/metric`; none where there is one load."""
        if len(served) == 1:
            return {}
        pairs = zip(self.loads, served, strict=True)
        return {f"{load.name}{OF_LOAD}{name}": value for load, figures in pairs for name, value in figures.items()}

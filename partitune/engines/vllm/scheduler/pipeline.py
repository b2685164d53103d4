"""Stages in virtual time: when a batch starts on each stage, and when its tokens are known where.

Decision: one recurrence over the last batch's times instead of an event queue, because batches pass every stage in the
order of dispatch. A stage that has computed a batch sends it before it does anything else, and the receiver takes it
only once it is rid of the batch before, so a slow stage stops the one in front of it. A hand-off that takes no time
needs no partner: then a stage starts when its batch has arrived and it is free.

Source: vLLM 0.33.0 `v1/worker/gpu_worker.py` (execute_model), `v1/worker/gpu/pp_utils.py`, `v1/executor/
multiproc_executor.py` (the worker's loop) and, for the sync V1 runner, `v1/worker/gpu_model_runner.py` (_to_list).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from partitune.costs.cost_model import Batch, StageCosts
from partitune.engines.vllm.pipelining import Regime
from partitune.simulation.overheads import Overheads
from partitune.simulation.timeline import Crossing


@dataclass(slots=True)
class BatchCost:
    """Seconds of one kind of batch; `uses` counts how often it ran."""

    compute: tuple[float, ...]
    transfer: tuple[float, ...]
    uses: int = 0


class Passage(NamedTuple):
    """One batch through the pipeline; a tuple because thousands are made."""

    start_s: float  # on stage 0
    end_s: float  # on the last stage, sampler included
    token_s: float  # sampled tokens are on every stage
    out_s: float  # sampled tokens are back at the engine core


class Pipeline:
    """The stages of one engine."""

    def __init__(
        self, regime: Regime, costs: StageCosts, overheads: Overheads, *, broadcasts_chunks: bool = False
    ) -> None:
        self._waits_for_tokens = regime is Regime.ASYNC_V1
        self._broadcasts_chunks = broadcasts_chunks
        self._copies_aside = regime.asynchronous
        self._costs = costs
        self._overheads = overheads
        self._known: dict[tuple[int, float, int, int, int, int], BatchCost] = {}
        self._leave = [0.0] * costs.stages  # when a stage is rid of its last batch
        self._sampled_batches = 0
        self._gate_s = 0.0  # async-v1: when the newest sampled tokens were broadcast

    def cost(
        self, prefill_tokens: int, prefill_pairs: float, decodes: int, context: int, sampled: int, padding: int = 0
    ) -> BatchCost:
        """Stage and hand-off seconds of a batch, asked for once per distinct batch."""
        key = (prefill_tokens, prefill_pairs, decodes, context, sampled, padding)
        known = self._known.get(key)
        if known is None:
            batch = Batch(*key)
            compute = tuple(float(x) for x in self._costs.compute_s(batch))
            transfer = tuple(float(x) for x in self._costs.transfer_s(batch.tokens))
            known = self._known[key] = BatchCost(compute, transfer)
        return known

    def push(self, cost: BatchCost, ready_s: float, *, samples: bool) -> Passage:
        """Send a batch through that may start at `ready_s`."""
        cost.uses += 1
        leave = self._leave
        overheads = self._overheads
        if self._waits_for_tokens and self._gate_s > ready_s:
            ready_s = self._gate_s
        start = first = max(ready_s, leave[0])
        stage = 0
        for transfer in cost.transfer:
            end = start + cost.compute[stage]
            free = leave[stage + 1]
            start = end if end > free else free
            if transfer > 0.0:
                start += transfer
                leave[stage] = start
            else:
                leave[stage] = end
            stage += 1
        end = start + cost.compute[stage]
        if samples:
            end += overheads.sample_s
            self._sampled_batches += 1
        out = end + overheads.d2h_s
        # Sync engines: the last worker waits for its own copy before it looks at the next step.
        leave[stage] = end if self._copies_aside else out
        broadcasts = samples or self._broadcasts_chunks
        token = end + overheads.broadcast_s if broadcasts else end
        if broadcasts:
            self._gate_s = token
        return Passage(first, end, token, out)

    def clock(self) -> list[float]:
        """Every time the next batch depends on."""
        return [self._gate_s, *self._leave]

    def skip(self, costs: Sequence[BatchCost], times: int, seconds: float) -> None:
        """Let a round of sampling batches have gone through `times` times, which took `seconds`."""
        for cost in costs:
            cost.uses += times
        self._sampled_batches += times * len(costs)
        self._gate_s += seconds
        self._leave = [leave + seconds for leave in self._leave]

    def compute_s(self) -> tuple[float, ...]:
        """Per stage: seconds of computing so far; the sampler counts on the last."""
        sums = [sum(cost.uses * cost.compute[stage] for cost in self._known.values()) for stage in range(self._stages)]
        sums[-1] += self._sampled_batches * self._overheads.sample_s
        return tuple(sums)

    def work(self) -> tuple[tuple[Batch, int], ...]:
        """Different batches so far, and how often each ran."""
        return tuple((Batch(*key), cost.uses) for key, cost in self._known.items())

    def transfer_s(self) -> tuple[float, ...]:
        """Per stage: seconds of receiving and sending so far."""
        boundaries = range(self._stages - 1)
        sent = [0.0, *(sum(cost.uses * cost.transfer[b] for cost in self._known.values()) for b in boundaries), 0.0]
        return tuple(received + given for received, given in pairwise(sent))

    @property
    def _stages(self) -> int:
        return self._costs.stages


class TracedPipeline(Pipeline):
    """A pipeline that keeps every batch's way through it."""

    def __init__(
        self, regime: Regime, costs: StageCosts, overheads: Overheads, *, broadcasts_chunks: bool = False
    ) -> None:
        super().__init__(regime, costs, overheads, broadcasts_chunks=broadcasts_chunks)
        self.crossings: list[Crossing] = []

    def push(self, cost: BatchCost, ready_s: float, *, samples: bool) -> Passage:
        """As the pipeline's."""
        free = tuple(self._leave)
        passage = super().push(cost, ready_s, samples=samples)
        starts, ends, hand_offs = [passage.start_s], [], []
        for stage, transfer in enumerate(cost.transfer):
            ends.append(starts[-1] + cost.compute[stage])
            hand_offs.append(max(ends[-1], free[stage + 1]))
            starts.append(self._leave[stage] if transfer > 0.0 else hand_offs[-1])
        ends.append(passage.end_s)
        self.crossings.append(Crossing(tuple(starts), tuple(ends), tuple(hand_offs), tuple(self._leave)))
        return passage

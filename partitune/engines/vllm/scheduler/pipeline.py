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
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.simulation.run import Overheads


@dataclass(slots=True)
class BatchCost:
    """Seconds of one kind of batch; `uses` counts how often it ran."""

    batch: Batch
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

    def __init__(self, settings: SchedulerSettings, costs: StageCosts, overheads: Overheads) -> None:
        self._waits_for_tokens = settings.regime is Regime.ASYNC_V1
        self._broadcasts_chunks = settings.broadcasts_chunks
        self._copies_aside = settings.regime.asynchronous
        self._costs = costs
        self._overheads = overheads
        self._known: dict[tuple[int, float, int, int, int, int], BatchCost] = {}
        self.leave = [0.0] * costs.stages  # when a stage is rid of its last batch
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
            known = self._known[key] = BatchCost(batch, compute, transfer)
        return known

    def push(self, cost: BatchCost, ready_s: float) -> Passage:
        """Send a batch through that may start at `ready_s` (seconds since the run began)."""
        cost.uses += 1
        leave = self.leave
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
        samples = cost.batch.sampled > 0
        if samples:
            end += overheads.sample_s
        out = end + overheads.d2h_s
        # Sync engines: the last worker waits for its own copy before it looks at the next step.
        leave[stage] = end if self._copies_aside else out
        broadcasts = samples or self._broadcasts_chunks
        token = end + overheads.broadcast_s if broadcasts else end
        if broadcasts:
            self._gate_s = token
        return Passage(first, end, token, out)

    def clock(self) -> list[float]:
        """Every time, in seconds since the run began, that the next batch depends on."""
        return [self._gate_s, *self.leave]

    def skip(self, costs: Sequence[BatchCost], times: int, seconds: float) -> None:
        """Let a round of sampling batches have gone through `times` times, which took `seconds`."""
        for cost in costs:
            cost.uses += times
        self._gate_s += seconds
        self.leave = [leave + seconds for leave in self.leave]

    def compute_s(self) -> tuple[float, ...]:
        """Per stage: seconds of computing so far; the sampler counts on the last."""
        known = self._known.values()
        sums = [sum(cost.uses * cost.compute[stage] for cost in known) for stage in range(self._costs.stages)]
        sums[-1] += sum(cost.uses for cost in known if cost.batch.sampled) * self._overheads.sample_s
        return tuple(sums)

    def work(self) -> tuple[tuple[Batch, int], ...]:
        """Different batches so far, and how often each ran."""
        return tuple((cost.batch, cost.uses) for cost in self._known.values())

    def transfer_s(self) -> tuple[float, ...]:
        """Per stage: seconds of receiving and sending so far."""
        boundaries = range(self._costs.stages - 1)
        sent = [0.0, *(sum(cost.uses * cost.transfer[b] for cost in self._known.values()) for b in boundaries), 0.0]
        return tuple(received + given for received, given in pairwise(sent))

"""The four ways vLLM keeps a pipeline busy, named once for the engine room and the simulator.

Decision: a regime is a value, not a pair of booleans, because what matters under pipeline parallelism (how many batches
may be in flight, when a request may decode again, who waits for the sampled token) hangs on the combination of engine
version, model runner and async flag, and only these four combinations exist.

Source: vLLM 0.33.0 `config/vllm.py` (max_concurrent_batches), `v1/engine/core.py` (step_with_batch_queue),
`v1/core/sched/async_scheduler.py`, `v1/worker/gpu/pp_utils.py`; vLLM 0.30 for async-v1.
"""

from __future__ import annotations

from enum import StrEnum

from partitune.candidate import FORMER_REGIMES


class Regime(StrEnum):
    """How sampled tokens get back to stage 0, and with how many batches in flight.

    - `async-v1`: V1 runner, async scheduling (the default up to 0.30 on models of the V1 runner, refused since 0.31).
      Requests are scheduled every step with placeholder tokens, and each sampling step ends in a broadcast on the
      stream that computes: stage 0 cannot start a step before the last stage has sampled the one before. Decode does
      not pipeline.
    - `sync-v1`: V1 runner, `--no-async-scheduling`. The scheduler sends sampled tokens back through the engine core; a
      request decodes again once its output was processed. Decode pipelines in cohorts.
    - `async-v2`: V2 runner, async scheduling (the default of every model since 0.30). The broadcast runs on a side
      stream and a request decodes exactly `stages` scheduler steps later; one batch more than stages may be in flight.
    - `sync-v2`: V2 runner, `--no-async-scheduling`. As async-v2 on the GPU, but the engine core must see the tokens
      before it dispatches again and the last stage's worker blocks on copying its own output.

    Recordings made before these names call them R1, R2, R3 and R4 in this order; both are read.
    """

    ASYNC_V1 = "async-v1"
    SYNC_V1 = "sync-v1"
    ASYNC_V2 = "async-v2"
    SYNC_V2 = "sync-v2"

    @classmethod
    def _missing_(cls, value: object) -> Regime | None:
        name = FORMER_REGIMES.get(str(value))
        return None if name is None else cls(name)

    @property
    def sentence(self) -> str:
        """What it means for a pipeline, in one sentence."""
        return _SENTENCES[self]

    @property
    def asynchronous(self) -> bool:
        """True when requests are scheduled before their last token is known (placeholders)."""
        return self in (Regime.ASYNC_V1, Regime.ASYNC_V2)

    def queue_slots(self, stages: int) -> int:
        """Batches that may be in flight; `config/vllm.py` `max_concurrent_batches`, 0.24 to 0.33."""
        if self is Regime.ASYNC_V2:
            return stages + 1
        return 2 if self is Regime.ASYNC_V1 and stages == 1 else stages


_SENTENCES = {
    Regime.ASYNC_V1: "each step waits until the last stage has sampled the one before, so decode does not pipeline",
    Regime.SYNC_V1: "a request decodes again once its token came back through the engine core, so decode pipelines in "
    "groups of requests",
    Regime.ASYNC_V2: "a request decodes again as many steps later as there are stages, and one batch more than stages "
    "may be in flight",
    Regime.SYNC_V2: "as async-v2, but the engine core sees the sampled tokens before it dispatches again",
}

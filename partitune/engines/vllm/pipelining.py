"""The four ways vLLM keeps a pipeline busy, named once for the engine room and the simulator.

Decision: a regime is a value, not a pair of booleans, because what matters under pipeline parallelism (how many batches
may be in flight, when a request may decode again, who waits for the sampled token) hangs on the combination of engine
version, model runner and async flag, and only these four combinations exist.

Source: vLLM 0.33.0 `config/vllm.py` (max_concurrent_batches), `v1/engine/core.py` (step_with_batch_queue),
`v1/core/sched/async_scheduler.py`, `v1/worker/gpu/pp_utils.py`; vLLM 0.30 for R1.
"""

from __future__ import annotations

from enum import StrEnum


class Regime(StrEnum):
    """How sampled tokens get back to stage 0, and with how many batches in flight.

    - `R1`: V1 runner, async scheduling (the default up to 0.30 on models of the V1 runner, refused since 0.31).
      Requests are scheduled every step with placeholder tokens, and each sampling step ends in a broadcast on the
      stream that computes: stage 0 cannot start a step before the last stage has sampled the one before. Decode does
      not pipeline.
    - `R2`: V1 runner, `--no-async-scheduling`. The scheduler sends sampled tokens back through the engine core; a
      request decodes again once its output was processed. Decode pipelines in cohorts.
    - `R3`: V2 runner, async scheduling (the default of every model since 0.30). The broadcast runs on a side stream and
      a request decodes exactly `stages` scheduler steps later; one batch more than stages may be in flight.
    - `R4`: V2 runner, `--no-async-scheduling`. As R3 on the GPU, but the engine core must see the tokens before it
      dispatches again and the last stage's worker blocks on copying its own output.
    """

    R1 = "R1"
    R2 = "R2"
    R3 = "R3"
    R4 = "R4"

    @property
    def asynchronous(self) -> bool:
        """True when requests are scheduled before their last token is known (placeholders)."""
        return self in (Regime.R1, Regime.R3)

    def queue_slots(self, stages: int) -> int:
        """Batches that may be in flight; `config/vllm.py` `max_concurrent_batches`, 0.24 to 0.33."""
        if self is Regime.R3:
            return stages + 1
        return 2 if self is Regime.R1 and stages == 1 else stages

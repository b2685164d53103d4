"""The four ways vLLM keeps a pipeline busy, and which of them a start ends up in.

Decision: a regime is a value, not a pair of booleans, because what matters under pipeline parallelism (how many batches
may be in flight, when a request may decode again, who waits for the sampled token) hangs on the combination of engine
version, model runner and async flag, and only these four combinations exist. What a person writes of the three and what
the engine does are two things: it may switch async off silently or refuse. `choose_regime` turns one into the other.

Source: vLLM 0.33.0 `config/vllm.py` (max_concurrent_batches), `v1/engine/core.py` (step_with_batch_queue),
`v1/core/sched/async_scheduler.py`, `v1/worker/gpu/pp_utils.py`; vLLM 0.30 for async-v1. The choice: vLLM 0.32.0
`config/vllm.py` (use_v2_model_runner, async_scheduling, max_concurrent_batches), read for 0.19.1, 0.22.1, 0.24.0,
0.26.0, 0.27.1, 0.28.0, 0.30.0, 0.31.0 and 0.33.0 as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from partitune.candidate import FORMER_REGIMES
from partitune.engines.deployment import Deployment
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.engines.vllm.models import V2_LISTED
from partitune.errors import SpecError

READ = VersionRange("vLLM", oldest=Version(0, 19), newest=Version(0, 33))
RUNNERS = ("auto", "v1", "v2")
_CHUNKS_FLOW = Version(0, 20)  # PR 38726: in `v1/worker/gpu_model_runner.py` of 0.20.0, not of 0.19.1
_REFUSED_SINCE = Version(0, 31)  # V1 runner with pipeline and async scheduling (PR 56250)
_V2_FOR_ALL = Version(0, 30)
_V2_SIDE_STREAM = Version(0, 24)  # PR 42187


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


@dataclass(frozen=True, slots=True)
class RegimeChoice:
    """Which way a start of vLLM keeps its pipeline busy, and how it came about."""

    regime: Regime
    notes: tuple[str, ...]  # what the engine does silently, and what was assumed
    refusal: str  # empty when the engine starts
    broadcasts_chunks: bool  # async-v1: stages wait for the last one after unfinished prompts too


def regime(deployment: Deployment) -> RegimeChoice:
    """Which of the four ways a start takes, and what is to be known about it.

    Raises:
        SpecError: the engine refuses to start.
    """
    choice = choose_regime(deployment)
    if choice.refusal:
        raise SpecError(choice.refusal)
    return choice


def choose_regime(deployment: Deployment) -> RegimeChoice:
    """Like `regime`, but what the engine refuses is a value. Before 0.30 the default runner hangs on the model."""
    version, stages = parse_version(deployment.version), deployment.stages
    flag = deployment.flags.get("async_scheduling")
    asynchronous = flag if isinstance(flag, bool) else None
    v2 = runs_v2(deployment)
    notes, refusal = READ.notes(version), ""
    if v2 and version >= _V2_SIDE_STREAM:
        chosen = Regime.SYNC_V2 if asynchronous is False else Regime.ASYNC_V2
    elif stages > 1 and not v2 and version >= _REFUSED_SINCE:
        chosen = Regime.SYNC_V1
        if asynchronous:
            refusal = (
                f"async_scheduling: true with the V1 model runner and {stages} stages is refused since vLLM "
                f"{_REFUSED_SINCE}; leave it out, set it to false, or use runner v2"
            )
        if asynchronous is None:
            notes += ("async scheduling is switched off silently: the V1 model runner has none with a pipeline",)
    else:
        chosen = Regime.SYNC_V1 if asynchronous is False else Regime.ASYNC_V1
        if v2:
            notes += ("the V2 runner before 0.24 broadcasts sampled tokens on the main stream, like the V1 runner",)
    chunks = chosen is Regime.ASYNC_V1 and version < _CHUNKS_FLOW
    return RegimeChoice(chosen, notes, refusal, chunks)


def runs_v2(deployment: Deployment) -> bool:
    """True when a start ends up on the V2 model runner (`VLLM_USE_V2_MODEL_RUNNER` unset, 0, 1), on CUDA."""
    if deployment.runner != "auto":
        return deployment.runner == "v2"
    version, architecture = parse_version(deployment.version), deployment.architecture
    if version >= _V2_FOR_ALL:
        return True
    dense = not architecture.is_hybrid and not architecture.has_experts
    plain = all(layer.attention.dtype == "bf16" for layer in architecture.layers)
    defaults = (
        (Version(0, 22), architecture.architecture == "Qwen3ForCausalLM" and dense and plain),
        (_V2_SIDE_STREAM, architecture.architecture in V2_LISTED),
        (Version(0, 26), dense),
        (Version(0, 27, 1), architecture.architecture == "KimiK3ForConditionalGeneration"),
    )
    return any(version >= since and is_meant for since, is_meant in defaults)

"""Which of the four regimes a vLLM start ends up in.

Decision: what a person writes (version, runner, async flag) and what the engine does are two things: it may switch
async off silently or refuse. This table turns one into the other; `pipelining.py` says what the result means.

Source: vLLM 0.32.0 `config/vllm.py` (use_v2_model_runner, async_scheduling, max_concurrent_batches), read for 0.19.1,
0.22.1, 0.24.0, 0.26.0, 0.27.1, 0.28.0, 0.30.0, 0.31.0 and 0.33.0 as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.engines.deployment import Deployment
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.engines.vllm.models import V2_LISTED
from partitune.engines.vllm.pipelining import Regime
from partitune.errors import SpecError
from partitune.models.architecture import Ffn

READ = VersionRange("vLLM", oldest=Version(0, 19), newest=Version(0, 33))
RUNNERS = ("auto", "v1", "v2")
_CHUNKS_FLOW = Version(0, 20)  # PR 38726: in `v1/worker/gpu_model_runner.py` of 0.20.0, not of 0.19.1
REFUSED_SINCE = Version(0, 31)  # V1 runner with pipeline and async scheduling (PR 56250)
_V2_FOR_ALL = Version(0, 30)
_V2_SIDE_STREAM = Version(0, 24)  # PR 42187


@dataclass(frozen=True, slots=True)
class RegimeChoice:
    """Which way a start of vLLM keeps its pipeline busy, and how it came about."""

    regime: Regime
    slots: int  # batches that may be in flight
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
    elif stages > 1 and not v2 and version >= REFUSED_SINCE:
        chosen = Regime.SYNC_V1
        if asynchronous:
            refusal = (
                f"async_scheduling: true with the V1 model runner and {stages} stages is refused since vLLM "
                f"{REFUSED_SINCE}; leave it out, set it to false, or use runner v2"
            )
        if asynchronous is None:
            notes += ("async scheduling is switched off silently: the V1 model runner has none with a pipeline",)
    else:
        chosen = Regime.SYNC_V1 if asynchronous is False else Regime.ASYNC_V1
        if v2:
            notes += ("the V2 runner before 0.24 broadcasts sampled tokens on the main stream, like the V1 runner",)
    chunks = chosen is Regime.ASYNC_V1 and version < _CHUNKS_FLOW
    return RegimeChoice(chosen, chosen.queue_slots(stages), notes, refusal, chunks)


def runs_v2(deployment: Deployment) -> bool:
    """True when a start ends up on the V2 model runner (`VLLM_USE_V2_MODEL_RUNNER` unset, 0, 1), on CUDA."""
    if deployment.runner != "auto":
        return deployment.runner == "v2"
    version, architecture = parse_version(deployment.version), deployment.architecture
    if version >= _V2_FOR_ALL:
        return True
    dense = not architecture.is_hybrid and all(layer.ffn.kind is not Ffn.MOE for layer in architecture.layers)
    plain = all(layer.attention.dtype == "bf16" for layer in architecture.layers)
    defaults = (
        (Version(0, 22), architecture.architecture == "Qwen3ForCausalLM" and dense and plain),
        (_V2_SIDE_STREAM, architecture.architecture in V2_LISTED),
        (Version(0, 26), dense),
        (Version(0, 27, 1), architecture.architecture == "KimiK3ForConditionalGeneration"),
    )
    return any(version >= since and is_meant for since, is_meant in defaults)

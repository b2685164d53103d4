"""Which of the four regimes a vLLM start ends up in.

Decision: what a person writes (version, runner, async flag) and what the engine does are two things: it may switch
async off silently or refuse. This table turns one into the other; `regimes.py` says what the result means.

Source: vLLM 0.32.0 `config/vllm.py` (use_v2_model_runner, async_scheduling, max_concurrent_batches), read for 0.19.1,
0.22.1, 0.24.0, 0.26.0, 0.27.1, 0.28.0, 0.30.0, 0.31.0 and 0.33.0 as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.engines.versions import Version
from partitune.engines.vllm.pipelining import Regime
from partitune.models.architecture import Architecture, Ffn

RUNNERS = ("auto", "v1", "v2")
REFUSED_SINCE = Version(0, 31)  # V1 runner with pipeline and async scheduling (PR 56250)
_V2_FOR_ALL = Version(0, 30)
_V2_FOR_DENSE = Version(0, 26)
_V2_K3 = Version(0, 27, 1)
_V2_SIDE_STREAM = Version(0, 24)  # PR 42187
_V2_FIRST_DEFAULT = Version(0, 22)

_V2_LISTED = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "GraniteMoeForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
    }
)


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """Regime and how it came about; `refusal` is empty when the engine starts."""

    regime: Regime
    notes: tuple[str, ...]
    refusal: str


def choose_regime(
    version: Version, architecture: Architecture, stages: int, runner: str, async_scheduling: bool | None
) -> RunnerChoice:
    """Regime of a start.

    Args:
        version: the engine's release.
        architecture: decides the default runner before 0.30.
        stages: pipeline stages.
        runner: `auto`, `v1` or `v2` (`VLLM_USE_V2_MODEL_RUNNER` unset, 0, 1).
        async_scheduling: the flag; None: the engine's default.
    """
    v2 = runs_v2(version, architecture, runner)
    if v2 and version >= _V2_SIDE_STREAM:
        return RunnerChoice(Regime.R4 if async_scheduling is False else Regime.R3, (), "")
    notes: tuple[str, ...] = ()
    if v2:
        notes += ("the V2 runner before 0.24 broadcasts sampled tokens on the main stream, like the V1 runner",)
    pipelined_v1 = stages > 1 and not v2
    if pipelined_v1 and version >= REFUSED_SINCE:
        if async_scheduling:
            return RunnerChoice(
                Regime.R2,
                notes,
                f"async_scheduling: true with the V1 model runner and {stages} stages is refused since vLLM "
                f"{REFUSED_SINCE}; leave it out, set it to false, or use runner v2",
            )
        if async_scheduling is None:
            notes += ("async scheduling is switched off silently: the V1 model runner has none with a pipeline",)
        return RunnerChoice(Regime.R2, notes, "")
    return RunnerChoice(Regime.R2 if async_scheduling is False else Regime.R1, notes, "")


def runs_v2(version: Version, architecture: Architecture, runner: str) -> bool:
    """True when a start with `runner` (`auto`, `v1`, `v2`) ends up on the V2 model runner."""
    return _default_is_v2(version, architecture) if runner == "auto" else runner == "v2"


def _default_is_v2(version: Version, architecture: Architecture) -> bool:
    """True when the release starts this model on the V2 runner by itself (CUDA)."""
    if version >= _V2_FOR_ALL:
        return True
    dense = not architecture.is_hybrid and all(layer.ffn.kind is not Ffn.MOE for layer in architecture.layers)
    if version >= _V2_FOR_DENSE and dense:
        return True
    if version >= _V2_SIDE_STREAM and architecture.architecture in _V2_LISTED:
        return True
    if version >= _V2_K3 and architecture.architecture == "KimiK3ForConditionalGeneration":
        return True
    plain = all(layer.attention.dtype == "bf16" for layer in architecture.layers)
    return version >= _V2_FIRST_DEFAULT and architecture.architecture == "Qwen3ForCausalLM" and dense and plain

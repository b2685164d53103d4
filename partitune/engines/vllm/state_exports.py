"""Whether a prompt's last reusable state is saved inside its last chunk, which takes one block more of a request.

Decision: it hangs on the kernel that computes prompts, and no flag says which one runs: `auto` chooses by release, GPU
and the model's shapes. So the choice of every kernel that exports stands here with its release, and the planner (blocks
of a request, size of a block) and the scheduler (where a prompt is cut) ask one function. What nobody can know before
the start, the CUDA of the build, is assumed and said.

Source: vLLM 0.29 to 0.33 `models/kimi_k3/nvidia/kda.py` (resolve_kda_prefill_backend, is_flashkda_supported),
`models/kimi_k3/amd/kda.py`; 0.32, 0.33 `model_executor/layers/mamba/mamba_mixer2.py` (get_kv_cache_spec); 0.33
`model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py` (_resolve_gdn_prefill_backend), `mamba/abstract.py`. Of these
GDN alone has its blocks sized by what it exports (get_prefill_checkpoint_alignment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import mapping
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.defaults import effective_flags
from partitune.hardware.generations import Generation
from partitune.models.architecture import STATE_KINDS, Attention, AttentionBlock

_KDA_SINCE, _FUSED_SINCE, _MAMBA2_SINCE, _GDN_SINCE = Version(0, 29), Version(0, 32), Version(0, 32), Version(0, 33)
#: What the kernels are compiled for.
_KEY_WIDTH = 128
#: Classes of the first Mamba, which exports nothing; the others with `Attention.MAMBA` run MambaMixer2.
_FIRST_MAMBA = frozenset({"JambaForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM"})
_CUDA_13 = (
    "prompts are taken to run on FlashInfer's kernel of gated delta nets, as in PyPI's wheel, which is built with CUDA "
    "13: a build with CUDA 12 exports no states, so that a request holds 2 blocks of a state group instead of 3 "
    "[vLLM 0.33 layers/mamba/gdn/qwen_gdn_linear_attn.py]"
)


@dataclass(frozen=True, slots=True)
class StateExport:
    """What becomes of the state at the last block border that a prompt's last chunk runs over."""

    checkpoint_blocks: int = 0  # of a request in every state group, beside those that it holds anyway
    alignment: int | None = None  # tokens from a chunk's start to that border are a multiple of it; None: no export
    block_multiple: int = 1  # tokens that blocks are a multiple of for its sake
    note: str = ""  # what was assumed, as a sentence without its full stop


_NONE = StateExport()


def state_export(deployment: Deployment) -> StateExport:
    """What a start exports: nothing unless states are cached (mode `align`) and every layer with one can."""
    flags = effective_flags(deployment)
    blocks = {layer.attention.kind: layer.attention for layer in deployment.architecture.layers}
    mixers = [block for kind, block in blocks.items() if kind in STATE_KINDS]
    if flags["mamba_cache_mode"] != "align" or len(mixers) != 1 or mixers[0].kind not in _EXPORTS:
        return _NONE
    return _EXPORTS[mixers[0].kind](deployment, mixers[0], flags)


def _kda(deployment: Deployment, block: AttentionBlock, flags: Mapping[str, FlagValue]) -> StateExport:
    """FlashKDA, the choice of `auto` on Hopper and Blackwell; on AMD the fused kernel, where it is asked for."""
    version, backend = parse_version(deployment.version), _backend(flags, "kda_prefill_backend")
    if not block.bounded_gate:
        return _NONE
    if backend == "fused" and deployment.gpu.generation is Generation.CDNA4 and version >= _FUSED_SINCE:
        return StateExport(1, 64)
    flash = backend in ("auto", "flashkda") and deployment.gpu.generation.value.capability in (9, 10, 12)
    fits = block.key_width == _KEY_WIDTH and flags.get("dtype", "auto") in ("auto", "bfloat16")
    return StateExport(1, 16) if flash and fits and version >= _KDA_SINCE else _NONE


def _gdn(deployment: Deployment, block: AttentionBlock, flags: Mapping[str, FlagValue]) -> StateExport:
    """FlashInfer's kernel, the choice of `auto` on Hopper and, with CUDA 13 and such keys, on Blackwell."""
    capability = deployment.gpu.generation.value.capability
    asked = _backend(flags, "gdn_prefill_backend") in ("auto", "flashinfer")
    fits = capability == 9 or (capability in (10, 12) and block.key_width == _KEY_WIDTH)
    if not (asked and fits) or parse_version(deployment.version) < _GDN_SINCE:
        return _NONE
    # The engine asks for whole blocks, which are multiples of this.
    return StateExport(1, 64, 64, "" if capability == 9 else _CUDA_13)


def _mamba(deployment: Deployment, _: AttentionBlock, __: Mapping[str, FlagValue]) -> StateExport:
    """Mamba2 has one implementation, on every GPU."""
    second = deployment.architecture.architecture not in _FIRST_MAMBA
    return StateExport(1, 1) if second and parse_version(deployment.version) >= _MAMBA2_SINCE else _NONE


_EXPORTS: Mapping[Attention, Callable[[Deployment, AttentionBlock, Mapping[str, FlagValue]], StateExport]] = {
    Attention.KDA: _kda,
    Attention.GDN: _gdn,
    Attention.MAMBA: _mamba,
}


def _backend(flags: Mapping[str, FlagValue], name: str) -> str:
    """A kernel as its own flag names it, which goes over `additional_config`."""
    given = flags.get(name)
    return str(mapping(flags.get("additional_config")).get(name, "auto") if given is None else given).strip().lower()

"""From a layer's blocks to measured kernels: which matrices are one GEMM, which kernel mixes the tokens.

Decision: a block is looked up part by part (projections, mixer, shared and routed experts), and every part for itself
is either measured or left to the fitted roofline, so that one missing shape does not cost a whole block its
measurements. Nothing is stretched: a head shape or number format that no table has is not looked up as another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from partitune.costs.cost_model import Batch
from partitune.costs.measured.grids import Grid, Surface
from partitune.costs.measured.operations import Kernels
from partitune.models.architecture import Attention, AttentionBlock, FfnBlock, Matrix

#: Matrices the engines multiply as one, by the same input (vLLM 0.32 QKVParallelLinear, MergedColumnParallelLinear and
#: `fused_qkv_a_proj`; SGLang 0.5.23 the same).
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "qkv_a"),
}
#: Matrices cut by their inputs under tensor parallelism; the others are cut by their outputs.
_CUT_BY_INPUTS = ("o_proj", "down_proj", "out_proj")
#: A matrix narrower than a tile of the tensor cores takes as long as one of this width.
_TILE = 16
_SHARED = "shared_experts."
_EXPERT_TYPES = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4": "int4_wo",
    "mxfp4": "w4a16_mxfp4",
    "nvfp4": "nvfp4",
}
#: The one choice between two kernels for the same weights that tables know.
_MXFP8_ACTIVATIONS = ("mxfp4", "w4a8_mxfp4_mxfp8")
#: Outputs and inputs of the MLA block that was measured, per head where it is split (DeepSeek-V3).
_MLA_WIDTHS = {"q_a_proj": (1536, 7168), "kv_a_proj_with_mqa": (576, 7168)}
_MLA_HEAD_WIDTHS = {"q_b_proj": (192, 1536), "kv_b_proj": (256, 512)}
_MLA_MATRICES = (*_MLA_WIDTHS, *_MLA_HEAD_WIDTHS, "o_proj")
#: Sparse attention blocks that were measured: outputs and inputs of q_a_proj -> class name of the package.
_SPARSE_BLOCKS = {(1536, 7168): "DeepseekV32ForCausalLM", (2048, 6144): "GlmMoeDsaForCausalLM"}


#: Seconds that mixing the tokens of a batch takes, prompts and decodes one after the other.
Mixer = Callable[[Batch], float]


@dataclass(frozen=True, slots=True)
class ContextMixer:
    """Attention whose time depends on the context."""

    prompts: Surface
    decodes: Surface
    whole_block: bool  # projections are inside

    def __call__(self, batch: Batch) -> float:
        """Seconds for `batch`; beside a prompt, decodes do not read a whole block's weights again."""
        seconds = 0.0
        if batch.prefill_tokens:
            seconds = self.prompts(batch.prefill_tokens, batch.prefill_pairs / batch.prefill_tokens)
        if batch.decode_tokens:
            rows = batch.decode_tokens + (batch.padding if self.whole_block else 0)
            seconds += self.decodes(rows, batch.decode_context / rows)
            if self.whole_block and batch.prefill_tokens:
                seconds -= self.decodes(1, 1)
        return seconds


@dataclass(frozen=True, slots=True)
class StateMixer:
    """Attention over a fixed state."""

    prompts: Grid
    decodes: Grid

    def __call__(self, batch: Batch) -> float:
        """Seconds of the measured kernels for `batch`, prompts and decodes one after the other."""
        return self.prompts(batch.prefill_tokens) + self.decodes(batch.decode_tokens)


@dataclass(frozen=True, slots=True)
class MeasuredAttention:
    """What of an attention block was measured."""

    projections: Grid | None  # by rows
    mixer: Mixer | None


def measured_attention(block: AttentionBlock, hidden: int, tp: int, kernels: Kernels) -> MeasuredAttention:
    """The measured parts of a token mixer on one of `tp` ranks."""
    if not block.matrices or block.heads % tp:
        return MeasuredAttention(None, None)
    mixer: Mixer | None = None
    matrices: Iterable[Matrix] = block.matrices
    if _is_measured_latent(block):
        mixer = _context(kernels.latent_module(block.heads // tp, block.matrices[0].dtype, block.heads), whole=True)
        if mixer is not None:
            matrices = [one for one in block.matrices if one.name not in _MLA_MATRICES]
        else:
            mixer = _context(kernels.latent_kernels(block.heads // tp), whole=False)
    elif block.kind is Attention.SPARSE and block.shards == 1 and block.indexer_flops_per_pair:
        query = next(((one.outputs, one.inputs) for one in block.matrices if one.name == "q_a_proj"), (0, 0))
        if architecture := _SPARSE_BLOCKS.get(query):
            mixer = _context(
                kernels.sparse_module(block.heads // tp, block.matrices[0].dtype, architecture), whole=True
            )
            matrices = () if mixer is not None else matrices
    elif block.kind in (Attention.FULL, Attention.SLIDING):
        width = round(block.flops_per_pair / (4 * block.heads))
        if block.kv_bytes_per_token == 4 * block.shards * width:
            shape = (block.heads // tp, max(1, block.shards // tp), width, block.window)
            mixer = _context(kernels.grouped_query(*shape), whole=False)
    elif block.kind in (Attention.KDA, Attention.GDN):
        mixer = _state(block, hidden, tp, kernels)
    projections = _gemms(matrices, tp, kernels, block.shards)
    if projections is None and isinstance(mixer, ContextMixer) and mixer.whole_block:
        mixer = None  # the fitted projections hold all of them
    return MeasuredAttention(projections, mixer)


def _is_measured_latent(block: AttentionBlock) -> bool:
    if block.kind is not Attention.MLA:
        return False
    shapes = {one.name: (one.outputs, one.inputs) for one in block.matrices}
    per_head = {name: (outputs * block.heads, inputs) for name, (outputs, inputs) in _MLA_HEAD_WIDTHS.items()}
    return all(shapes.get(name) == shape for name, shape in (_MLA_WIDTHS | per_head).items())


def _context(found: tuple[Surface | None, Surface | None], *, whole: bool) -> ContextMixer | None:
    prompts, decodes = found
    return None if prompts is None or decodes is None else ContextMixer(prompts, decodes, whole)


def _state(block: AttentionBlock, hidden: int, tp: int, kernels: Kernels) -> StateMixer | None:
    shapes = {one.name: (one.outputs, one.inputs) for one in block.matrices}
    if block.kind is Attention.KDA:
        width = shapes["o_proj"][1] // block.heads
        keys, operation = block.heads, "KDAKernel"
    else:
        values = shapes["out_proj"][1]
        width = values // block.heads  # as wide as a key head in every published model
        keys, operation = (shapes["in_proj_qkvz"][0] - 2 * values) // (2 * width), "GDNKernel"
    if keys % tp:
        return None
    prompts, decodes = kernels.state(operation, hidden, keys // tp, block.heads // tp, width, width)
    return None if prompts is None or decodes is None else StateMixer(prompts, decodes)


def _gemms(matrices: Iterable[Matrix], tp: int, kernels: Kernels, kv_heads: int = 1) -> Grid | None:
    """All matrices one after the other, fused as the engines do; None where one was not measured."""
    shapes: dict[tuple[str, int, str], int] = {}
    for one in matrices:
        leaf = one.name.rpartition(".")[2]
        outputs, inputs = one.outputs, one.inputs
        if not one.whole:
            if leaf in _CUT_BY_INPUTS:
                inputs //= tp
            else:
                outputs //= min(tp, kv_heads) if leaf in ("k_proj", "v_proj") else tp
        key = (_FUSED.get(leaf, one.name), inputs, one.dtype)
        shapes[key] = shapes.get(key, 0) + outputs
    return Grid.sum(kernels.gemm(max(outputs, _TILE), inputs, dtype) for (_, inputs, dtype), outputs in shapes.items())


@dataclass(frozen=True, slots=True)
class MeasuredFfn:
    """What of a feed-forward block was measured, by rows."""

    common: Grid | None  # a dense MLP, or what every token passes before its experts
    shared: Grid | None  # shared experts, where the block has them
    routed: Grid | None


def measured_ffn(
    block: FfnBlock, tp: int, expert_cut: int, expert_ranks: int, kernels: Kernels, expert_kernel: str
) -> MeasuredFfn:
    """The measured parts of a feed-forward block on one of `tp` ranks.

    Its experts are spread over `expert_ranks` ranks, each of them cut over `expert_cut`.
    """
    shared = [one for one in block.matrices if one.name.startswith(_SHARED)]
    common = [one for one in block.matrices if not one.name.startswith(_SHARED)]
    routed = None
    if block.expert_matrices:
        shapes = {one.name: one for one in block.expert_matrices}
        up = shapes["up_proj"]
        dtype = expert_kernel if (up.dtype, expert_kernel) == _MXFP8_ACTIVATIONS else _EXPERT_TYPES.get(up.dtype)
        if dtype is not None:
            routed = kernels.experts(
                up.inputs,
                up.outputs,
                block.experts,
                block.experts_per_token,
                tp=expert_cut,
                ep=expert_ranks,
                dtype=dtype,
                gated="gate_proj" in shapes,
            )
    common_grid, shared_grid = (_gemms(matrices, tp, kernels) for matrices in (common, shared))
    if not common or common_grid is None or shared_grid is None:
        return MeasuredFfn(None, None, routed)  # the fitted curve covers both
    return MeasuredFfn(common_grid, shared_grid if shared else None, routed)

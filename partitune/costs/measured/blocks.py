"""From a layer's blocks to measured kernels: which matrices are one GEMM, which kernel mixes the tokens.

Decision: a block is looked up part by part (projections, mixer, shared and routed experts), and every part for itself
is either measured or left to the fitted roofline, so that one missing shape does not cost a whole block its
measurements. Nothing is stretched: a head shape or number format that no table has is not looked up as another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partitune.costs.measured.grids import ContextMixer, Grid, Mixer, StateMixer
from partitune.costs.measured.operations import FORMATS, Kernels
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
_EXPERT_FORMATS = {**FORMATS, "mxfp4": "w4a16_mxfp4"}
#: The one choice between two kernels for the same weights that tables know.
_MXFP8_ACTIVATIONS = ("mxfp4", "w4a8_mxfp4_mxfp8")
#: Outputs and inputs of the MLA block that was measured, per head where it is split (DeepSeek-V3).
_MLA_WIDTHS = {"q_a_proj": (1536, 7168), "kv_a_proj_with_mqa": (576, 7168)}
_MLA_HEAD_WIDTHS = {"q_b_proj": (192, 1536), "kv_b_proj": (256, 512)}
_MLA_MATRICES = (*_MLA_WIDTHS, *_MLA_HEAD_WIDTHS, "o_proj")
#: Sparse attention blocks that were measured: outputs and inputs of q_a_proj -> class name of the package.
_SPARSE_BLOCKS = {(1536, 7168): "DeepseekV32ForCausalLM", (2048, 6144): "GlmMoeDsaForCausalLM"}


def measured_attention(
    block: AttentionBlock, hidden: int, tp: int, kernels: Kernels | None
) -> tuple[Grid | None, Mixer | None]:
    """What of a token mixer was measured on one of `tp` ranks: its projections, by rows, and the mixing itself."""
    if kernels is None or not block.matrices or block.heads % tp:
        return None, None
    heads, dtype = block.heads // tp, block.matrices[0].dtype
    shapes = {matrix.name: (matrix.outputs, matrix.inputs) for matrix in block.matrices}
    mixer: Mixer | None = None
    if block.kind is Attention.MLA and _is_measured_latent(shapes, block.heads):
        mixer = kernels.latent(heads, dtype, block.heads)
    elif block.kind is Attention.SPARSE and block.shards == 1 and block.indexer_flops_per_pair:
        if architecture := _SPARSE_BLOCKS.get(shapes.get("q_a_proj", (0, 0))):
            mixer = kernels.sparse_module(heads, dtype, architecture)
    elif block.kind in (Attention.FULL, Attention.SLIDING):
        width = round(block.flops_per_pair / (4 * block.heads))
        if block.kv_bytes_per_token == 4 * block.shards * width:
            mixer = kernels.grouped_query(heads, max(1, block.shards // tp), width, block.window)
    elif block.kind in (Attention.KDA, Attention.GDN):
        mixer = _state(block, shapes, hidden, tp, kernels)
    matrices: Iterable[Matrix] = block.matrices
    whole_block = isinstance(mixer, ContextMixer) and mixer.whole_block
    if whole_block:
        latent = block.kind is Attention.MLA
        matrices = [matrix for matrix in matrices if latent and matrix.name not in _MLA_MATRICES]
    projections = _gemms(matrices, tp, kernels, block.shards)
    if projections is None and whole_block:
        mixer = None  # the fitted projections hold all of them
    return projections, mixer


def _is_measured_latent(shapes: Mapping[str, tuple[int, int]], heads: int) -> bool:
    per_head = {name: (outputs * heads, inputs) for name, (outputs, inputs) in _MLA_HEAD_WIDTHS.items()}
    return (_MLA_WIDTHS | per_head).items() <= shapes.items()


def _state(
    block: AttentionBlock, shapes: Mapping[str, tuple[int, int]], hidden: int, tp: int, kernels: Kernels
) -> StateMixer | None:
    if block.kind is Attention.KDA:
        width = shapes["o_proj"][1] // block.heads
        keys, operation = block.heads, "KDAKernel"
    else:
        values = shapes["out_proj"][1]
        width = values // block.heads  # as wide as a key head in every published model
        keys, operation = (shapes["in_proj_qkvz"][0] - 2 * values) // (2 * width), "GDNKernel"
    return None if keys % tp else kernels.state(operation, hidden, keys // tp, block.heads // tp, width)


def _gemms(matrices: Iterable[Matrix], tp: int, kernels: Kernels, kv_heads: int = 1) -> Grid | None:
    """All matrices one after the other, fused as the engines do; None where one was not measured."""
    shapes: dict[tuple[str, int, str], int] = {}
    for matrix in matrices:
        leaf = matrix.name.rpartition(".")[2]
        outputs, inputs = matrix.outputs, matrix.inputs
        if not matrix.whole:
            if leaf in _CUT_BY_INPUTS:
                inputs //= tp
            else:
                outputs //= min(tp, kv_heads) if leaf in ("k_proj", "v_proj") else tp
        key = (_FUSED.get(leaf, matrix.name), inputs, matrix.dtype)
        shapes[key] = shapes.get(key, 0) + outputs
    return Grid.sum(kernels.gemm(max(outputs, _TILE), inputs, dtype) for (_, inputs, dtype), outputs in shapes.items())


def measured_ffn(
    block: FfnBlock, tp: int, expert_cut: int, expert_ranks: int, kernels: Kernels | None, expert_kernel: str
) -> tuple[Grid | None, Grid | None, Grid | None]:
    """What of a feed-forward block was measured on one of `tp` ranks, by rows.

    A dense MLP (or what every token passes before its experts), shared experts, and routed ones, which are spread over
    `expert_ranks` ranks, each of them cut over `expert_cut`.
    """
    if kernels is None:
        return None, None, None
    shared = [matrix for matrix in block.matrices if matrix.name.startswith(_SHARED)]
    common = [matrix for matrix in block.matrices if not matrix.name.startswith(_SHARED)]
    routed = None
    if block.expert_matrices:
        shapes = {matrix.name: matrix for matrix in block.expert_matrices}
        up = shapes["up_proj"]
        dtype = expert_kernel if (up.dtype, expert_kernel) == _MXFP8_ACTIVATIONS else _EXPERT_FORMATS.get(up.dtype)
        if dtype is not None:
            shape = up.inputs, up.outputs, block.experts, block.experts_per_token
            gated = "gate_proj" in shapes
            routed = kernels.experts(*shape, tp=expert_cut, ep=expert_ranks, dtype=dtype, gated=gated)
    common_grid, shared_grid = (_gemms(matrices, tp, kernels) for matrices in (common, shared))
    if not common or common_grid is None or shared_grid is None:
        return None, None, routed  # the fitted curve covers both
    return common_grid, shared_grid if shared else None, routed

"""Token mixers with a fixed state per sequence: KDA, gated delta net, Mamba, Mamba2, lightning attention.

Decision: their memory is a constant per sequence and their weights differ by family, so each is one function from its
shape to an AttentionBlock. State shapes and types are those of vLLM 0.32
`model_executor/layers/mamba/mamba_utils.py`: a convolution state of (kernel - 1) 16-bit inputs and a recurrent state
whose element width the caller names.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import Attention, AttentionBlock
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.weight_counter import WeightCounter

_CONV_BYTES = 2
_STATE_TYPES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "auto": 2}


def state_element_bytes(fields: Fields, key: str, default: str) -> int:
    """Bytes of one element of the recurrent state, from the config key that names its type."""
    name = fields.text(key, default)
    if name not in _STATE_TYPES:
        raise fields.wrong(key, name, f"one of {', '.join(_STATE_TYPES)}")
    return _STATE_TYPES[name]


def _block(kind: Attention, counter: WeightCounter, heads: int, state_bytes: int) -> AttentionBlock:
    return AttentionBlock(
        kind=kind,
        **counter.totals(),
        flops_per_pair=0.0,
        kv_bytes_per_token=0,
        shards=heads,
        heads=heads,
        state_bytes=state_bytes,
    )


def kda(
    quantisation: Quantisation, module: str, *, hidden: int, heads: int, width: int, kernel: int, full_rank_gate: bool
) -> AttentionBlock:
    """Kimi delta attention; the state is float32. The narrow halves of its low-rank gates are whole on every TP rank.

    vLLM 0.32 `models/kimi_k3/nvidia/kda.py` (full-rank gate) and `layers/mamba/gdn/kimi_gdn_linear_attn.py`.
    """
    counter = WeightCounter(quantisation, module)
    size = heads * width
    for name in ("q_proj", "k_proj", "v_proj"):
        counter.matrix(name, size, hidden)
    if full_rank_gate:
        counter.matrix("g_proj", size, hidden)
    else:
        counter.matrix("g_a_proj", width, hidden, whole=True)
        counter.matrix("g_b_proj", size, width)
    counter.matrix("f_a_proj", width, hidden, whole=True)
    counter.matrix("f_b_proj", size, width)
    counter.matrix("b_proj", heads, hidden)
    counter.matrix("o_proj", hidden, size)
    counter.vector(3 * size * kernel, bytes_each=4)  # convolution, kept in float32
    counter.vector(size + heads, bytes_each=4)  # dt_bias, A_log
    counter.vector(width, whole=True)  # output norm
    return _block(Attention.KDA, counter, heads, heads * width * width * 4 + 3 * size * (kernel - 1) * _CONV_BYTES)


@dataclass(frozen=True, slots=True)
class DeltaNetShape:
    """Shape of a gated delta net."""

    hidden: int
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    kernel: int
    state_element_bytes: int


def gated_delta_net(quantisation: Quantisation, module: str, shape: DeltaNetShape) -> AttentionBlock:
    """Gated delta net of Qwen3-Next and Qwen3.5; vLLM 0.32 `layers/mamba/gdn/qwen_gdn_linear_attn.py`."""
    counter = WeightCounter(quantisation, module)
    keys, values = shape.key_heads * shape.key_width, shape.value_heads * shape.value_width
    counter.matrix("in_proj_qkvz", 2 * keys + 2 * values, shape.hidden)
    counter.matrix("in_proj_ba", 2 * shape.value_heads, shape.hidden)
    counter.matrix("out_proj", shape.hidden, values)
    counter.vector((2 * keys + values) * shape.kernel)
    counter.vector(2 * shape.value_heads + shape.value_width)
    state = shape.value_heads * shape.value_width * shape.key_width * shape.state_element_bytes
    conv = (2 * keys + values) * (shape.kernel - 1) * _CONV_BYTES
    return _block(Attention.GDN, counter, shape.value_heads, state + conv)


@dataclass(frozen=True, slots=True)
class Mamba2Shape:
    """Shape of a Mamba2 mixer."""

    hidden: int
    heads: int
    width: int
    groups: int
    state: int
    kernel: int
    state_element_bytes: int
    conv_bias: bool = True


def mamba2(quantisation: Quantisation, module: str, shape: Mamba2Shape) -> AttentionBlock:
    """Mamba2 of Nemotron-H; vLLM 0.32 `layers/mamba/mamba_mixer2.py`."""
    counter = WeightCounter(quantisation, module)
    inner = shape.heads * shape.width
    conv = inner + 2 * shape.groups * shape.state
    counter.matrix("in_proj", inner + conv + shape.heads, shape.hidden)
    counter.matrix("out_proj", shape.hidden, inner)
    counter.vector(conv * (shape.kernel + shape.conv_bias))
    counter.vector(3 * shape.heads + inner)  # A, D, dt_bias and the gated norm
    state = shape.heads * shape.width * shape.state * shape.state_element_bytes
    return _block(Attention.MAMBA, counter, shape.heads, state + conv * (shape.kernel - 1) * _CONV_BYTES)


@dataclass(frozen=True, slots=True)
class MambaShape:
    """Shape of a Mamba (first generation) mixer."""

    hidden: int
    inner: int
    state: int
    kernel: int
    dt_rank: int
    state_element_bytes: int
    conv_bias: bool = True
    bias: bool = False


def mamba(quantisation: Quantisation, module: str, shape: MambaShape) -> AttentionBlock:
    """Mamba of Jamba, with Jamba's norms on dt, B and C; vLLM 0.32 `layers/mamba/mamba_mixer.py`."""
    counter = WeightCounter(quantisation, module)
    counter.matrix("in_proj", 2 * shape.inner, shape.hidden, bias=shape.bias)
    counter.matrix("x_proj", shape.dt_rank + 2 * shape.state, shape.inner)
    counter.matrix("dt_proj", shape.inner, shape.dt_rank, bias=True)
    counter.matrix("out_proj", shape.hidden, shape.inner, bias=shape.bias)
    counter.vector(shape.inner * (shape.kernel + shape.conv_bias))
    counter.vector(shape.inner * (shape.state + 1) + shape.dt_rank + 2 * shape.state)
    state = shape.inner * shape.state * shape.state_element_bytes
    return _block(Attention.MAMBA, counter, shape.inner, state + shape.inner * (shape.kernel - 1) * _CONV_BYTES)


def lightning(quantisation: Quantisation, module: str, *, hidden: int, heads: int, width: int) -> AttentionBlock:
    """Lightning attention of MiniMax-Text-01 and M1: one width x width state per head, in the model's 16-bit type."""
    counter = WeightCounter(quantisation, module)
    size = heads * width
    counter.matrix("qkv_proj", 3 * size, hidden)
    counter.matrix("output_gate", size, hidden)
    counter.matrix("out_proj", hidden, size)
    counter.vector(size)
    return _block(Attention.LIGHTNING, counter, heads, heads * width * width * 2)

"""Token mixers with a fixed state per sequence: KDA, gated delta net, Mamba, Mamba2, lightning attention.

Decision: their memory is a constant per sequence and their weights differ by family, so each is one function from its
shape, which says the config keys it is read from, to an AttentionBlock. State shapes and types are those of vLLM 0.32
`model_executor/layers/mamba/mamba_utils.py`: a convolution state of (kernel - 1) 16-bit inputs and a recurrent state
whose element width the caller names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partitune.models.architecture import Attention, AttentionBlock
from partitune.models.attention import HeadShape
from partitune.models.fields import Fields, read_by, read_flag, read_number
from partitune.models.weight_counter import WeightCounter

_CONV_BYTES = 2
_STATE_TYPES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "auto": 2}


def _state_type(name: str, default: str) -> Any:
    """A field of a shape: bytes of one element of the recurrent state, from the config key that names its type."""

    def read(fields: Fields) -> int:
        word = fields.text(name, default)
        if word not in _STATE_TYPES:
            raise fields.wrong(name, word, f"one of {', '.join(_STATE_TYPES)}")
        return _STATE_TYPES[word]

    return read_by(read)


def _block(
    kind: Attention,
    counter: WeightCounter,
    heads: int,
    state: int,
    element_bytes: int,
    conv_inputs: int,
    *,
    key_width: int = 0,
    bounded_gate: bool = False,
) -> AttentionBlock:
    """The mixer of these matrices, with the elements of its recurrent state and the inputs its convolution keeps."""
    return AttentionBlock(
        kind=kind,
        **counter.totals(),
        key_width=key_width,
        bounded_gate=bounded_gate,
        shards=heads,
        heads=heads,
        state_elements=state,
        conv_elements=conv_inputs,
        state_bytes=state * element_bytes + conv_inputs * _CONV_BYTES,
    )


@dataclass(frozen=True, slots=True)
class KdaShape:
    """Shape of Kimi delta attention."""

    hidden: int
    heads: int = read_number("num_heads", high=65_536)
    width: int = read_number("head_dim", high=65_536)
    kernel: int = read_number("short_conv_kernel_size", high=1024)
    full_rank_gate: bool = read_flag("use_full_rank_gate", default=False)
    # vLLM 0.33 `models/kimi_k3/nvidia/kda.py` asserts this range, below 0.
    lower_bound: float | None = read_by(lambda fields: fields.number_or_none("gate_lower_bound", low=-5, high=0))


def kda(counter: WeightCounter, shape: KdaShape) -> AttentionBlock:
    """Kimi delta attention; the state is float32. The narrow halves of its low-rank gates are whole on every TP rank.

    vLLM 0.32 `models/kimi_k3/nvidia/kda.py` (full-rank gate) and `layers/mamba/gdn/kimi_gdn_linear_attn.py`.
    """
    heads, width, hidden = shape.heads, shape.width, shape.hidden
    size = heads * width
    for name in ("q_proj", "k_proj", "v_proj"):
        counter.matrix(name, size, hidden)
    if shape.full_rank_gate:
        counter.matrix("g_proj", size, hidden)
    else:
        counter.matrix("g_a_proj", width, hidden, whole=True)
        counter.matrix("g_b_proj", size, width)
    counter.matrix("f_a_proj", width, hidden, whole=True)
    counter.matrix("f_b_proj", size, width)
    counter.matrix("b_proj", heads, hidden)
    counter.matrix("o_proj", hidden, size)
    counter.vector(3 * size * shape.kernel, bytes_each=4)  # convolution, kept in float32
    counter.vector(size + heads, bytes_each=4)  # dt_bias, A_log
    counter.vector(width, whole=True)  # output norm
    bounded = shape.full_rank_gate and shape.lower_bound is not None
    conv = 3 * size * (shape.kernel - 1)
    return _block(Attention.KDA, counter, heads, size * width, 4, conv, key_width=width, bounded_gate=bounded)


@dataclass(frozen=True, slots=True)
class DeltaNetShape:
    """Shape of a gated delta net."""

    hidden: int = read_number("hidden_size")
    key_heads: int = read_number("linear_num_key_heads", high=65_536)
    value_heads: int = read_number("linear_num_value_heads", high=65_536)
    key_width: int = read_number("linear_key_head_dim", high=65_536)
    value_width: int = read_number("linear_value_head_dim", high=65_536)
    kernel: int = read_number("linear_conv_kernel_dim", high=1024)
    # Qwen3.5 names float32; Qwen3-Next says nothing, so the engine takes 16-bit (vLLM 0.32 `models/config.py`).
    state_element_bytes: int = _state_type("mamba_ssm_dtype", "auto")


def gated_delta_net(counter: WeightCounter, shape: DeltaNetShape) -> AttentionBlock:
    """Gated delta net of Qwen3-Next and Qwen3.5; vLLM 0.32 `layers/mamba/gdn/qwen_gdn_linear_attn.py`."""
    keys, values = shape.key_heads * shape.key_width, shape.value_heads * shape.value_width
    counter.matrix("in_proj_qkvz", 2 * keys + 2 * values, shape.hidden)
    counter.matrix("in_proj_ba", 2 * shape.value_heads, shape.hidden)
    counter.matrix("out_proj", shape.hidden, values)
    counter.vector((2 * keys + values) * shape.kernel)
    counter.vector(2 * shape.value_heads + shape.value_width)
    state = shape.value_heads * shape.value_width * shape.key_width
    conv = (2 * keys + values) * (shape.kernel - 1)
    width, element = shape.key_width, shape.state_element_bytes
    return _block(Attention.GDN, counter, shape.value_heads, state, element, conv, key_width=width)


@dataclass(frozen=True, slots=True)
class Mamba2Shape:
    """Shape of a Mamba2 mixer."""

    hidden: int = read_number("hidden_size")
    heads: int = read_number("mamba_num_heads", high=65_536)
    width: int = read_number("mamba_head_dim", high=65_536)
    groups: int = read_number("n_groups", high=65_536)
    state: int = read_number("ssm_state_size", high=65_536)
    kernel: int = read_number("conv_kernel", high=1024)
    # vLLM 0.32 `models/config.py`, NemotronHForCausalLMConfig: float32 unless the config says otherwise.
    state_element_bytes: int = _state_type("mamba_ssm_cache_dtype", "float32")
    conv_bias: bool = read_flag("use_conv_bias", default=True)


def mamba2(counter: WeightCounter, shape: Mamba2Shape) -> AttentionBlock:
    """Mamba2 of Nemotron-H; vLLM 0.32 `layers/mamba/mamba_mixer2.py`."""
    inner = shape.heads * shape.width
    conv = inner + 2 * shape.groups * shape.state
    counter.matrix("in_proj", inner + conv + shape.heads, shape.hidden)
    counter.matrix("out_proj", shape.hidden, inner)
    counter.vector(conv * (shape.kernel + shape.conv_bias))
    counter.vector(3 * shape.heads + inner)  # A, D, dt_bias and the gated norm
    state = shape.heads * shape.width * shape.state
    return _block(Attention.MAMBA, counter, shape.heads, state, shape.state_element_bytes, conv * (shape.kernel - 1))


@dataclass(frozen=True, slots=True)
class MambaShape:
    """Shape of a Mamba (first generation) mixer."""

    hidden: int
    inner: int
    dt_rank: int
    state: int = read_number("mamba_d_state", default=16, high=65_536)
    kernel: int = read_number("mamba_d_conv", default=4, high=1024)
    state_element_bytes: int = _state_type("mamba_ssm_dtype", "auto")
    conv_bias: bool = read_flag("mamba_conv_bias", default=True)
    bias: bool = read_flag("mamba_proj_bias", default=False)


def mamba(counter: WeightCounter, shape: MambaShape) -> AttentionBlock:
    """Mamba of Jamba, with Jamba's norms on dt, B and C; vLLM 0.32 `layers/mamba/mamba_mixer.py`."""
    counter.matrix("in_proj", 2 * shape.inner, shape.hidden, bias=shape.bias)
    counter.matrix("x_proj", shape.dt_rank + 2 * shape.state, shape.inner)
    counter.matrix("dt_proj", shape.inner, shape.dt_rank, bias=True)
    counter.matrix("out_proj", shape.hidden, shape.inner, bias=shape.bias)
    counter.vector(shape.inner * (shape.kernel + shape.conv_bias))
    counter.vector(shape.inner * (shape.state + 1) + shape.dt_rank + 2 * shape.state)
    state = shape.inner * shape.state
    return _block(
        Attention.MAMBA, counter, shape.inner, state, shape.state_element_bytes, shape.inner * (shape.kernel - 1)
    )


def lightning(counter: WeightCounter, shape: HeadShape) -> AttentionBlock:
    """Lightning attention of MiniMax-Text-01 and M1: one width x width state per head, in the model's 16-bit type."""
    size = shape.heads * shape.width
    counter.matrix("qkv_proj", 3 * size, shape.hidden)
    counter.matrix("output_gate", size, shape.hidden)
    counter.matrix("out_proj", shape.hidden, size)
    counter.vector(size)
    return _block(Attention.LIGHTNING, counter, shape.heads, size * shape.width, 2, 0)

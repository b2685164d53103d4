"""Bytes a token in every type of SGLang's pool, against 0.5.23's own formulas worked out by hand beside each."""

from __future__ import annotations

import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.registry import engine
from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture

SGLANG = engine("sglang")
GIB = 1 << 30
INDEX = 128 + 4


def cell(model: str, card: str, layout: Layout, first: int, **flags: FlagValue) -> int:
    """Bytes of one token on a stage that ends after `first` layers."""
    architecture = load_architecture(model)
    deployment = Deployment("0.5.23", architecture, layout, gpu(card), flags)
    partition = (first, len(architecture.layers) - first)
    return SGLANG.kv_cache(deployment, partition, [80 * GIB] * 2).stage_block_bytes[0]


@pytest.mark.parametrize(
    ("model", "card", "dtype", "entry"),
    [
        ("deepseek-v3.2", "H200", "auto", 1152),
        ("deepseek-v3.2", "B200", "auto", 576),  # FP8 from compute capability 10 on, plain rows for TRT-LLM
        ("deepseek-v3.2", "H200", "fp8_e4m3", 656),
        ("deepseek-v3.2", "B200", "bf16", 1152),
        ("glm-5.2", "RTX-PRO-6000", "fp8_e4m3", 656),  # flashinfer_sparse_mla reads the packed layout
    ],
)
def test_sparse_attention(model: str, card: str, dtype: str, entry: int) -> None:
    assert cell(model, card, Layout(tp=8, pp=2), 3, kv_cache_dtype=dtype) == 3 * (entry + INDEX)


@pytest.mark.parametrize(
    ("card", "dtype", "entry"),
    [("H200", "auto", 1152), ("H200", "bfloat16", 1152), ("H200", "fp8_e4m3", 576), ("H200", "fp8_e5m2", 576),
     ("B200", "nvfp4", 288 + 36), ("H200", "fp4_mx_block16", 288 + 36)],
)  # fmt: skip
def test_latent_attention(card: str, dtype: str, entry: int) -> None:
    assert cell("deepseek-v3", card, Layout(tp=8, pp=2), 3, kv_cache_dtype=dtype) == 3 * entry


@pytest.mark.parametrize(
    ("card", "dtype", "token"),
    [
        ("H200", "auto", 3 * 512),
        ("H200", "fp8_e4m3", 3 * 256),
        ("B200", "mxfp8", 3 * (256 + 8)),
        ("B200", "nvfp4", 3 * (128 + 16)),
        ("RTX-PRO-6000", "nvfp4", 3 * (128 + 16) + 256),  # and an FP8 copy of one layer to prefill from
        ("H200", "fp4_mx_block16", 3 * (128 + 16)),
    ],
)
def test_keys_and_values(card: str, dtype: str, token: int) -> None:
    # 8 KV heads of 128 over 8 ranks
    assert cell("llama-3.1-70b", card, Layout(tp=8, pp=2), 3, kv_cache_dtype=dtype) == token


@pytest.mark.parametrize(
    ("model", "card", "dtype", "reason"),
    [
        ("deepseek-v3.2", "H200", "fp8_e5m2", "bfloat16 and fp8_e4m3 only"),
        ("deepseek-v3", "B200", "mxfp8", "FA4"),
        ("llama-3.1-70b", "H200", "mxfp8", "Blackwell"),
        ("llama-3.1-70b", "H200", "nvfp4", "Blackwell"),
        ("deepseek-v4-flash", "B200", "bfloat16", "packed entries"),
    ],
)
def test_what_sglang_asserts_is_the_reason(model: str, card: str, dtype: str, reason: str) -> None:
    with pytest.raises(SpecError, match=f"kv_cache_dtype: SGLang does not start with '{dtype}' here: .*{reason}"):
        cell(model, card, Layout(tp=8, pp=2), 3, kv_cache_dtype=dtype)


def test_index_keys_are_whole_on_every_context_rank() -> None:
    assert cell("deepseek-v3.2", "H200", Layout(tp=8, pp=2, dcp=4), 3) == 3 * (1152 // 4 + INDEX)


def test_states_take_the_share_that_the_flag_gives_them() -> None:
    architecture = load_architecture("kimi-k3")

    def tokens(**flags: FlagValue) -> int:
        deployment = Deployment("0.5.23", architecture, Layout(tp=8, pp=2), gpu("H200"), flags)
        return SGLANG.kv_cache(deployment, (46, 47), [20 * GIB] * 2).tokens

    assert tokens() == tokens(mamba_full_memory_ratio=0.9)
    assert tokens(mamba_full_memory_ratio=0.1) / tokens() == pytest.approx(1.9 / 1.1, rel=0.01)


def test_a_misspelt_type_is_a_typing_error() -> None:
    start = Deployment("0.5.23", load_architecture("llama-3.1-70b"), Layout(), gpu("H200"), {"kv_cache_dtype": "fp8"})
    (fault,) = SGLANG.check(start)
    assert "kv_cache_dtype: 'fp8' is not one of auto, fp8_e5m2, fp8_e4m3" in fault.message

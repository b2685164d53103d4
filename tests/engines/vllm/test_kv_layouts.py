"""Bytes a token in every type of cache, against vLLM 0.33.0's own formulas worked out by hand beside each."""

from __future__ import annotations

import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.vllm.defaults import effective_flags
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.engines.vllm.kv_groups import Cache, LayerCache
from partitune.engines.vllm.kv_layouts import sixteen_bit_layers
from partitune.engines.vllm.kv_pages import cache_model, layer_token_bytes
from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture
from tests.small_models import architecture


def start(model: str, card: str, tp: int, version: str = "0.33.0", **flags: FlagValue) -> Deployment:
    return Deployment(version, load_architecture(model), Layout(tp=tp), gpu(card), flags)


def token_bytes(model: str, card: str, tp: int, dtype: str, layer: int = 10, version: str = "0.33.0") -> int:
    deployment = start(model, card, tp, version, kv_cache_dtype=dtype)
    return layer_token_bytes(deployment, effective_flags(deployment))[layer]


INDEX = 128 + 4  # of an indexer, FP8 with one float32 scale: DeepseekV32IndexerCache, whatever the cache is


@pytest.mark.parametrize(
    ("card", "dtype", "latent"),
    [
        ("H200", "auto", 2 * 576),
        ("H200", "bfloat16", 2 * 576),
        ("H200", "fp8", 656),  # FlashMLA serves every 8-bit type packed: 512 + 4 * 4 + 64 * 2
        ("H200", "fp8_ds_mla", 656),
        ("B200", "fp8", 576),  # FlashInfer comes first and reads plain rows
        ("B200", "fp8_e4m3", 576),
        ("B200", "fp8_ds_mla", 656),
        ("B200", "nvfp4_ds_mla", 352),  # 256 + 32 + 64
        ("RTX-PRO-6000", "auto", 656),  # its sparse back end has the packed layout only
    ],
)
def test_sparse_attention_packs_its_entries_and_keeps_its_index(card: str, dtype: str, latent: int) -> None:
    assert token_bytes("deepseek-v3.2", card, 8, dtype) == latent + INDEX


@pytest.mark.parametrize(
    ("dtype", "head"),
    [
        ("auto", 2 * 256),
        ("fp8", 256),
        ("fp8_e5m2", 256),
        ("int8_per_token_head", 256 + 2 * 4),  # one float32 beside the key and one beside the value
        ("fp8_per_token_head", 256 + 2 * 4),
        ("int4_per_token_head", 128 + 2 * 4),
        ("nvfp4", 2 * (64 + 8)),  # nvfp4_kv_cache_full_dim
        ("turboquant_k8v4", 128 + 64 + 4),
        ("turboquant_4bit_nc", 64 + 2 + 64 + 4),
        ("turboquant_k3v4_nc", 48 + 2 + 64 + 4),
        ("turboquant_3bit_nc", 48 + 2 + 48 + 4),
    ],
)
@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (4, 2), (16, 1)])
def test_keys_and_values_with_their_scales(dtype: str, head: int, tp: int, heads: int) -> None:
    assert token_bytes("llama-3.1-70b", "H200", tp, dtype) == heads * head


@pytest.mark.parametrize(
    ("model", "card", "dtype", "reason"),
    [
        ("deepseek-v3.2", "H200", "nvfp4_ds_mla", "data-centre Blackwell only"),
        ("deepseek-v3", "H200", "fp8_ds_mla", "sparse attention"),
        ("deepseek-v3", "H200", "fp8_e5m2", "no back end of latent attention"),
        ("deepseek-v3", "H200", "int8_per_token_head", "no back end of latent attention"),
        ("llama-3.1-70b", "H200", "fp8_ds_mla", "keys and values"),
        ("llama-3.1-70b", "H200", "fp8_inc", "Gaudi"),
        ("llama-3.1-70b", "B200", "ultraquant_4bit", "AMD"),
        ("deepseek-v4-flash", "B200", "bfloat16", "packed entries"),
    ],
)
def test_a_type_that_no_kernel_takes_says_why(model: str, card: str, dtype: str, reason: str) -> None:
    with pytest.raises(SpecError, match=f"kv_cache_dtype: '{dtype}' cannot be planned: .*{reason}"):
        token_bytes(model, card, 1, dtype)


def test_every_type_of_the_flag_is_planned_for_some_layer_or_says_why() -> None:
    planned, reasons = set(), []
    for dtype in VLLM_FLAGS["kv_cache_dtype"].choices:
        for model in ("deepseek-v3.2", "deepseek-v3", "llama-3.1-70b"):
            try:
                planned |= {dtype} if token_bytes(model, "B200", 1, dtype) else set()
            except SpecError as refused:
                reasons.append(str(refused))
    assert len(planned) == len(VLLM_FLAGS["kv_cache_dtype"].choices) - 5  # of other vendors' GPUs
    assert not [reason for reason in reasons if "is not known" in reason]


def test_an_index_is_whole_on_every_rank() -> None:
    # MiniMax-M3 (vLLM 0.32 `MinimaxM3QKVParallelLinearWithIndexer`): one key head of 128 beside 4 KV heads of 128.
    per_rank = [token_bytes("minimax-m3", "H200", tp, "auto") for tp in (1, 4)]
    assert per_rank == [4 * 512 + 256, 512 + 256]
    assert token_bytes("minimax-m3", "H200", 4, "fp8") == 256 + 256


def test_packed_entries_are_no_smaller_for_fp8() -> None:
    assert token_bytes("deepseek-v4-flash", "H200", 1, "fp8") == token_bytes("deepseek-v4-flash", "H200", 1, "auto")


@pytest.mark.parametrize(("card", "version", "entry"), [("B200", "0.32.0", 576), ("B200", "0.31.0", 1152),
                                                        ("H200", "0.33.0", 1152)])  # fmt: skip
def test_glm_keeps_fp8_by_default_on_data_centre_blackwell(card: str, version: str, entry: int) -> None:
    assert token_bytes("glm-5.2", card, 8, "auto", 0, version) == entry + INDEX


def test_turboquant_leaves_two_layers_on_either_end_in_sixteen_bits() -> None:
    caches = cache_model(start("llama-3.1-70b", "H200", 8, kv_cache_dtype="turboquant_k8v4")).layers
    # The block is raised until a small page holds 16 tokens of a large one: 16 * 512 bytes over 196 a token.
    assert caches[1] == caches[78] == LayerCache(Cache.TOKENS, 48 * 512, 48)
    assert caches[2] == caches[77] == LayerCache(Cache.TOKENS, 48 * 196, 48)


def test_layers_are_skipped_by_number_and_by_kind() -> None:
    windows = Deployment("0.33.0", architecture("fw" * 4, window=128), Layout(), gpu("B200"),
                         {"kv_cache_dtype": "nvfp4", "kv_cache_dtype_skip_layers": "sliding_window"})  # fmt: skip
    full, window = cache_model(windows).layers[:2]
    # 8 heads of 128: 4096 bytes a token in 16 bits, 8 * 2 * (64 + 8) = 1152 in four.
    assert full == LayerCache(Cache.TOKENS, 64 * 1152, 64)
    assert window == LayerCache(Cache.WINDOW, 64 * 1152, 16, 128)
    numbered = start("llama-3.1-70b", "B200", 8, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers="0,3")
    assert sixteen_bit_layers(numbered, effective_flags(numbered)) == {0, 3}
    with pytest.raises(SpecError, match=r"kv_cache_dtype_skip_layers: '80' is no layer; allowed: 0 \.\.\. 79"):
        cache_model(start("llama-3.1-70b", "B200", 8, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers="80"))

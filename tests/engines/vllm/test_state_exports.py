"""Which start exports states inside a prompt's last chunk: the engine's choice of kernel, read in its source."""

from __future__ import annotations

from functools import cache

import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.vllm.engine import ENGINE
from partitune.engines.vllm.kv_pages import cache_model
from partitune.engines.vllm.kv_planning import blocks_per_request, kv_cache
from partitune.engines.vllm.scheduler.settings import vllm_settings
from partitune.engines.vllm.state_exports import state_export
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture
from partitune.models.reader import load_architecture
from partitune.planning.caveats import caveats
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace

GIB = 1 << 30
read = cache(load_architecture)


def start(model: Architecture | str, card: str = "H200", version: str = "0.33.0", **flags: FlagValue) -> Deployment:
    architecture = read(model) if isinstance(model, str) else model
    return Deployment(version, architecture, Layout(tp=2), gpu(card), {"max_model_len": 32768, **flags})


K3, NEXT, NEMOTRON = "kimi-k3", "qwen3-next-80b", "nemotron-h-56b"
TRITON = {"kda_prefill_backend": "triton", "gdn_prefill_backend": "triton"}


@pytest.mark.parametrize(
    ("deployment", "alignment"),
    [
        # FlashKDA: compute capability 9, 10 and 12, keys of 128, a lower bound of the gate, bfloat16; since 0.29.
        (start(K3), 16),
        (start(K3, "B300"), 16),
        (start(K3, "RTX-PRO-6000"), 16),
        (start(K3, "A100-80GB"), None),
        (start(K3, version="0.28.0"), None),
        (start(K3, version="0.29.0"), 16),
        (start(K3, **TRITON), None),
        (start(K3, "B300", kda_prefill_backend="flashinfer"), None),
        (start(K3, dtype="float16"), None),
        (start(K3, enable_prefix_caching=False), None),
        (start(K3, mamba_cache_mode="none"), None),
        (start(K3, "MI355X"), None),  # AITER's kernel, for states in float32
        (start(K3, "MI355X", kda_prefill_backend="fused"), 64),
        (start("kimi-linear-48b"), None),  # KimiLinearGatedDeltaNetAttention
        # FlashInfer: any keys on Hopper, keys of 128 under CUDA 13 on Blackwell; since 0.33.
        (start(NEXT), 64),
        (start(NEXT, "B200"), 64),
        (start(NEXT, "RTX-PRO-6000"), 64),
        (start(NEXT, "A100-80GB"), None),
        (start(NEXT, version="0.32.0"), None),
        (start(NEXT, **TRITON), None),
        (start(NEXT, additional_config='{"gdn_prefill_backend": "triton"}'), None),
        (start(NEXT, additional_config='{"gdn_prefill_backend": "triton"}', gdn_prefill_backend="flashinfer"), 64),
        # MambaMixer2: everywhere, at any token; since 0.32. The first Mamba and lightning attention never.
        (start(NEMOTRON), 1),
        (start(NEMOTRON, "A100-80GB", "0.32.0"), 1),
        (start(NEMOTRON, version="0.31.0"), None),
        (start("jamba-1.5-mini"), None),
        (start("minimax-m1"), None),
        (start("qwen3-32b"), None),
    ],
    ids=str,
)
def test_what_a_start_exports(deployment: Deployment, alignment: int | None) -> None:
    export = state_export(deployment)
    assert (export.alignment, export.checkpoint_blocks) == (alignment, int(alignment is not None))


@pytest.mark.parametrize(
    ("model", "version", "block"),
    [
        # A rank's state: 16 x 128 x 128 and 3 x 4,096 values of 2 bytes, 548,864; a token: 1,024.
        (NEXT, "0.32.0", 544),
        (NEXT, "0.33.0", 576),  # by lcm(16, 64)
        ("qwen3.5-397b-a17b", "0.32.0", 2096),
        ("qwen3.5-397b-a17b", "0.33.0", 2112),
        (K3, "0.33.0", 2944),  # its alignment of 16 does not size blocks
    ],
)
def test_blocks_are_multiples_of_what_gated_delta_nets_export(model: str, version: str, block: int) -> None:
    assert {layer.block_size for layer in cache_model(start(model, version=version)).layers if layer} == {block}


def test_a_request_holds_a_third_block_of_every_state_group() -> None:
    # Blocks of 2,944 tokens, one group of latent attention and three of states: 32,768 tokens take 12 and 3 x 3.
    k3, model = start(K3, "B300"), cache_model(start(K3, "B300"))
    assert blocks_per_request(model, 32768) == 12 + 3 * 3
    assert blocks_per_request(cache_model(start(K3, "B300", **TRITON)), 32768) == 12 + 3 * 2
    # 12,468 blocks: 12,468 / 21 requests of 32,768 tokens, where two blocks a group made it 12,468 / 18 (22,697,301).
    assert kv_cache(model, (93,), [0], blocks_override=12_468).tokens == 12_468 * 32_768 // 21 == 19_454_829
    assert ENGINE.fewest_kv_blocks(k3) == 21 + 1


def test_the_scheduler_takes_blocks_as_chunks_come_and_not_what_is_planned_for_a_request() -> None:
    k3 = start(K3)
    settings = vllm_settings(k3, ENGINE.kv_cache(k3, (93,), [100 * GIB]))
    assert (settings.state_groups, settings.state_export_alignment) == (3, 16)
    assert settings.full_groups_last  # K3 begins with a layer of Kimi Delta Attention, and groups lie in that order


def test_what_is_assumed_of_the_build_is_said_where_it_matters() -> None:
    (assumed,) = ENGINE.assumed(start(NEXT, "B200"))
    assert "CUDA 13" in assumed
    for certain in (start(NEXT), start(NEXT, "B200", **TRITON), start(K3, "B300")):
        assert ENGINE.assumed(certain) == ()
    spec = {"name": "s", "model": NEXT, "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "B200"}}
    problem = resolve(SearchSpace.from_mapping({**spec, "engine": {"name": "vllm"}, "parallel": {"tp": 2, "pp": 2}}))
    assert assumed in caveats(problem, {}).doubts
    assert assumed not in caveats(problem, TRITON).doubts

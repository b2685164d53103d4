"""KV planning against the engine.

`data/kv_capacity_vllm_0_33_0.json`: 30 partitions of six models put through vLLM 0.33.0's own planning code;
`data/kv_capacity_hard_vllm_0_33_0.json`: 22 more, of states that are exported inside a chunk and of caches that lie
block by block. Recorded for this project (our own recordings).
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.vllm.engine import ENGINE
from partitune.engines.vllm.kv_groups import Cache, CacheModel, LayerCache, group_layers
from partitune.engines.vllm.kv_pages import cache_model
from partitune.engines.vllm.kv_planning import blocks_per_request, kv_cache, longest_request, range_blocks
from partitune.engines.vllm.kv_recording import KvRecord
from partitune.engines.vllm.scheduler.settings import vllm_settings
from partitune.errors import InfeasibleSpace, OutOfMemory, SpecError
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture, Attention
from partitune.models.reader import load_architecture
from tests.small_models import H200, architecture, kimi_k3

DATA = Path(__file__).parent.parent.parent / "data"
RECORDING, HARD = DATA / "kv_capacity_vllm_0_33_0.json", DATA / "kv_capacity_hard_vllm_0_33_0.json"
RECORDS = KvRecord.read(RECORDING)
GIB = 1 << 30


def layer_caches(model: Architecture, tp: int, dtype: str = "auto") -> tuple[LayerCache | None, ...]:
    deployment = Deployment("0.33.0", model, Layout(tp=tp), H200, {"kv_cache_dtype": dtype})
    return cache_model(deployment).layers


@pytest.mark.parametrize(("recording", "records"), [(RECORDING, 30), (HARD, 22)], ids=["plain", "hard"])
def test_all_records_agree(recording: Path, records: int) -> None:
    agreements = KvRecord.verify(recording)
    assert len(agreements) == records
    assert [each for each in agreements if not each.agrees] == []


@pytest.mark.parametrize(
    "record", [*RECORDS, *KvRecord.read(HARD)], ids=lambda record: f"{record.model} {record.partition}"
)
def test_range_blocks_hold_the_same_answer(record: KvRecord) -> None:
    layers = len(record.cache_model.layers)
    stage_bytes = np.array(record.available_bytes_per_stage, dtype=float)[:, None, None]
    free = np.broadcast_to(stage_bytes, (len(record.partition), layers + 1, layers + 1))
    blocks = range_blocks(record.cache_model, free)
    ends = np.cumsum(record.partition)
    alone = blocks[np.arange(len(ends)), ends - record.partition, ends]
    assert alone.min() == record.num_blocks


def test_a_difference_is_reported(tmp_path: Path) -> None:
    records = json.loads(RECORDING.read_text())[:3]
    records[1]["num_blocks"] += 1
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(records))
    (differing,) = [each for each in KvRecord.verify(path) if not each.agrees]
    assert differing.difference == "num_blocks is 1986 in the engine and 1985 here"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_kinds": "fx"}, "layer_kinds has 'x'"),
        ({"num_blocks": "7"}, "num_blocks: .*integer"),
        ({"capacity": [1.0]}, "capacity: .*at least 2"),
        ({"partition": [1, True]}, "partition.1: .*integer"),
        ({"page_bytes": {}}, "page_bytes: full is missing"),
        ({"kv_cache_layout": "NHD"}, "kv_cache_layout: .*'LBNHC'"),
        ({"kv_cache_group": 1}, "kv_cache_group: Extra inputs"),
        ({"layer_kinds": "w", "page_bytes": {"window": 1}, "block_size": {"window": 1}}, "sliding_window is missing"),
    ],
)
def test_a_malformed_record_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([{**json.loads(RECORDING.read_text())[2], "layer_kinds": "f", **change}]))
    with pytest.raises(SpecError, match=message) as refused:
        KvRecord.read(path)
    assert "bad.json: 0" in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", "{", "\ufeff[]"])
def test_a_file_that_is_no_recording(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"bad\.json"):
        KvRecord.read(path)


def test_a_recording_may_be_gzipped(tmp_path: Path) -> None:
    packed = tmp_path / "recording.json.gz"
    packed.write_bytes(gzip.compress(RECORDING.read_bytes()))
    assert KvRecord.read(packed) == RECORDS
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(SpecError, match=r"recording\.json\.gz: cannot unpack the recording: .*end-of-stream"):
        KvRecord.read(packed)


# vLLM 0.33, run with K3-shaped specs and equal free memory: 4551 : 6068 : 4551 : 3640 : 4551 blocks.
@pytest.mark.parametrize(
    ("partition", "staircase", "blocks"),
    [
        ((11, 11, 12, 12, 12, 12, 12, 11), (3, 3, 3, 3, 3, 3, 3, 4), 4551),
        ((12, 12, 12, 12, 12, 12, 12, 9), (3, 3, 3, 3, 3, 3, 3, 3), 6068),
        ((10, 11, 12, 12, 12, 11, 13, 12), None, 4551),
        ((7, 11, 11, 11, 11, 11, 15, 16), (2, 3, 3, 3, 3, 3, 4, 5), 3640),
        ((14, 11, 12, 12, 12, 12, 11, 9), (4, 3, 3, 3, 3, 3, 3, 3), 4551),
    ],
)
def test_kimi_k3_staircase(partition: tuple[int, ...], staircase: tuple[int, ...] | None, blocks: int) -> None:
    page = 1024 * 1152  # as in that run
    caches = {
        "f": LayerCache(Cache.TOKENS, page, 1024),
        "l": LayerCache(Cache.STATE, page, 1024),
    }
    model = CacheModel(tuple(caches["f" if layer.has_token_kv else "l"] for layer in kimi_k3().layers), 32768, 9 * 8192)
    cache = kv_cache(model, partition, [20 * GIB] * 8)
    assert cache.num_blocks == blocks
    assert staircase is None or cache.group_layers == staircase
    # From the architecture, with the engine's own page, the same ratios.
    tp2 = CacheModel(layer_caches(kimi_k3(), tp=2), 32768, 9 * 8192)
    default = kv_cache(tp2, (11, 11, 12, 12, 12, 12, 12, 11), [20 * GIB] * 8)
    assert kv_cache(tp2, partition, [20 * GIB] * 8).num_blocks / default.num_blocks == pytest.approx(
        blocks / 4551, rel=1e-3
    )


def test_groups_of_kimi_k3_are_strided() -> None:
    groups = group_layers(CacheModel(layer_caches(kimi_k3(), tp=2), 32768, 1))
    assert [len(group.layers) for group in groups] == [23, 23, 23, 24]
    assert groups[0].layers[:3] == (0, 4, 8)
    assert groups[3].layers[-2:] == (91, 92)


def test_nearly_equal_kinds_are_padded_up_not_split() -> None:
    # gpt-oss-20b with a draft layer: 12 window and 13 full layers become two groups, not 12 full and one more of 1.
    window, full = LayerCache(Cache.WINDOW, 32768, 16, 128), LayerCache(Cache.TOKENS, 32768, 16)
    groups = group_layers(CacheModel((window, full) * 12 + (full,), 4096, 8192))
    assert [len(group.layers) for group in groups] == [12, 13]


def test_unequal_pages_get_longer_blocks() -> None:
    # Four KV heads in window layers, eight in full ones: the window's block doubles, pages are equal.
    window, full = LayerCache(Cache.WINDOW, 16384, 16, 128), LayerCache(Cache.TOKENS, 32768, 16)
    groups = group_layers(CacheModel((window, full), 4096, 8192))
    assert [group.caches[0] for group in groups] == [LayerCache(Cache.WINDOW, 32768, 32, 128), full]


def test_hybrid_block_covers_the_state() -> None:
    # K3 at TP 2: state 3 MiB on a rank, latent token 1152 bytes; the block is a multiple of 128 tokens.
    caches = layer_caches(kimi_k3(), tp=2)
    state, latent = caches[0], caches[3]
    assert state is not None
    assert latent is not None
    assert latent.block_size == 128 * -(-3_145_728 // (128 * 1152)) == 2816
    assert state.page_bytes == latent.page_bytes == 2816 * 1152
    # Qwen3-Next-shaped: grouped-query attention rounds to 16 tokens (1056 in the recording).
    gqa = architecture("lllf", kv_bytes_per_token=2048, shards=1, state_bytes=2_146_304)
    blocks = {cache.block_size for cache in layer_caches(gqa, tp=1) if cache}
    assert blocks == {1056}


@pytest.mark.parametrize(
    ("attention", "tp", "dtype", "page", "block"),
    [
        (Attention.FULL, 1, "auto", 16 * 4096, 16),
        (Attention.FULL, 4, "auto", 16 * 1024, 16),
        (Attention.FULL, 16, "auto", 16 * 512, 16),  # 8 KV heads: replicated beyond TP 8
        (Attention.FULL, 1, "fp8", 16 * 2048, 16),
        (Attention.MLA, 8, "auto", 64 * 512, 64),
    ],
)
def test_pages_of_uniform_models(attention: Attention, tp: int, dtype: str, page: int, block: int) -> None:
    caches = layer_caches(architecture("ff", attention=attention), tp, dtype)
    assert set(caches) == {LayerCache(Cache.TOKENS, page, block)}


def test_field_report_1_capacity_is_per_stage() -> None:
    # vllm issue 34076: 48 layers as 16,32 with 3.18 GiB on the small card; 2 KiB a token and layer.
    caches = layer_caches(architecture("f" * 48, kv_bytes_per_token=2048), 1)
    model = CacheModel(caches, max_model_len=100_000, max_in_flight_tokens=1)
    cache = kv_cache(model, (16, 32), [int(3.18 * GIB), int(6.4 * GIB)])
    assert cache.tokens == pytest.approx(104_202, abs=64)
    assert cache.limiting_stage == 0
    with pytest.raises(OutOfMemory, match=r"stage 0 .* the longest that fits has 1041") as refused:
        kv_cache(CacheModel(caches, 262_144, 1), (16, 32), [int(3.18 * GIB), int(6.4 * GIB)])
    needed = 16 * 262_144 * 2048 + 16 * 16 * 2048  # one block is never handed out
    assert refused.value.excess == needed - int(3.18 * GIB)


def test_field_report_10_stranded_memory() -> None:
    model = CacheModel((LayerCache(Cache.TOKENS, 1 << 20, 16),) * 48, 4096, 1)
    cache = kv_cache(model, (16, 16, 16), [9 * GIB, 14 * GIB, 9 * GIB])
    assert cache.stranded_bytes == (0, 5 * GIB, 0)
    assert kv_cache(model, (14, 20, 14), [9 * GIB, 14 * GIB, 9 * GIB]).num_blocks > cache.num_blocks


def test_a_stage_without_cache() -> None:
    caches = layer_caches(architecture("f-f-"), 1)
    with pytest.raises(InfeasibleSpace, match="stage 1 owns no layer"):
        kv_cache(CacheModel(caches, 1024, 1), (3, 1), [GIB, GIB])


def test_prefix_caching_holds_two_states_and_override_wins() -> None:
    caches = layer_caches(kimi_k3(), tp=2)
    assert blocks_per_request(CacheModel(caches, 2816, 1, state_blocks=2), 2816) == 1 + 3 * 2
    assert kv_cache(CacheModel(caches, 2816, 1), (46, 47), [0, 0], blocks_override=77).num_blocks == 77


def test_longest_request_is_the_engines_bound() -> None:
    model = CacheModel((LayerCache(Cache.TOKENS, 1, 16),) * 2, 1000, 1)
    assert [longest_request(model, blocks) for blocks in (0, 1, 2, 64, 1000)] == [0, 0, 16, 1000, 1000]


# Of the engine's own _get_packed_kv_cache_groups, run apart from it with stand-ins for its specs. A page of 1, or of 2
# for capitals: f full attention, w and v windows of two sizes; l a state of 3.
@pytest.mark.parametrize(
    ("layers", "groups"),
    [
        ("fwwwfwww", [(0, 1, 2, 3, 4, 5, 6, 7)]),  # one page: nothing to pack, dealt out as ever
        ("FFFllllll", [(0, 1, 2), (3, 6), (4, 7), (5, 8)]),  # two states fit what three full layers need
        ("fvvvvvfvvvvv", [(0, 6), *((layer,) for layer in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11))]),
        ("fFwwwfFwww", [(0, 1, 5, 6), (2, 7), (3, 8), (4, 9)]),  # pairs f, F repeat twice: windows in twos
        ("fFfFfFllllll", [(0, 1, 2, 3, 4, 5), (6, 8, 10), (7, 9, 11)]),
        ("fFFfFFll", [(0, 1, 2, 3, 4, 5), (6, 7)]),  # no pattern of one each: whole
        ("fFwWfFwWww", [(0, 1, 4, 5), (2, 3, 6, 7, 8, 9)]),
        ("fFfFfFvvvv", [(0, 1, 2, 3, 4, 5), (6, 7, 8, 9)]),
    ],
)
def test_blocks_of_all_layers_hold_pages_of_several_sizes(layers: str, groups: list[tuple[int, ...]]) -> None:
    page = 4096
    caches = {
        "f": LayerCache(Cache.TOKENS, page, 16),
        "F": LayerCache(Cache.TOKENS, 2 * page, 16),
        "w": LayerCache(Cache.WINDOW, page, 16, 128),
        "W": LayerCache(Cache.WINDOW, 2 * page, 16, 128),
        "v": LayerCache(Cache.WINDOW, 2 * page, 16, 256),
        "l": LayerCache(Cache.STATE, 3 * page, 16),
    }
    model = CacheModel(tuple(caches[letter] for letter in layers), 1024, 1, blocks_outermost=True)
    if len({cache.page_bytes for cache in model.layers if cache}) == 1:
        assert group_layers(model) == group_layers(replace(model, blocks_outermost=False))
    else:
        assert [group.layers for group in group_layers(model)] == groups
        assert all(
            cache == model.layers[i]
            for group in group_layers(model)
            for i, cache in zip(group.layers, group.caches, strict=True)
        )


def test_windows_that_the_engine_cannot_pack_are_refused() -> None:
    # Its function splits seven windows into seven groups of one layer of each page, and has one layer of the larger.
    full, window = LayerCache(Cache.TOKENS, 4096, 16), LayerCache(Cache.WINDOW, 4096, 16, 128)
    layers = (full, replace(window, page_bytes=8192), *(window,) * 6)
    model = CacheModel(layers, 1024, 1, blocks_outermost=True)
    with pytest.raises(InfeasibleSpace, match="cannot pack windows"):
        group_layers(model)


# gpt-oss-120b, pp 4, 30 GiB a stage: 196,608 blocks, 109,226 without the hybrid cache manager (vLLM 0.33.0's figures).
GPT_OSS_BLOCKS = ((True, 196_608), (False, 109_226))
TRANSFER = '{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [{"kv_connector": "%s"}]}}'


def gpt_oss(version: str = "0.33.0", model: str = "gpt-oss-120b", **flags: FlagValue) -> Deployment:
    return Deployment(version, load_architecture(model), Layout(pp=4), H200, flags)


@pytest.mark.parametrize(
    ("deployment", "hybrid"),
    [
        (gpt_oss(), True),
        (gpt_oss(disable_hybrid_kv_cache_manager=True), False),
        (gpt_oss(kv_transfer_config='{"kv_connector": "NixlConnector"}'), True),
        (gpt_oss("0.22.0", kv_transfer_config='{"kv_connector": "NixlConnector"}'), False),
        (
            gpt_oss(
                "0.22.0", kv_transfer_config='{"kv_connector": "NixlConnector"}', disable_hybrid_kv_cache_manager=False
            ),
            True,
        ),
        (gpt_oss(kv_transfer_config=TRANSFER % "LMCacheConnectorV1"), False),
        (gpt_oss(kv_transfer_config=TRANSFER % "OffloadingConnector"), True),
    ],
    ids=str,
)
def test_windows_become_full_attention_without_the_hybrid_manager(deployment: Deployment, hybrid: bool) -> None:
    cache = ENGINE.kv_cache(deployment, (9, 9, 9, 9), [30 * GIB] * 4)
    assert cache.num_blocks == dict(GPT_OSS_BLOCKS)[hybrid]
    settings = vllm_settings(deployment, cache)
    assert (settings.full_groups, len(settings.windows)) == ((1, 1) if hybrid else (1, 0))
    told = [note for note in ENGINE.flow(deployment).notes if "hybrid" in note]
    assert bool(told) is (not hybrid and "disable_hybrid_kv_cache_manager" not in deployment.flags)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (gpt_oss(disable_hybrid_kv_cache_manager=True), ""),
        (gpt_oss(model="qwen3-32b", disable_hybrid_kv_cache_manager=True), ""),
        (gpt_oss(model="qwen3-next-80b"), ""),
        (gpt_oss(model="qwen3-next-80b", disable_hybrid_kv_cache_manager=True), "cannot share one block table"),
        (
            gpt_oss(kv_transfer_config=TRANSFER % "HF3FSKVConnector", disable_hybrid_kv_cache_manager=False),
            "false is refused with kv_transfer_config: HF3FSKVConnector",
        ),
        (gpt_oss(VLLM_KV_CACHE_LAYOUT="BLHNC"), ""),
        (gpt_oss(VLLM_KV_CACHE_LAYOUT="BNHD"), "VLLM_KV_CACHE_LAYOUT: 'BNHD' is not one of LBNHC"),
    ],
    ids=str,
)
def test_what_the_engine_refuses_of_its_cache(deployment: Deployment, message: str) -> None:
    faults = [broken.message for broken in ENGINE.check(deployment) if broken.rule == "hybrid-cache"]
    assert len(faults) == bool(message)
    assert all(message in fault for fault in faults)

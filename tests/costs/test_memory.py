from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.costs.memory import MemoryModel, MemorySettings
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place
from partitune.models.architecture import Architecture
from partitune.models.reader import load_architecture

DEFAULT = (11, 11, 12, 12, 12, 12, 12, 11)
STUDY = MemorySettings(max_num_batched_tokens=16384, max_num_seqs=128, graph_sizes=35)
SMALL = MemorySettings(max_num_batched_tokens=2048, max_num_seqs=64, graph_sizes=19)


@cache
def kimi_k3(name: str = "H200", static: bool = False) -> MemoryModel:
    placement = place(Machines(2, 8, [gpu(name)]), Layout(tp=2, pp=8))
    return MemoryModel(load_architecture("kimi-k3"), placement, replace(STUDY, static_share=static))


def two_cards(architecture: Architecture, reserved: list[float], setting: MemorySettings = SMALL) -> MemoryModel:
    placement = place(Machines(1, 2, [gpu("RTX-3090")], reserved_gib=reserved), Layout(tp=1, pp=2))
    return MemoryModel(architecture, placement, setting)


def test_twelve_kimi_k3_layers_are_102_gb_a_gpu_at_tp2() -> None:
    assert kimi_k3().stage(3, 34, 46).layer_weight_bytes == pytest.approx(102e9, rel=0.02)


def test_sixteen_kimi_k3_layers_do_not_fit_an_h200_and_it_says_so() -> None:
    tight = kimi_k3().partition((7, 11, 11, 11, 11, 11, 15, 16))
    assert [stage.fits for stage in tight] == [True] * 7 + [False]
    assert tight[7].load_missing_bytes == 0
    assert tight[7].serve_missing_bytes == -tight[7].kv_bytes > 0
    assert tight[7].verdict.startswith("stage 7 (H200): ")
    assert "GiB short of serving" in tight[7].verdict
    assert all(stage.fits for stage in kimi_k3().partition(DEFAULT))
    assert all(stage.fits for stage in kimi_k3("B300").partition((7, 11, 11, 11, 11, 11, 15, 16)))


def test_hand_off_buffers_grow_with_depth() -> None:
    # vLLM: 16384 tokens x 8 vectors x 14336 B = 1.9 GB a copy before layer 82, and a bank of ceil(93 / 12) = 8 vectors
    stages = kimi_k3().partition(DEFAULT)
    vector = 16384 * 7168 * 2
    assert stages[0].in_flight_bytes == 0
    assert [round(stage.in_flight_bytes / vector) for stage in stages[1:]] == [2, 3, 4, 5, 6, 7, 8]
    assert stages[7].in_flight_bytes == pytest.approx(1.88e9, rel=0.01)
    assert stages[7].receive_bytes == 16 * vector
    assert stages[0].receive_bytes == vector


def test_budget_is_vllms_and_shrinks_kv_with_batched_tokens() -> None:
    # vLLM's request_memory rounds total times utilisation up
    stage = kimi_k3().stage(0, 0, 11)
    assert stage.budget_bytes == -(-gpu("H200").memory_bytes * 92 // 100)
    larger = MemoryModel(kimi_k3().architecture, kimi_k3().placement, replace(STUDY, max_num_batched_tokens=32768))
    lost = [
        a.kv_bytes - b.kv_bytes for a, b in zip(kimi_k3().partition(DEFAULT), larger.partition(DEFAULT), strict=True)
    ]
    assert min(lost) > 0
    assert lost[6] > lost[0]  # more so on deep stages


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 7), st.integers(0, 92), st.integers(1, 93), st.sampled_from(["H200", "L40S"]), st.booleans())
def test_the_tensor_is_the_stages(stage: int, first: int, layers: int, name: str, static: bool) -> None:
    stop = min(93, first + layers)
    one = kimi_k3(name, static).stage(stage, first, stop)
    cell = tensor(name, static)[stage, first, stop]
    assert one.fits == np.isfinite(cell)
    if one.fits:
        assert cell == pytest.approx(one.kv_bytes, abs=1e3)
    assert tensor(name, static)[stage, stop, first] == -np.inf


@cache
def tensor(name: str, static: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return kimi_k3(name, static).kv_tensor()


def test_a_static_share_is_of_what_is_free_and_holds_weights_and_kv() -> None:
    """SGLang 0.5.23 `kv_cache_configurator.py`: free after loading - (1 - mem_fraction_static) * least free before."""
    qwen, share = load_architecture("qwen3-8b"), replace(SMALL, static_share=True, gpu_memory_utilization=0.8)
    first, second = two_cards(qwen, [4.0, 0.0], share).partition((18, 18))
    before = [stage.total_bytes - stage.reserved_bytes - stage.runtime_bytes for stage in (first, second)]
    for stage, free in zip((first, second), before, strict=True):
        assert stage.kv_bytes == pytest.approx(free - stage.weight_bytes - 0.2 * min(before), abs=2)
        assert stage.fits
    more = replace(share, max_num_batched_tokens=4096)
    assert two_cards(qwen, [4.0, 0.0], more).stage(1, 18, 36).kv_bytes == second.kv_bytes
    crowded = two_cards(qwen, [4.0, 0.0], replace(share, gpu_memory_utilization=0.99)).stage(1, 18, 36)
    assert crowded.verdict.endswith("GiB short of serving, too little beside weights and KV")


def test_the_sampler_run_needs_memory_on_the_last_stage_only() -> None:
    # vllm PR 14643: a config that fits with 256 rows dies with 1024 (vocabulary of 152k)
    qwen, few = load_architecture("qwen3-8b"), MemorySettings(2048, 256, graph_sizes=51)
    middle = [two_cards(qwen, [0, 0], s).stage(0, 0, 18) for s in (few, replace(few, max_num_seqs=1024))]
    last = [two_cards(qwen, [0, 0], s).stage(1, 18, 36) for s in (few, replace(few, max_num_seqs=1024))]
    assert middle[0].logits_bytes == middle[1].logits_bytes == 0
    needed = [stage.budget_bytes - stage.kv_bytes for stage in last]
    assert needed[1] - needed[0] > 0.3e9
    tight = (needed[0] + 0.3e9) / last[0].total_bytes
    fits = [
        two_cards(qwen, [0, 0], MemorySettings(2048, rows, gpu_memory_utilization=tight)).stage(1, 18, 36).fits
        for rows in (256, 1024)
    ]
    assert fits == [True, False]


def test_a_reserve_takes_from_its_own_stage_only() -> None:
    # vllm 49816: two equal cards, one also drives a desktop
    free, taken = (two_cards(load_architecture("qwen3-8b"), [gib, 0.0]).partition((18, 18)) for gib in (0.0, 4.0))
    assert taken[0].budget_bytes == taken[0].total_bytes - (4 << 30)
    assert free[0].kv_bytes - taken[0].kv_bytes == pytest.approx(4 * 2**30 - 0.08 * free[0].total_bytes, rel=1e-6)
    assert free[1] == taken[1]


def test_a_reserve_says_which_utilisation_starts() -> None:
    # vLLM 0.32 v1/worker/utils.py request_memory: ValueError where less is free than ceil(total * utilisation)
    def starts(utilisation: float, free: float) -> bool:
        return free >= ceil(gpu("RTX-3090").memory_bytes * utilisation)

    qwen = load_architecture("qwen3-8b")
    free = gpu("RTX-3090").memory_bytes - (4 << 30)
    asked, fine = two_cards(qwen, [4.0, 0.0]).partition((18, 18))
    assert fine.utilization_to_set is None
    assert not starts(SMALL.gpu_memory_utilization, free)
    assert asked.utilization_to_set is not None
    # 19.55 of 23.55 GiB less 0.6 GiB of context and 0.33 GiB of NCCL buffers, all held before vLLM looks
    assert asked.utilization_to_set == pytest.approx((19.55 - 0.6 - 0.334) / 23.55, abs=0.001)
    assert starts(asked.utilization_to_set, free - asked.runtime_bytes)
    assert not starts(asked.utilization_to_set + 0.001, free - asked.runtime_bytes)
    assert asked.verdict.endswith(f"; starts only with gpu_memory_utilization {asked.utilization_to_set} or less")
    lowered = replace(SMALL, gpu_memory_utilization=asked.utilization_to_set)
    assert two_cards(qwen, [4.0, 0.0], lowered).stage(0, 0, 18).utilization_to_set is None


def test_a_utilisation_near_one_leaves_no_room_for_the_runtime_itself() -> None:
    everything = replace(SMALL, gpu_memory_utilization=0.99)
    assert two_cards(load_architecture("qwen3-8b"), [0, 0], everything).stage(0, 0, 18).utilization_to_set == 0.960


def test_what_a_rank_holds_whole_is_counted_on_every_rank() -> None:
    k3 = load_architecture("kimi-k3")
    one, two = (
        MemoryModel(k3, place(Machines(1, 8, [gpu("B300")]), Layout(tp=tp, pp=1)), STUDY).stage(0, 3, 4)
        for tp in (1, 2)
    )
    norms = 6 * 7168 * 2
    whole = 2 * ((1536 + 576) * 7168 + 2048) + 2 * (896 * 7168 + 2 * 3584 * 7168 + 3584) + 4 * 896
    assert 2 * two.layer_weight_bytes - one.layer_weight_bytes == pytest.approx(whole + norms, rel=1e-9)


def test_weights_that_nearly_fill_the_card_fail_while_loading() -> None:
    # SGLang with Kimi-K3: weights of 0.95 of the card, memory fraction 0.8, out of memory while creating weights
    qwen = load_architecture("qwen3-8b")
    scale = 0.95 * gpu("RTX-3090").memory_bytes / two_cards(qwen, [0, 0]).stage(0, 0, 36).weight_bytes
    heavier = [replace(layer.ffn, weight_bytes=layer.ffn.weight_bytes * scale * 1.3) for layer in qwen.layers]
    fat = replace(qwen, layers=tuple(replace(old, ffn=ffn) for old, ffn in zip(qwen.layers, heavier, strict=True)))
    stage = two_cards(fat, [0, 0], replace(SMALL, gpu_memory_utilization=0.8)).stage(0, 0, 36)
    assert stage.weight_bytes > 0.95 * stage.total_bytes
    assert "while loading" in stage.verdict


def test_the_ends_hold_what_the_engine_puts_there() -> None:
    k3, edges = kimi_k3(), kimi_k3().architecture.edges
    first, middle, last = (k3.stage(stage, 20, 30).edge_weight_bytes for stage in (0, 3, 7))
    assert middle == 0
    assert first == pytest.approx((edges.embedding_bytes + edges.vision_bytes) / 2)
    assert last == pytest.approx(edges.head_bytes / 2 + 7168 * 2)
    text_only = MemoryModel(k3.architecture, k3.placement, replace(STUDY, vision=False))
    assert text_only.stage(0, 20, 30).edge_weight_bytes == edges.embedding_bytes / 2
    with_mtp = replace(k3.architecture, edges=replace(edges, drafter_bytes=4e9))
    drafting = MemoryModel(with_mtp, k3.placement, replace(STUDY, drafter=True))
    assert drafting.stage(7, 20, 30).edge_weight_bytes - last == pytest.approx(2e9)
    assert MemoryModel(with_mtp, k3.placement, STUDY).stage(7, 20, 30).edge_weight_bytes == last


def test_a_tied_embedding_is_held_twice_only_when_the_ends_are_apart() -> None:
    qwen = load_architecture("qwen3-8b")
    tied = replace(qwen, edges=replace(qwen.edges, tied=True, head_params=0))
    one = place(Machines(1, 8, [gpu("H100")]), Layout(tp=1, pp=1))
    two = place(Machines(1, 8, [gpu("H100")]), Layout(tp=1, pp=2))
    norm = qwen.hidden_size * 2
    assert MemoryModel(tied, one, SMALL).stage(0, 0, 36).edge_weight_bytes == qwen.edges.embedding_bytes + norm
    ends = [MemoryModel(tied, two, SMALL).stage(s, 18 * s, 18 * s + 18).edge_weight_bytes for s in (0, 1)]
    assert ends == [qwen.edges.embedding_bytes, qwen.edges.head_bytes + norm]

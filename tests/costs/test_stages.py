from __future__ import annotations

import pytest

from partitune.costs.collectives import TensorParallelGroup
from partitune.costs.cost_model import Batch, decode, prefill
from partitune.costs.roofline import RooflineCosts
from partitune.engines.vllm.models import MEASURED
from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.links import link
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place
from partitune.models.reader import load_architecture
from tests.builders import roofline
from tests.contracts.cost_model import check_cost_model

DEFAULT = (11, 11, 12, 12, 12, 12, 12, 11)
K3 = roofline("kimi-k3", "H200", 2, 8)


def test_it_is_a_cost_model() -> None:
    check_cost_model(K3, DEFAULT)
    check_cost_model(RooflineCosts(K3.architecture, K3.placement, measured_engine=MEASURED), DEFAULT)


def test_stages_are_their_layers_and_the_ends() -> None:
    for batch in (prefill(2048), decode(32, 1024), Batch(512, 512 * 900.0, 64, 64_000, 65)):
        got, start = K3.stage_costs(DEFAULT).compute_s(batch), 0
        for stage, layers in enumerate(DEFAULT):
            want = K3.layer_s(stage, batch)[start : start + layers].sum() + K3.edge_s(stage, batch)
            assert got[stage] == pytest.approx(want, rel=1e-9)
            start += layers
    assert K3.edge_s(3, prefill(2048)) == 0.0


def test_a_short_prompt_waits_for_the_host() -> None:
    # SGLang PR 34299: 93 layers take about 180 ms however short the prompt; a decode runs in a CUDA graph
    w4a8 = RooflineCosts(K3.architecture, place(Machines(1, 8, [gpu("B300")]), Layout(tp=8, pp=1)),
                         expert_kernel="w4a8_mxfp4_mxfp8")  # fmt: skip
    whole = w4a8.stage_costs((93,))
    assert whole.compute_s(prefill(129))[0] == pytest.approx(0.180, rel=0.05)
    assert whole.compute_s(decode(8, 129))[0] < 0.05
    # SGLang PR 32890: 369 ms for 8,192 tokens
    assert whole.compute_s(prefill(8192))[0] == pytest.approx(0.369, rel=0.15)  # fitted kernels alone


def test_the_host_floor_is_a_property_of_the_stage() -> None:
    batch = prefill(64)
    floors = K3.host_layer_s(batch)
    stages = K3.stage_costs(DEFAULT).compute_s(batch)
    assert all(seconds >= floors[:n].sum() * (1 - 1e-9) for seconds, n in zip(stages, DEFAULT, strict=True))
    assert K3.host_layer_s(decode(1, 64)).sum() == 0.0


def test_an_empty_step_costs_nothing() -> None:
    assert K3.stage_costs(DEFAULT).compute_s(Batch()) == (0.0,) * 8
    assert K3.stage_costs(DEFAULT).transfer_s(0) == (0.0,) * 7


def test_the_head_is_paid_only_when_something_is_sampled() -> None:
    silent, sampling = prefill(2048, last_chunk=False), prefill(2048)
    stages = K3.stage_costs(DEFAULT)
    assert stages.compute_s(silent)[:7] == stages.compute_s(sampling)[:7]
    assert stages.compute_s(silent)[7] < stages.compute_s(sampling)[7]


def test_kimi_k3_hands_over_more_with_depth() -> None:
    # 2 to 8 vectors of 7168 bf16 values: 28.7 to 114.7 kB a token
    starts = [sum(DEFAULT[:stage]) for stage in range(1, 8)]
    per_token = [K3.architecture.handoff_bytes(start, 1) for start in starts]
    assert [round(b / 1000, 1) for b in per_token] == [28.7, 43.0, 57.3, 71.7, 86.0, 100.4, 114.7]


def test_each_rank_sends_its_slice_and_the_group_gathers() -> None:
    # 235 MB of a 2048-token chunk at the deepest boundary: 3.4 ms split over TP2 at 34 GB/s
    slow = RooflineCosts(
        K3.architecture,
        place(Machines(2, 8, [gpu("H200")], in_node=link("infiniband-400g")), Layout(tp=2, pp=8)),
    )
    deepest = slow.stage_costs(DEFAULT).transfer_s(2048)[6]
    assert deepest == pytest.approx(
        3.4e-3 + TensorParallelGroup(gpu("H200"), 2).all_gather_s(8 * 7168 * 2 * 2048), rel=0.03
    )
    fast = K3.stage_costs(DEFAULT).transfer_s(2048)
    assert fast[3] > 2 * fast[4]  # the boundary between the nodes


def test_a_partition_must_fit_model_and_placement() -> None:
    with pytest.raises(SpecError, match="has 8 stages and 94 layers; expected 8 and 93"):
        K3.stage_costs((12, *DEFAULT[1:]))


def test_unequal_gpus_have_unequal_stages() -> None:
    mixed = RooflineCosts(
        load_architecture("llama-3.1-70b"),
        place(Machines(1, 8, [gpu("H100"), gpu("A100-80GB")]), Layout(tp=4, pp=2)),
    )
    first, second = mixed.stage_costs((40, 40)).compute_s(prefill(2048))
    assert 2 < second / first < 4  # 989 against 312 TFLOP/s

"""What a layout does to times: identities that must hold whatever the fitted constants are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from partitune.costs.collectives import TensorParallelGroup
from partitune.costs.cost_model import Batch, decode, prefill
from partitune.costs.roofline import RooflineCosts
from partitune.engines.vllm.engine import Vllm
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Exchange, Layout
from partitune.hardware.placement import Machines, Placement, place
from partitune.models.reader import load_architecture
from tests.builders import vllm_placement


def placed(layout: Layout, nodes: int = 2, model: str = "deepseek-v3") -> Placement:
    return vllm_placement(layout, load_architecture(model), nodes=nodes)


@cache
def costs(layout: Layout, nodes: int = 2, model: str = "deepseek-v3") -> RooflineCosts:
    return RooflineCosts(load_architecture(model), placed(layout, nodes, model))


def layer_s(layout: Layout, batch: Batch, model: str = "deepseek-v3", layer: int = 30, nodes: int = 2) -> float:
    return float(costs(layout, nodes, model).layer_s(0, batch)[layer])


BATCHES = (prefill(4096), decode(32, 2048), decode(1, 100))


@pytest.mark.parametrize("batch", BATCHES)
def test_data_ranks_of_a_dense_model_have_nothing_to_do_with_one_another(batch: Batch) -> None:
    alone, four = (layer_s(Layout(tp=2, dp=dp), batch, "llama-3.1-70b") for dp in (1, 4))
    assert four == alone


def test_experts_see_the_tokens_of_all_data_ranks_and_weigh_less_on_each() -> None:
    """Eight ranks with 32 decodes each work as 256 tokens on whole experts: less weight to read, more rows to move."""
    alone, wide = Layout(), Layout(dp=8, expert_ranks=8)
    few = decode(32, 2048)
    # One GPU alone reads nearly every expert for 32 tokens; of eight each reads its eighth, at most.
    assert layer_s(wide, few) < 0.5 * layer_s(alone, few)
    many = prefill(8192)
    ffn_flops = load_architecture("deepseek-v3").layers[30].ffn.routed_flops_per_token
    least = many.tokens * ffn_flops / gpu("H200").fp8_flops_s  # eight times the tokens on an eighth of the experts
    assert layer_s(wide, many) > least


def test_imbalance_multiplies_the_experts_and_nothing_else() -> None:
    wide, batch = Layout(tp=2, dp=4, expert_ranks=8), decode(64, 1024)
    one, two, three = (layer_s(replace(wide, expert_imbalance=factor), batch) for factor in (1.0, 2.0, 3.0))
    assert one < two < three
    assert three - two == pytest.approx(two - one)
    dense = [layer_s(replace(wide, expert_imbalance=factor), batch, layer=0) for factor in (1.0, 3.0)]
    assert dense[0] == dense[1]  # DeepSeek-V3 begins with three dense layers


@pytest.mark.parametrize(
    ("layout", "exchange"),
    [(Layout(dp=16, expert_ranks=16), Exchange.GATHER),
     (Layout(dp=16, expert_ranks=16, all2all_backend="deepep_v2"), Exchange.ROUTED)],
)  # fmt: skip
def test_an_exchange_takes_at_least_the_network_it_crosses(layout: Layout, exchange: Exchange) -> None:
    """16 ranks on two nodes, 4096 tokens each of 14336 bytes; half of what a rank is to receive lies on the other node.

    Gathering: 16 * 4096 tokens, half of them from the other node over 8 NICs. Routing: 8 visits, spread over 16 ranks.
    """
    placement, tokens, width = placed(layout), 4096, 7168 * 2
    assert placement.layout.exchange is exchange
    assert placement.expert_link is not None
    crossing = {
        Exchange.GATHER: 16 * tokens * width / 2 / 8,
        Exchange.ROUTED: tokens * width * 16 * (1 - (15 / 16) ** 8) / 2,
    }[exchange]
    least = 2 * crossing / placement.expert_link.bandwidth_bytes_s
    assert layer_s(layout, prefill(tokens)) > least
    on_one_node = placed(replace(layout, dp=8, expert_ranks=8), nodes=1)
    assert (on_one_node.expert_nodes, on_one_node.expert_link) == (1, None)


def test_cutting_tokens_over_tensor_ranks_saves_the_all_reduce() -> None:
    """vLLM's sequence-parallel MoE ends in an all-gather where an all-reduce was: about half the traffic."""
    layout, batch = Layout(tp=4, dp=2, expert_ranks=8), prefill(8192)
    architecture = load_architecture("deepseek-v3")
    resolved = Vllm().resolved_layout(layout, architecture, "0.33.0")
    assert resolved.sequence_parallel_moe
    whole = replace(resolved, sequence_parallel_moe=False)
    times = [
        RooflineCosts(architecture, place(Machines(1, 8, [gpu("H200")]), one)).layer_s(0, batch)[30]
        for one in (whole, resolved)
    ]
    reduce_s = sum(TensorParallelGroup(gpu("H200"), 4).all_reduce(8192 * 7168 * 2, graph=False))
    assert 0 < times[0] - times[1] < reduce_s


def test_a_dealt_out_cache_is_read_in_parts() -> None:
    """At long context decode attention is reading the cache: with dcp 8 each of 8 ranks reads an eighth of it."""
    long, short = decode(16, 131072), decode(16, 128)
    saved = [
        layer_s(Layout(tp=8, dcp=dcp), long, layer=0) - layer_s(Layout(tp=8, dcp=dcp), short, layer=0) for dcp in (1, 8)
    ]
    assert saved[1] < 0.35 * saved[0]
    # Queries are gathered and results scattered: with next to no context that is all there is to see.
    assert layer_s(Layout(tp=8, dcp=8), short, layer=0) > layer_s(Layout(tp=8), short, layer=0)


def test_prefill_context_ranks_share_a_prompt() -> None:
    prompt = prefill(16384)
    one, two = (layer_s(Layout(tp=4, pcp=pcp), prompt, layer=0) for pcp in (1, 2))
    assert 0.5 < two / one < 0.75  # half of the work, and keys and values are gathered
    stages = [costs(Layout(tp=2, pp=2, pcp=pcp)).stage_costs((30, 31)).transfer_s(8192)[0] for pcp in (1, 2)]
    assert stages[1] < stages[0]


def test_without_its_own_kernel_an_all_reduce_is_two_halves() -> None:
    group, plain = (TensorParallelGroup(gpu("H200"), 8, nccl=nccl) for nccl in (True, False))
    message = 64 * 14336
    assert sum(group.all_reduce(message, graph=True)) == 2 * plain.all_gather_s(message)
    assert sum(group.all_reduce(message, graph=True)) > sum(plain.all_reduce(message, graph=True))
    step = decode(64, 128)
    assert layer_s(Layout(tp=8, all_reduce_backend="nccl"), step) > layer_s(Layout(tp=8), step)

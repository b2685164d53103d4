"""Item 13: a GPU that no table knows is stated in the file, and its figures carry that they were measured elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from partitune.errors import SpecError
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.search.exact_front import solve
from partitune.spec.search_space import SearchSpace


def _space(gpu: Any, **more: Any) -> SearchSpace:
    return SearchSpace.from_mapping(
        {
            "name": "own",
            "model": "llama-8b",
            "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": gpu},
            "parallel": {"tp": 1, "pp": 2},
            **more,
        }
    )


def _problem(gpu: Any) -> Problem:
    return resolve(_space(gpu))


def test_13_an_own_gpu_takes_what_it_does_not_say_from_the_one_it_is_like() -> None:
    own = _problem({"name": "X1", "memory_gib": 48, "bandwidth_gb_s": 864, "bf16_tflops": 400, "like": "H100"})
    of_stage = own.placement.gpus[0]
    assert (of_stage.name, of_stage.memory_bytes, of_stage.bandwidth_bytes_s) == ("X1", 48 << 30, 864e9)
    assert of_stage.fp8_flops_s == pytest.approx(800e12)  # H100's is twice its bf16
    assert own.placement.links[0].name == "nvlink-h100"
    assert of_stage.doubt == ("X1 is described in the search space: kernel times are scaled to it from those of H100")


def test_13_an_own_gpu_with_the_figures_of_a_known_one_is_as_large_and_as_fast() -> None:
    like = _problem("H100")
    own = _problem({"name": "X1", "like": "H100"})
    assert own.placement.gpus[0].memory_bytes == like.placement.gpus[0].memory_bytes
    slow = _problem({"name": "X1", "like": "H100", "bandwidth_gb_s": 335})
    assert own.placement.gpus[0].bandwidth_bytes_s == 10 * slow.placement.gpus[0].bandwidth_bytes_s


def test_13_own_gpus_stand_in_the_list_of_stages() -> None:
    found = _problem(["RTX-3090", {"name": "X1", "like": "RTX-3090", "memory_gib": 48}])
    assert [gpu.name for gpu in found.placement.gpus] == ["RTX-3090", "X1"]


def test_13_the_order_of_unequal_stages_knows_own_gpus() -> None:
    space = _space(["RTX-3090", {"name": "X1", "like": "RTX-3090", "memory_gib": 48, "bandwidth_gb_s": 1872}])
    found = solve(space, {})
    assert {order.gpu for order in found.orders} <= {("RTX-3090", "X1"), ("X1", "RTX-3090")}
    assert found.orders


def test_13_a_study_with_an_own_gpu_is_read_back() -> None:
    space = _space(["RTX-3090", {"name": "X1", "like": "RTX-3090", "memory_gib": 48}])
    again = SearchSpace.from_mapping(space.resolved())
    assert again.resolved() == space.resolved()
    assert resolve(again).placement == resolve(space).placement


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ({"name": "X1"}, r"cluster\.gpu: X1: memory_gib, bandwidth_gb_s, bf16_tflops missing; allowed: .*like"),
        ({"name": "X1", "like": "H2000"}, r"cluster\.gpu: like: 'H2000' is not known; did you mean H200"),
        ({"name": "H100", "like": "H200"}, r"cluster\.gpu: name: 'H100' is the table's H100; allowed: another name"),
        ({"name": "X1", "memory_gb": 3}, r"cluster\.gpu\.memory_gb: unknown key, did you mean memory_gib\?"),
        ({"name": "X1", "memory_gib": "48"}, r"cluster\.gpu\.memory_gib: found .*remove the quotes"),
        ({"like": "H100"}, r"cluster\.gpu\.name: missing; allowed: what to call it"),
        (["H100", {"name": "X1"}], r"cluster\.gpu\[1\]: X1: memory_gib"),
        (["H100", "H2000"], r"cluster\.gpu\[1\]: 'H2000' is not known"),
    ],
)
def test_13_an_own_gpu_is_checked_strictly(gpu: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        _problem(gpu)

"""SGLang 0.5.23: defaults, pool rule and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.registry import engine
from partitune.engines.sglang.flags import NAMES_OF_VLLM, SGLANG_FLAGS
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.hardware.generations import Generation
from partitune.hardware.gpus import Gpu, gpu
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture
from tests.small_models import H200, architecture, kimi_k3

SGLANG = engine("sglang")
GIB = 1 << 30
DENSE = Deployment("0.5.23", architecture("f" * 61, max_position=131072), layout=Layout(pp=8), gpu=H200)


def test_field_report_4_capacity_by_split() -> None:
    # 61 layers on 8 equal stages: the old split's 12 layers on one stage shrink the pool of all.
    def tokens(partition: tuple[int, ...]) -> int:
        return SGLANG.kv_cache(DENSE, partition, [40 * GIB] * 8).tokens

    assert tokens((7,) * 7 + (12,)) < tokens((7, 7, 7, 8, 8, 8, 8, 8)) <= tokens((7, 7, 8, 8, 8, 8, 8, 7))
    assert tokens((7,) * 7 + (12,)) == 40 * GIB // (12 * 4096)


def test_least_memory_meets_largest_cell_even_on_different_stages() -> None:
    cache = SGLANG.kv_cache(replace(DENSE, layout=Layout(pp=2)), (20, 41), [10 * GIB, 30 * GIB])
    assert cache.tokens == 10 * GIB // (41 * 4096)
    assert cache.limiting_stage == 1
    assert cache.stranded_bytes[0] == 10 * GIB - cache.tokens * 20 * 4096


def test_pages_and_the_two_refusals() -> None:
    paged = replace(DENSE, layout=Layout(pp=2), flags={"page_size": 64})
    assert SGLANG.kv_cache(paged, (30, 31), [GIB, GIB]).tokens % 64 == 0
    with pytest.raises(OutOfMemory) as refused:
        SGLANG.kv_cache(paged, (30, 31), [1000, GIB])
    assert refused.value.excess == 31 * 64 * 4096 - 1000
    with pytest.raises(InfeasibleSpace, match="stage 1 owns no layer"):
        SGLANG.kv_cache(replace(DENSE, architecture=architecture("ff-"), layout=Layout(pp=2)), (2, 1), [GIB, GIB])


def test_hybrid_state_is_charged_at_the_fullest_stage() -> None:
    """mem_cache/kv_cache_configurator.py _handle_max_mamba_cache (one slot is padding), mm_runtime_reservation_gb."""
    k3 = Deployment("0.5.23", kimi_k3(), layout=Layout(tp=2, pp=8), gpu=H200, flags={"max_mamba_cache_size": 100})
    partition = (11, 11, 12, 12, 12, 12, 12, 11)
    state, cell = 9 * 3_145_728, 4 * 1152  # nine linear layers on the fullest stage, four latent ones on the last
    images = (100 << 20) if k3.architecture.edges.vision_bytes else 0
    free = 20 * GIB - images
    cache = SGLANG.kv_cache(k3, partition, [20 * GIB] * 8)
    assert cache.tokens == (free - 101 * state) // cell
    assert cache.state_slots == 100
    # The last stage fills its tokens and has as many states as the others, of seven layers instead of nine.
    assert cache.stranded_bytes[7] == free - cache.tokens * cell - 101 * 7 * 3_145_728
    by_itself = SGLANG.kv_cache(replace(k3, flags={}), partition, [20 * GIB] * 8)
    slots = int(free * 0.9 / 1.9 - state) // state  # mamba_full_memory_ratio
    assert by_itself.tokens == (free - (slots + 1) * state) // cell
    assert by_itself.stranded_bytes[7] == free - by_itself.tokens * cell - (slots + 1) * 7 * 3_145_728


@pytest.mark.parametrize(("gib", "chunk"), [(16, 2048), (24, 4096), (45, 4096), (80, 8192), (140, 8192), (180, 16384)])
def test_chunk_default(gib: int, chunk: int) -> None:
    card = Gpu("card", gib * GIB, 1.0, 1.0, 1.0, 1.0, "test", Generation.HOPPER)
    assert SGLANG.default_flags(replace(DENSE, gpu=card))["chunked_prefill_size"] == chunk


def test_static_memory_depends_on_parallel_size() -> None:
    card = Gpu("card", 140 * GIB, 1.0, 1.0, 1.0, 1.0, "test", Generation.HOPPER)
    small = SGLANG.default_flags(replace(DENSE, gpu=card, layout=Layout()))["mem_fraction_static"]
    large = SGLANG.default_flags(replace(DENSE, gpu=card, layout=Layout(tp=8, pp=8)))["mem_fraction_static"]
    reserved_mib = 512 + 1.5 * 8192 + 8 * 1024 + 2 * 512
    assert large == round(1 - reserved_mib / (140 * 1024), 3)
    assert small == round(1 - (512 + 1.5 * 8192 + 128 + 2 * 256) / (140 * 1024), 3)


def test_how_batches_flow() -> None:
    flow = SGLANG.flow(replace(DENSE, flags={"pp_async_batch_depth": 1, "max_running_requests": 128}))
    assert (flow.name, flow.cohorts, flow.step_tokens, flow.max_requests) == ("slots", 9, 8192, 128)
    assert flow.cohort_requests == 16  # scheduler.py: max_running_requests // pp_size, by stages and not by slots
    assert SGLANG.flow(replace(DENSE, layout=Layout())).cohorts == 1
    whole = SGLANG.flow(replace(DENSE, flags={"chunked_prefill_size": -1, "max_running_requests": 3}))
    assert (whole.step_tokens, whole.cohort_requests) == (16384, 1)  # max_prefill_tokens; never less than one


def test_kimi_k3_runs_its_own_expert_kernel_on_blackwell_only() -> None:
    k3 = load_architecture("kimi-k3")
    assert SGLANG.expert_kernel(k3, gpu("B300"), {}) == "w4a8_mxfp4_mxfp8"
    assert SGLANG.expert_kernel(k3, gpu("H200"), {}) is None
    assert SGLANG.expert_kernel(architecture("ff"), gpu("B300"), {}) is None
    assert engine("vllm").expert_kernel(k3, gpu("B300"), {}) is None


def test_a_cap_on_tokens_holds_for_the_pool() -> None:
    capped = replace(DENSE, layout=Layout(pp=2), flags={"max_total_tokens": 1000, "page_size": 64})
    assert SGLANG.kv_cache(capped, (30, 31), [GIB, GIB]).tokens == 960  # aligned down to pages


def test_names_of_vllm_are_sent_to_their_own() -> None:
    (broken,) = SGLANG.check(replace(DENSE, flags={"max_num_batched_tokens": 512}))
    assert (broken.rule, broken.message) == (
        "unknown-flag",
        "max_num_batched_tokens: vLLM's name; SGLang has chunked_prefill_size",
    )
    # None of these is an option of `sglang.launch_server` (0.5.23 srt/arg_groups/fields), and each hint is one.
    for name, own in NAMES_OF_VLLM.items():
        assert name not in SGLANG_FLAGS
        assert name in VLLM_FLAGS
        assert own.split(",")[0] in SGLANG_FLAGS


def test_spelling() -> None:
    flags: dict[str, FlagValue] = {
        "enable_mixed_chunk": True,
        "enable_dynamic_chunking": False,
        "chunked_prefill_size": -1,
    }
    started = replace(DENSE, flags=flags, partition=(7, 7, 7, 8, 8, 8, 8, 8))
    assert SGLANG.launch.serve_arguments("M", started)[3:] == (
        "--model-path", "M", "--pp-size", "8", "--tp-size", "1", "--enable-mixed-chunk", "--chunked-prefill-size=-1"
    )  # fmt: skip
    assert SGLANG.launch.config_yaml(started) == {
        "pp-size": 8, "tp-size": 1, "enable-mixed-chunk": True, "chunked-prefill-size": -1
    }  # fmt: skip
    assert SGLANG.launch.environment(started) == {"SGLANG_PP_LAYER_PARTITION": "7,7,7,8,8,8,8,8"}


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({}, []),
        ({"flags": {"chunked_prefil_size": 4096}}, ["unknown-flag"]),
        ({"flags": {"attention_backend": "fa3"}}, []),  # not a scheduling flag: not ours to judge
        ({"flags": {"schedule_policy": "fifo"}}, ["flag-value"]),
        ({"flags": {"pp_max_micro_batch_size": 0}}, ["flag-value"]),
        ({"flags": {"chunked_prefill_size": 100, "page_size": 64}}, ["chunk-of-pages"]),
        ({"flags": {"nnodes": 3}}, ["nodes"]),
        ({"layout": Layout(tp=2, pp=3), "flags": {"nnodes": 2}}, ["stages-over-nodes"]),
        ({"layout": Layout(tp=3, pp=8)}, ["heads-over-tp"]),
        ({"flags": {"min_free_slots_delay": 4}}, ["not-with-pipeline"]),
        ({"flags": {"speculative_algorithm": "NEXTN"}}, ["draft-with-pipeline"]),
        ({"flags": {"speculative_algorithm": "EAGLE"}}, ["draft-with-pipeline"]),
        ({"flags": {"speculative_algorithm": "EAGLE", "SGLANG_ENABLE_PP_SPEC": True}}, []),
        ({"flags": {"speculative_algorithm": "EAGLE", "disaggregation_mode": "prefill"}}, []),
        ({"partition": (8, 8)}, ["partition", "partition"]),
    ],
)
def test_rules(changes: dict[str, object], rules: list[str]) -> None:
    violations = SGLANG.check(replace(DENSE, **changes))  # type: ignore[arg-type]
    assert [one.rule for one in violations] == rules

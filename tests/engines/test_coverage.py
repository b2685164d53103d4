"""Every flag of both engines is modelled, not modelled or without effect, and what is called modelled is."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.engines.coverage import Effect, covered
from partitune.engines.registry import ENGINES
from partitune.engines.sglang.flags import SGLANG_FLAGS
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.planning.resolve import resolve
from tests.flag_reference import EXAMPLES, PAGE, TABLES, figures, page, space

#: All fields of `srt/arg_groups/fields/*.py` in SGLang's wheel of 0.5.23.
SGLANG_FIELDS = (Path(__file__).parent.parent / "data" / "sglang_0_5_23_fields.txt").read_text().split()
CASES = [(engine, flag) for engine, examples in EXAMPLES.items() for flag in examples]


def test_every_flag_has_a_row_and_every_row_a_flag() -> None:
    variables = {name for table in TABLES.values() for name in table if name.isupper()}
    assert set(TABLES["vllm"]) - variables == set(VLLM_FLAGS)
    written = {name for name in ENGINES["sglang"].written_by_partitune if not name.isupper()}
    assert set(TABLES["sglang"]) - variables - written == {*SGLANG_FIELDS, *SGLANG_FLAGS} - written
    assert len(SGLANG_FIELDS) == 543


def test_a_flag_in_two_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="seed stands in two groups"):
        covered([(Effect.NONE, "x", "seed port"), (Effect.NOT_MODELLED, "y", "seed")])


def test_every_modelled_flag_has_an_example_and_no_other() -> None:
    for engine, table in TABLES.items():
        modelled = {name for name, row in table.items() if row.effect is Effect.MODELLED}
        assert modelled == set(EXAMPLES[engine])


@pytest.mark.parametrize(("engine", "flag"), CASES)
def test_a_modelled_flag_changes_a_figure(engine: str, flag: str) -> None:
    example = EXAMPLES[engine][flag]
    assert figures(engine, example, changed=True) != figures(engine, example, changed=False)


def test_everything_else_says_why() -> None:
    for table in TABLES.values():
        assert all(row.why for row in table.values() if row.effect is not Effect.MODELLED)


@pytest.mark.parametrize(
    ("engine", "flags", "named"),
    [
        ("vllm", {"attention_backend": "FLASHINFER"}, {"attention_backend"}),
        ("vllm", {"moe_backend": "deep_gemm"}, set()),  # a dense model has no experts to choose a kernel for
        ("vllm", {"moe_backend": "auto", "enable_eplb": False, "cpu_offload_params": ""}, set()),
        ("vllm", {"max_num_seqs": 8, "seed": 4, "port": 9000}, set()),
        (
            "vllm",
            {"VLLM_USE_DEEP_GEMM": "1", "NCCL_DEBUG": "INFO", "VLLM_LOGGING_LEVEL": "DEBUG"},
            {"VLLM_USE_DEEP_GEMM"},
        ),
        ("vllm", {"VLLM_KV_CACHE_LAYOUT": "HND", "HF_HUB_CACHE": "/c", "HF_TOKEN": "t"}, set()),
        (
            "vllm",
            {"VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE": "9", "VLLM_CACHE_ROOT": "/c"},
            {"VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE"},
        ),
        ("vllm", {"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"}, {"VLLM_ALLREDUCE_USE_SYMM_MEM"}),
        ("vllm", {"compilation_config": "{}"}, set()),
        ("sglang", {"moe_runner_backend": "flashinfer_trtllm"}, set()),
        ("sglang", {"enable_two_batch_overlap": True, "log_level": "info"}, {"enable_two_batch_overlap"}),
        ("sglang", {"a_flag_of_tomorrow": 3}, {"a_flag_of_tomorrow"}),
    ],
)
def test_what_is_set_and_changes_nothing_here_is_named(
    engine: str, flags: dict[str, str | bool | int], named: set[str]
) -> None:
    problem = resolve(space(engine, "dense"))
    assert set(problem.engine.not_modelled(problem.start(flags))) == named


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "moe_backend"), ("sglang", "moe_runner_backend")])
def test_a_kernel_for_experts_without_times_is_named_where_there_are_experts(engine: str, flag: str) -> None:
    problem = resolve(space(engine, "experts"))
    assert set(problem.engine.not_modelled(problem.start({flag: "triton"}))) == {flag}


def test_a_misspelt_flag_of_sglang_is_answered_with_the_nearest_of_all() -> None:
    problem = resolve(space("sglang", "dense"))
    (broken,) = problem.engine.check(problem.start({"enable_two_batch_overlapp": True}))
    assert "did you mean enable_two_batch_overlap" in broken.message


def test_the_page_shows_the_tables() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"

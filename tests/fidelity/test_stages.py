"""Published results about partitions, chunks and KV memory: what decides is the time and the memory of the stages.

Checks 1, 2, 5, 8 and 9 of nine; the others are in test_acceptance_schedule.py. A published figure is compared as a sign
or a band around it, because workload, kernels and often the GPU are not stated to the last flag. Rows are numbered as
in the collection the checks were drawn from; the pull request, issue or post beside the number is the source. The
profile study is the one behind the search space kimi-k3-pp8-tp2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from partitune.candidate import StageReport
from partitune.costs.cost_model import Batch, decode, prefill
from tests.acceptance_cases import (
    FP8,
    NVFP4,
    closed,
    config_of,
    measured,
    metric,
    problem,
    settings_of,
    simulated,
)

LONG_PROMPT = 131072
CHUNKS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
DEFAULT = (11, 11, 12, 12, 12, 12, 12, 11)
SEED_1 = (10, 11, 12, 12, 12, 11, 13, 12)
SEED_2 = (7, 11, 11, 11, 11, 11, 15, 16)


@cache
def chunked_prompts(
    model: str, tp: int, pp: int, chunk: int, *, gpu: str = "H20", rule: str = "remainder-last", prompts: int = 1
) -> float:
    """Prompt tokens a second of 128K prompts, with one prompt waiting behind the running one if there are several."""
    load = closed(prompts, LONG_PROMPT, 1, min(prompts, 2))
    flags = {
        "max_num_batched_tokens": chunk,
        "max_num_seqs": 16,
        "max_model_len": 140_000,
        "gpu_memory_utilization": 0.95,
        "num_gpu_blocks_override": 20_000,  # PP=1 is a baseline of time only: it would leave no room for KV here
    }
    posed = problem(
        model, gpu, load, tp=tp, pp=pp, nodes=max(1, tp * pp // 8), flags=flags, engine={"split_rule": rule}
    )
    return metric("total_throughput_tok_s", posed)


class TestTokenBehindTheBorder:
    """One stage of Kimi-K3, SGLang, TP8 on 8 B300: a prompt one token longer than a chunk takes one more step.

    FlashInfer PR 4445 measured lengths of 2^n + 1 and says no chunk; 539 - 369 and 908 - 2 x 369 are both the 170 to
    180 ms that the shortest prompt takes, so it was 8,192 tokens.
    """

    @pytest.mark.parametrize(
        ("prompt", "measured_ms"),
        [
            pytest.param(129, 179.5, id="FlashInfer PR 4445"),
            pytest.param(513, 185.8, id="FlashInfer PR 4445"),
            pytest.param(2049, 187.0, id="FlashInfer PR 4445"),
            pytest.param(8192, 369.2, id="SGLang PR 32890"),
            pytest.param(8193, 539.0, id="FlashInfer PR 4445"),
            pytest.param(16385, 908.2, id="FlashInfer PR 4445"),
        ],
    )
    def test_first_tokens(self, prompt: int, measured_ms: float) -> None:
        posed = problem(
            "kimi-k3",
            "B300",
            closed(1, prompt, 2, 1),
            tp=8,
            pp=1,
            nodes=1,
            flags={"chunked_prefill_size": 8192},
            engine={"name": "sglang", "version": "0.5.18"},
        )
        assert metric("ttft_p50_ms", posed) == pytest.approx(measured_ms, rel=0.09)


class TestRemainderLast:
    """Check 1: for one long chunked prompt the bigger stages belong last, because later chunks are dearer."""

    def test_by_a_few_percent_with_eight_stages(self) -> None:
        """sglang PR 13977 (row 2): TP2 PP8, 128K in chunks of 4096, remainder first -> last: TTFT 1.073x better."""
        first = chunked_prompts("deepseek-v3", 2, 8, 4096, gpu="H200", rule="remainder-first")
        last = chunked_prompts("deepseek-v3", 2, 8, 4096, gpu="H200", rule="remainder-last")
        assert 1.02 < last / first < 1.10

    @pytest.mark.parametrize(
        ("model", "tp", "other"),
        [
            pytest.param("deepseek-v3", 8, "remainder-first", id="LMSYS 2026-01-15 (row 3): 16,15,15,15"),
            pytest.param("deepseek-v3", 8, "middle-stages", id="vllm PR 46217 (row 4): 15,15,16,15"),
            pytest.param("qwen3-235b-fp8", 4, "middle-stages", id="vllm PR 46217 (row 4): 23,24,24,23"),
        ],
    )
    def test_with_four_stages_too(self, model: str, tp: int, other: str) -> None:
        """Rows 3 and 4 give the sign only: 15,15,15,16 and 23,23,24,24 are better."""
        assert chunked_prompts(model, tp, 4, 4096) > chunked_prompts(model, tp, 4, 4096, rule=other)


class TestChunkedEfficiency:
    """Check 2: what a pipeline reaches of `stages` times the speed of one stage, for 128K prompts in chunks."""

    @pytest.mark.parametrize(
        ("model", "tp", "pp", "chunk", "published"),
        [
            pytest.param("deepseek-v3", 8, 4, 4096, 3.20 / 4, id="row 14, fixed 4K"),
            pytest.param("deepseek-v3", 8, 4, 12288, 3.01 / 4, id="row 14, fixed 12K"),
            pytest.param("qwen3-235b-fp8", 4, 8, 6144, 0.696, id="row 16, fixed 6K"),
        ],
    )
    def test_of_the_published_chunks(self, model: str, tp: int, pp: int, chunk: int, published: float) -> None:
        """LMSYS 2026-01-15 (rows 14 and 16), H20, mean of 16 prompts back to back: within 6 points."""
        one_stage = chunked_prompts(model, tp, 1, 32768, prompts=16)
        efficiency = chunked_prompts(model, tp, pp, chunk, prompts=16) / one_stage / pp
        assert efficiency == pytest.approx(published, abs=0.06)
        low, high = (0.73, 0.88) if pp == 4 else (0.65, 0.80)
        assert low < efficiency < high

    @pytest.mark.parametrize("pp", [4, 8])
    def test_never_beats_the_bubble_of_a_single_prompt(self, pp: int) -> None:
        """M equal chunks over P stages cannot be better than M / (M + P - 1); the dearer last chunks make it worse."""
        for chunk in CHUNKS:
            count = LONG_PROMPT // chunk
            gained = chunked_prompts("deepseek-v3", 8, pp, chunk) / chunked_prompts("deepseek-v3", 8, 1, chunk)
            assert gained / pp < count / (count + pp - 1)

    def test_the_best_chunk_is_inside_and_gets_smaller_with_more_stages(self) -> None:
        """LMSYS 2026-01-15 (rows 14 and 16): 4K beats 12K with four stages, although one stage likes large chunks."""
        best = {pp: max(CHUNKS, key=lambda chunk: chunked_prompts("deepseek-v3", 8, pp, chunk)) for pp in (1, 4, 8)}
        assert best[1] == CHUNKS[-1]
        assert CHUNKS[0] < best[8] <= best[4] < best[1]

    def test_one_prompt_gains_what_was_measured(self) -> None:
        """Rows 15 and 16: TTFT 48.5 -> 15.5 s with PP4 (3.1x) and 55.5 -> 10.5 s with PP8 (5.3x, dynamic chunks)."""
        four = chunked_prompts("deepseek-v3", 8, 4, 4096) / chunked_prompts("deepseek-v3", 8, 1, 32768)
        eight = chunked_prompts("qwen3-235b-fp8", 4, 8, 6144) / chunked_prompts("qwen3-235b-fp8", 4, 1, 32768)
        assert four == pytest.approx(48.5 / 15.5, rel=0.15)
        assert eight == pytest.approx(55.5 / 10.5, rel=0.15)


class TestTimesOfLongPrompts:
    """LMSYS 2026-01-15: one prompt on H20, no GPU that any table was measured on: seconds, not ratios."""

    @pytest.mark.parametrize(
        ("model", "tp", "pp", "chunk", "prompt", "published_s"),
        [
            ("qwen3-235b-fp8", 4, 1, 32768, 131072, 55.5),
            ("qwen3-235b-fp8", 4, 8, 6144, 131072, 10.54),
            ("qwen3-235b-fp8", 4, 8, 6144, 262144, 32.68),
            ("qwen3-235b-fp8", 4, 8, 6144, 524288, 114.33),
            ("deepseek-v3", 8, 1, 32768, 131072, 48.5),
            ("deepseek-v3", 8, 4, 4096, 131072, 15.5),
        ],
    )
    def test_linear_then_quadratic(
        self, model: str, tp: int, pp: int, chunk: int, prompt: int, published_s: float
    ) -> None:
        flags = {
            "max_num_batched_tokens": chunk,
            "max_num_seqs": 16,
            "max_model_len": 600_000,
            "gpu_memory_utilization": 0.95,
            "num_gpu_blocks_override": 200_000,
        }
        nodes = max(1, tp * pp // 8)
        posed = problem(model, "H20", closed(1, prompt, 1, 1), tp=tp, pp=pp, nodes=nodes, flags=flags)
        assert metric("ttft_mean_ms", posed) / 1e3 == pytest.approx(published_s, rel=0.12)


class TestTightestStage:
    """Check 5: where the KV of the tightest stage binds, layers moved off the ends raise throughput.

    vllm PR 6920 (row 1): Llama-3-70B-FP8 on eight L4, even -> fewer layers first and last: KV blocks 1476 -> 3078,
    1.46x. What vLLM V0 took besides is not stated: utilisation is set so that the even split has its 1476 blocks, and
    the rest must follow. Neither are partition and lengths: 11 layers are the most whose stage can hold 3078 blocks.
    """

    EVEN = (10,) * 8
    FEWER_AT_THE_ENDS = (9, 10, 10, 11, 11, 10, 10, 9)

    def test_more_blocks_and_more_tokens(self, tmp_path: Path) -> None:
        flags = {
            "gpu_memory_utilization": 0.563,
            "max_model_len": 8192,
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 256,
        }
        model = config_of(tmp_path, "llama-3.1-70b", quantization_config=FP8)
        posed = problem(model, "L4", closed(268, 800, 60, 268), tp=1, pp=8, flags=flags)
        even, fewer = measured(posed, self.EVEN), measured(posed, self.FEWER_AT_THE_ENDS)
        assert even.kv_blocks == pytest.approx(1476, rel=0.03)
        assert fewer.kv_blocks == pytest.approx(3078, rel=0.03)
        gain = fewer.metrics["output_throughput_tok_s"] / even.metrics["output_throughput_tok_s"]
        assert 1.3 < gain < 2.0
        # The stages without the head get less equal. With it they do not: on an L4 the 16-bit head alone takes as
        # long as 2.4 layers of a decode, so the last stage was the slowest before.
        assert _slowest_over_mean(even.stages) > _slowest_over_mean(fewer.stages) + 0.03
        assert _slowest_over_mean(even.stages[:-1]) < _slowest_over_mean(fewer.stages[:-1]) - 0.03

    def test_ample_memory_makes_it_a_matter_of_a_few_percent(self, tmp_path: Path) -> None:
        """The same change where KV does not bind: the gain of row 1 came from memory."""
        flags = {"gpu_memory_utilization": 0.92, "max_model_len": 8192, "max_num_seqs": 64}
        model = config_of(tmp_path, "llama-3.1-70b", quantization_config=FP8)
        posed = problem(model, "L4", closed(128, 800, 60, 64), tp=1, pp=8, flags=flags)
        name = "output_throughput_tok_s"
        assert metric(name, posed, self.FEWER_AT_THE_ENDS) / metric(name, posed, self.EVEN) < 1.15


def _slowest_over_mean(stages: tuple[StageReport, ...]) -> float:
    times = [stage.compute_s for stage in stages]
    return max(times) * len(times) / sum(times)


class TestHandMadePartitions:
    """Check 8: the profile study's vectors on Kimi-K3, pp8 tp2: default, then 6.1 "no better", then 6.2 "worse"."""

    FLAGS = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "max_model_len": 32768}  # noqa: RUF012

    @pytest.mark.parametrize("gpu", ["H200", "B300"])
    @pytest.mark.parametrize(
        "batch",
        [prefill(2048), prefill(2048, 32768), decode(32, 1024), decode(128, 8192)],
        ids=["prefill", "late prefill", "decode 32", "decode 128"],
    )
    def test_the_slowest_stage_over_the_mean(self, gpu: str, batch: Batch) -> None:
        """Stage sums over composed kernel tables (aiconfigurator-core 0.12.0): 1.04, 1.12-1.13, 1.37-1.40."""
        posed = problem("kimi-k3", gpu, closed(16, 256, 32, 16), tp=2, pp=8, nodes=2, flags=self.FLAGS)
        for partition, published in ((DEFAULT, 1.04), (SEED_1, 1.125), (SEED_2, 1.385)):
            times = posed.costs.stage_costs(partition).compute_s(batch)
            assert max(times) * 8 / sum(times) == pytest.approx(published, abs=0.03)

    def test_the_order_in_throughput_once_batches_overlap(self) -> None:
        """The study's order; a filled pipeline loses what the slowest stage says: 1.13 / 1.04 and 1.39 / 1.04."""
        flags = self.FLAGS | {"gpu_memory_utilization": 0.95}
        posed = problem("kimi-k3", "B300", closed(128, 2048, 16, 64), tp=2, pp=8, nodes=2, flags=flags)
        default, one, two = (metric("total_throughput_tok_s", posed, p) for p in (DEFAULT, SEED_1, SEED_2))
        assert default > one > two
        assert default / one == pytest.approx(1.13 / 1.04, abs=0.04)
        assert default / two == pytest.approx(1.39 / 1.04, abs=0.08)

    def test_no_partition_matters_while_only_one_batch_travels(self) -> None:
        """The study's own load, all 16 prompts in one step: 7 of 8 stages wait whatever their layers."""
        flags = self.FLAGS | {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 16384}
        posed = problem("kimi-k3", "B300", closed(16, 256, 32, 16), tp=2, pp=8, nodes=2, flags=flags)
        figures = [metric("total_throughput_tok_s", posed, p) for p in (DEFAULT, SEED_1, SEED_2)]
        assert max(figures) / min(figures) < 1.02


class TestSerialChunks:
    """Check 9: vllm issue 41682 (row 10), DeepSeek-R1-FP4 on four GB300, PP4, 128K in, 1 out.

    No chunking / 32K / 12K / 4K: 1678 / ~1500 / 1536 / 1347 tokens a second and GPU. Chunks were serialised: in the
    V1 runner of that time every step ended in a broadcast that all stages waited for, chunk or not (vllm PR 38726 ended
    that in April 2026). One batch in flight is the same thing.
    """

    CHUNKS = (LONG_PROMPT, 32768, 12288, 4096)

    def figures(
        self, folder: Path, prompts: int, slots: int | None, engine: Mapping[str, str] | None = None
    ) -> list[float]:
        model = config_of(folder, "deepseek-r1", quantization_config=NVFP4)
        found = []
        for chunk in self.CHUNKS:
            flags = {
                "max_num_batched_tokens": chunk,
                "max_num_seqs": 64,
                "max_model_len": LONG_PROMPT + 8,
                "gpu_memory_utilization": 0.95,
            }
            load = closed(prompts, LONG_PROMPT, 1, prompts)
            posed = problem(model, "GB300", load, tp=1, pp=4, gpus_per_node=4, flags=flags, engine=engine)
            run = simulated(posed, replace(settings_of(posed), queue_slots=slots))
            found.append(prompts * LONG_PROMPT / run.duration_s / 4)
        return found

    def test_smaller_chunks_are_slower_when_they_do_not_overlap(self, tmp_path: Path) -> None:
        whole, *chunked = self.figures(tmp_path, 8, slots=1)
        assert whole == pytest.approx(1678, rel=0.25)
        assert whole > chunked[0] > chunked[1] > chunked[2]
        for figure, published in zip(chunked, (0.89, 0.92, 0.80), strict=True):
            assert figure / whole == pytest.approx(published, abs=0.10)

    def test_that_is_no_law_of_pipelines(self, tmp_path: Path) -> None:
        """The warning: with overlapping batches, as SGLang has them (rows 14 and 20), the same chunks win."""
        whole, *chunked = self.figures(tmp_path, 1, slots=None)
        assert min(chunked) > 1.5 * whole

    def test_follows_from_the_version_alone(self, tmp_path: Path) -> None:
        """The engine start of the row, a release before PR 38726, no other hint."""
        whole, *chunked = self.figures(tmp_path, 8, slots=None, engine={"version": "0.19.0", "runner": "v1"})
        assert whole > max(chunked)

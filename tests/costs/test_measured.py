"""The measured kernels: what the tables say, what is refused, and the traps in them.

Figures are rows of aiconfigurator-core 0.12.0 (Apache-2.0, Copyright NVIDIA), typed in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from partitune.costs.cost_model import Batch, decode, prefill
from partitune.costs.measured import operations as silicon
from partitune.costs.measured.operations import Kernels, MeasuredEngine, kernels_on
from partitune.costs.measured.tables import Table
from partitune.costs.roofline import RooflineCosts
from partitune.engines.registry import ENGINES
from partitune.hardware.gpus import gpu
from tests.builders import roofline

pytest.importorskip("aiconfigurator_core")


def measured(engine: str) -> MeasuredEngine:
    found = ENGINES[engine].measured
    assert found is not None
    return found


def kernels(name: str, engine: str = "vllm") -> Kernels:
    found = kernels_on(gpu(name), measured(engine))
    assert found is not None
    return found


def costs(model: str, name: str, tp: int, pp: int = 1, engine: str | None = "vllm") -> RooflineCosts:
    return roofline(model, name, tp, pp, engine=measured(engine) if engine else None)


class TestRows:
    """A shape that is a row of a table takes what the row says."""

    @pytest.mark.parametrize(("rows", "us"), [(1, 6.41), (2048, 25.27)])
    def test_gemm(self, rows: int, us: float) -> None:
        grid = kernels("H200").gemm(512, 7168, "bf16")
        assert grid is not None
        assert 1e6 * grid(rows) == pytest.approx(us, rel=0.15)

    @pytest.mark.parametrize(("size", "us"), [(16384, 5.15), (1 << 20, 14.07)])
    def test_all_reduce_counts_bytes_and_not_elements(self, size: int, us: float) -> None:
        grid = kernels("H200").all_reduce(1024, 8)
        assert grid is not None
        assert 1e6 * grid(size / 2048) == pytest.approx(us, rel=0.05)

    @pytest.mark.parametrize(("context", "us"), [(128, 17.3), (1024, 67.2), (4096, 188.1)])
    def test_decode_attention(self, context: int, us: float) -> None:
        attention = kernels("H100").grouped_query(64, 8, 128, None)
        assert attention is not None
        assert 1e6 * attention.decodes(32, context) == pytest.approx(us, rel=0.05)


class TestTraps:
    """What the tables would answer, and must not."""

    def test_a_group_that_nobody_measured_has_no_time(self) -> None:
        """The package extrapolates 16 ranks over a network that it guesses: 1.2 ms where 8 take 15 us."""
        assert kernels("H100").all_reduce(4096, 16) is None

    def test_fp8_gemms_are_those_timed_inside_a_graph(self) -> None:
        """vLLM's rows of 4096 x 7168 start at 56 us with the host's launches, SGLang's of the same kernel at 14."""
        grid = kernels("H200").gemm(4096, 7168, "fp8_block")
        assert grid is not None
        assert 1e6 * grid(32) == pytest.approx(14, rel=0.1)

    def test_the_eagerly_timed_convolution_of_a_prompt_loses_its_launches(self) -> None:
        """H200, 48 heads: convolution 820 and scan 200 us at 2048 tokens, 1273 and 1409 us at 16384."""
        state = kernels("H200").state("KDAKernel", 7168, 48, 48, 128)
        assert state is not None
        assert 0.8 * (1273 + 1409) < 1e6 * state.prompts(16384) < 1273 + 1409
        assert 200 < 1e6 * state.prompts(2048) < 0.45 * (820 + 200)

    def test_unfused_norms_are_taken_off_the_mla_block(self) -> None:
        """Decode of 32 at 16 heads: 121.5 us on H200, of which 43 are norms that no server runs; B200 has none."""
        block = kernels("H200").latent(16, "bf16", 128)
        assert block is not None
        assert 1e6 * block.decodes(32, 1024) == pytest.approx(121.5 - 43, rel=0.03)

    def test_a_short_chunk_after_a_long_past_still_reads_its_weights(self) -> None:
        block = kernels("H200").latent(16, "bf16", 128)
        assert block is not None
        assert block.prompts(1, 65536) >= block.prompts(1, 1) > 80e-6

    @pytest.mark.parametrize(
        ("name", "engine", "dtype"),
        [("A100-80GB", "vllm", "fp8_block"), ("H200", "vllm", "nvfp4"), ("H200", "vllm", "x")],
    )
    def test_a_format_the_gpu_does_not_have_was_not_measured(self, name: str, engine: str, dtype: str) -> None:
        assert kernels(name, engine).gemm(4096, 7168, dtype) is None

    def test_nothing_is_taken_from_another_gpu(self) -> None:
        assert kernels_on(gpu("H20"), measured("vllm")) is None
        assert kernels_on(gpu("A100-40GB"), measured("vllm")) is None


class TestBatch:
    """How a step's time moves with its batch."""

    def test_prefill_is_linear_and_then_quadratic(self) -> None:
        layers = costs("llama-3.1-70b", "H100", 4)
        at = {n: layers.layer_s(0, prefill(n)).sum() for n in (1024, 2048, 16384, 32768)}
        assert at[2048] / at[1024] == pytest.approx(2.0, rel=0.15)
        assert at[32768] / at[16384] > 2.2

    def test_decode_has_a_floor_of_reading_the_weights(self) -> None:
        layers = costs("llama-3.1-70b", "H100", 4)
        one, few, many = (layers.layer_s(0, decode(n, 512)).sum() for n in (1, 16, 512))
        weights_s = 2 * 68.5e9 / 4 / 3.35e12  # 16-bit parameters of the layers on 4 GPUs of 3.35 TB/s
        assert weights_s < one < 2 * weights_s
        assert few < 1.2 * one
        assert many > 1.8 * one

    def test_experts_cost_what_is_hit(self) -> None:
        """DeepSeek-V3's 256 experts, 8 a token: 8 at one token, 163 at 32 (8 x 20), all at 512."""
        grid = kernels("H200").experts(7168, 2048, 256, 8, tp=8, ep=1, dtype="fp8_block", gated=True)
        assert grid is not None
        assert 3.5 < grid(32) / grid(1) < 20
        assert grid(512) < 2 * grid(64)

    def test_rows_of_padding_are_computed_and_not_attended(self) -> None:
        layers = costs("llama-3.1-70b", "H100", 4)
        padded = Batch(decode_tokens=100, decode_context=100 * 8192, sampled=100, padding=28)
        assert (layers.layer_s(0, decode(100, 8192)) <= layers.layer_s(0, padded)).all()
        assert layers.layer_s(0, padded).sum() < layers.layer_s(0, decode(128, 8192)).sum()

    def test_beside_a_prompt_a_block_measured_whole_reads_its_weights_once(self) -> None:
        layers = costs("deepseek-v3", "H200", 8)
        alone = layers.layer_s(0, prefill(2048)).sum()
        mixed = layers.layer_s(0, Batch(2048, 2048 * 1024.5, 8, 8 * 1024, 8)).sum()
        assert alone < mixed < alone + 0.5 * layers.layer_s(0, decode(8, 1024)).sum()


class TestSources:
    """Every stage time says what it rests on."""

    @pytest.mark.parametrize("batch", [prefill(2048), prefill(64), decode(32, 1024)])
    def test_the_parts_are_the_whole(self, batch: Batch) -> None:
        stages = costs("kimi-k3", "B300", 2, 8).stage_costs((11, 11, 12, 12, 12, 12, 12, 11))
        for seconds, parts in zip(stages.compute_s(batch), stages.sources(batch), strict=True):
            assert seconds == pytest.approx(sum(parts), rel=1e-12)
            assert sum(parts.shares().values()) == pytest.approx(1.0)

    def test_a_measured_gpu_rests_on_its_kernels_and_another_on_none(self) -> None:
        step = decode(32, 1024)
        assert costs("llama-3.1-70b", "H100", 2).stage_costs((80,)).sources(step)[0].shares()["measured"] > 0.9
        assert costs("llama-3.1-70b", "H20", 2).stage_costs((80,)).sources(step)[0].measured == 0.0
        assert costs("llama-3.1-70b", "H100", 2, engine=None).stage_costs((80,)).sources(step)[0].measured == 0.0

    def test_a_short_prompt_waits_for_the_host(self) -> None:
        shares = costs("kimi-k3", "B300", 8).stage_costs((93,)).sources(prefill(129))[0].shares()
        assert shares["host"] > 0.2

    def test_the_line_names_the_tables(self) -> None:
        assert "(h100_sxm vllm 0.24.0)" in costs("llama-3.1-70b", "H100", 2).source
        assert "measured in" not in costs("llama-3.1-70b", "H20", 2).source

    def test_without_the_package_it_says_so_and_works(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (silicon, sys.modules["partitune.costs.roofline"]):
            monkeypatch.setattr(module, "installed_release", lambda: None)
        kernels_on.cache_clear()
        try:
            bare = costs("llama-3.1-70b", "H100", 2)
        finally:
            kernels_on.cache_clear()
        assert (
            "no measured kernels: aiconfigurator-core is not installed (pip install 'partitune[silicon]')"
            in bare.source
        )
        alone = costs("llama-3.1-70b", "H100", 2, engine=None)
        assert bare.layer_s(0, decode(32, 1024)).sum() == alone.layer_s(0, decode(32, 1024)).sum()


class TestKeptAnswers:
    """Opening the tables takes seconds; an answer is kept."""

    def ask(self) -> float:
        grid = Table("h200_sxm", "vllm", "0.24.0").by_rows("CustomAllReduce", 4096, 2)
        assert grid is not None
        return grid(64)

    def test_the_second_process_opens_no_table(self, tmp_path: Path) -> None:
        code = (
            "import sys; from tests.costs.test_measured import TestKeptAnswers as T\n"
            "print(T().ask(), 'aiconfigurator_core.sdk' in sys.modules)"
        )
        root = Path(__file__).parent.parent.parent
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(root)}
        printed = [
            subprocess.run(
                [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
            ).stdout.split()
            for _ in range(2)
        ]
        assert [opened for _, opened in printed] == ["True", "False"]
        assert printed[0][0] == printed[1][0]

    def test_a_spoilt_answer_is_asked_for_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        before = self.ask()
        (kept,) = tmp_path.rglob("*.json")
        for spoilt in ("{", "[]", '{"question": "another", "seconds": [1.0]}'):
            kept.write_text(spoilt)
            assert self.ask() == before
        assert kept.read_text() != spoilt

    def test_a_place_that_cannot_be_written_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
        assert self.ask() > 0

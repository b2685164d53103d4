"""Which releases have a model's class: values from release notes and from the releases' own refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.read_registries import Release, sglang_architectures, vllm_architectures
from benchmarks.read_registries import runs as runs_of
from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.registry import ENGINES, engine
from partitune.engines.versions import Version
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from tests.small_models import architecture

#: vLLM 0.32.0, before its table was read: classes that do not inherit from `SupportsPP`.
_WITHOUT_PIPELINE = (
    "AriaForConditionalGeneration", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", "HrmTextForCausalLM",
    "IQuestLoopCoderForCausalLM", "Mamba2ForCausalLM", "Phi4MMForCausalLM", "WhisperForConditionalGeneration",
    "Zamba2ForCausalLM",
)  # fmt: skip


def _broken(
    name: str, version: str, model_class: str, stages: int = 1, flags: Mapping[str, FlagValue] | None = None
) -> dict[str, str]:
    model = replace(architecture("f" * 8), architecture=model_class)
    start = Deployment(version, model, Layout(pp=stages), gpu("H200"), flags=flags or {})
    return {fault.rule: fault.message for fault in engine(name).architecture_faults(start)}


@pytest.mark.parametrize(
    ("name", "first", "last_without", "model_class"),
    [
        ("vllm", "0.27.0", "0.26.0", "KimiK3ForConditionalGeneration"),
        ("vllm", "0.8.4", "0.8.3", "Qwen3MoeForCausalLM"),  # vLLM PR 15289, released with 0.8.4
        ("vllm", "0.10.1", "0.10.0", "GptOssForCausalLM"),
        ("vllm", "0.11.0", "0.10.2", "DeepseekV32ForCausalLM"),
        ("sglang", "0.5.17", "0.5.16", "KimiK3ForConditionalGeneration"),
        ("sglang", "0.5.2", "0.5.1", "Qwen3NextForCausalLM"),
    ],
)
def test_a_release_that_does_not_know_the_model_is_refused_with_the_first_that_does(
    name: str, first: str, last_without: str, model_class: str
) -> None:
    assert _broken(name, first, model_class) == {}
    message = _broken(name, last_without, model_class)["architecture-missing"]
    assert model_class in message
    assert f"which comes with {first}" in message


def test_kimi_k3_does_not_run_on_a_release_from_before_it() -> None:
    message = _broken("vllm", "0.8.0", "KimiK3ForConditionalGeneration", 8)["architecture-missing"]
    assert message.startswith("vLLM 0.8.0 has no KimiK3ForConditionalGeneration, which comes with 0.27.0")


def test_a_class_that_left_is_refused_with_the_release_that_left_it_out() -> None:
    # vLLM 0.33.0 _PREVIOUSLY_SUPPORTED_MODELS: last in 0.23.0
    assert _broken("vllm", "0.23.0", "MiniMaxM1ForCausalLM") == {}
    assert "which left with 0.24.0" in _broken("vllm", "0.33.0", "MiniMaxM1ForCausalLM")["architecture-missing"]


@pytest.mark.parametrize("model_class", _WITHOUT_PIPELINE)
def test_classes_without_a_pipeline_run_on_one_stage_only(model_class: str) -> None:
    assert _broken("vllm", "0.32.0", model_class) == {}
    assert list(_broken("vllm", "0.32.0", model_class, 2)) == ["no-pipeline-support"]


@pytest.mark.parametrize(
    ("name", "version", "model_class", "since"),
    [
        ("sglang", "0.5.23", "Qwen3NextForCausalLM", "as every release"),  # asserts that it is the only rank
        ("sglang", "0.5.9", "MiniMaxM2ForCausalLM", "which comes with 0.5.10"),
        ("vllm", "0.20.2", "DeepseekV4ForCausalLM", "which comes with 0.21.0"),
        ("vllm", "0.8.3", "Llama4ForConditionalGeneration", "which comes with 0.8.4"),
    ],
)
def test_a_pipeline_may_come_later_than_the_class(name: str, version: str, model_class: str, since: str) -> None:
    assert _broken(name, version, model_class) == {}
    assert since in _broken(name, version, model_class, 2)["no-pipeline-support"]


def test_a_class_that_nobody_knows_is_told_and_not_refused() -> None:
    for each in ENGINES.values():
        model = replace(architecture("ff"), architecture="NextWeekForCausalLM")
        assert _broken(each.name, str(each.versions_read.newest), "NextWeekForCausalLM", 2) == {}
        assert "NextWeekForCausalLM" in each.model_notes(model, gpu("H200"), str(each.versions_read.newest))[0]
        known = replace(model, architecture="LlamaForCausalLM")
        assert each.model_notes(known, gpu("H200"), str(each.versions_read.newest)) == ()


def test_what_lies_outside_the_releases_that_were_read() -> None:
    assert _broken("vllm", "0.5.0", "LlamaForCausalLM", 2) == {}  # as in 0.6.3, the oldest
    assert "architecture-missing" in _broken("vllm", "0.5.0", "Qwen3ForCausalLM")
    assert _broken("vllm", "0.40.0", "KimiK3ForConditionalGeneration", 8) == {}
    assert "architecture-missing" in _broken("vllm", "0.40.0", "MiniMaxM1ForCausalLM")


def test_a_model_of_another_package_is_not_looked_up() -> None:
    assert _broken("vllm", "0.8.0", "Qwen3ForCausalLM", flags={"model_impl": "transformers"}) == {}


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_tables_are_whole_and_in_order(name: str) -> None:
    registry = engine(name).registry
    assert registry is not None
    text = resources.files(f"partitune.engines.{name}").joinpath("architectures.csv").read_text("utf-8")
    assert sum(map(len, registry.runs.values())) == len(text.splitlines()) - 2
    oldest, newest = registry.span
    assert newest >= engine(name).versions_read.newest
    assert oldest <= engine(name).versions_read.oldest
    for runs in registry.runs.values():
        borders = [border for run in runs for border in (run.since, run.until or Version(9999, 0))]
        assert borders == sorted(borders)
        assert all(
            earlier.pipeline != later.pipeline for earlier, later in pairwise(runs) if earlier.until == later.since
        )


def _release(folder: Path, files: Mapping[str, str]) -> Release:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return Release(folder)


def test_what_a_vllm_registry_says_is_read_from_its_text(tmp_path: Path) -> None:
    release = _release(
        tmp_path,
        {
            "vllm/model_executor/models/registry.py": """
_TEXT_GENERATION_MODELS = {"A": ("a", "A"), "B": ("a", "B"), "C": ("vllm.models.c", "C"), "D": ("a", "D")}
_PREVIOUSLY_SUPPORTED_MODELS = {"Gone": "0.10.2"}
_SPECULATIVE_DECODING_MODELS = {"Draft": ("a", "A")}
""",
            "vllm/model_executor/models/a.py": """
from .interfaces import SupportsPP
class Base(Module, SupportsPP): ...
class A(Base[int]): ...
class B(Module): ...
class D(Base):
    def __init__(self):
        if stages > 1:
            raise NotImplementedError("D does not support pipeline parallelism")
""",
            "vllm/models/c/__init__.py": """
if rocm:
    from .amd import C
else:
    from .nvidia import C
""",
            "vllm/models/c/nvidia.py": "from vllm.model_executor.models.a import Base\nclass C(Base): ...",
            "vllm/models/c/amd.py": "class C(Module): ...",
        },
    )
    assert vllm_architectures(release) == {"A": True, "B": False, "C": True, "D": False}


def test_what_sglang_has_is_read_from_its_models(tmp_path: Path) -> None:
    release = _release(
        tmp_path,
        {
            "sglang/srt/models/a.py": """
class A:
    def forward(self, input_ids, pp_proxy_tensors=None): ...
class B:
    def forward(self, input_ids): ...
EntryClass = [A, B]
""",
            "sglang/srt/models/c.py": "from sglang.srt.models.a import A\nclass C(A): ...\nEntryClass = C",
            "sglang/srt/models/nobody.py": "class Helper: ...",
        },
    )
    assert sglang_architectures(release) == {"A": True, "B": False, "C": True}


def test_runs_are_cut_where_releases_disagree() -> None:
    first, second, third = Version(0, 1), Version(0, 2), Version(0, 3)
    releases = {second: {"A": True, "B": False}, first: {"A": False, "B": False}, third: {"A": True}}
    assert list(runs_of(releases)) == [
        ("A", "0.1.0", "0.2.0", "no"),
        ("A", "0.2.0", "", "yes"),
        ("B", "0.1.0", "0.3.0", "no"),
    ]

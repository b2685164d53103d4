"""Which releases take a checkpoint's quantisation: values from release notes and from the releases' own refusals."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

import pytest

from benchmarks.read_quantisations import methods, runs
from partitune.engines.deployment import Deployment
from partitune.engines.registry import ENGINES, engine
from partitune.engines.versions import Version
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.published import catalog_names
from partitune.models.reader import load_architecture
from tests.small_models import architecture


def _refused(name: str, version: str, method: str) -> str:
    model = replace(architecture("ff"), quantisation=method)
    start = Deployment(version, model, Layout(), gpu("H200"))
    faults = {fault.rule: fault.message for fault in engine(name).architecture_faults(start)}
    return faults.get("quantisation-missing", "")


@pytest.mark.parametrize(
    ("name", "version", "method"),
    [
        ("vllm", "0.10.1", "mxfp4"),  # gpt-oss: vLLM 0.10.1 release notes
        ("vllm", "0.33.0", "auto-round"),  # taken as inc
        ("vllm", "0.33.0", "gptq"),
        ("vllm", "0.8.5", "torchao"),
        ("vllm", "0.23.0", "gguf"),
        ("sglang", "0.5.23", "gptq"),  # as gptq_marlin
        ("sglang", "0.5.23", "gguf"),
        ("sglang", "0.5.23", "modelopt"),
        ("vllm", "0.33.0", ""),
    ],
)
def test_14_a_method_that_the_engine_takes_is_not_refused(name: str, version: str, method: str) -> None:
    assert _refused(name, version, method) == ""


@pytest.mark.parametrize(
    ("name", "version", "method", "when"),
    [
        ("vllm", "0.33.0", "gguf", "left by 0.24.0"),
        ("vllm", "0.33.0", "bitsandbytes", "left by 0.28.0"),
        ("vllm", "0.33.0", "hqq", "left by 0.15.1"),
        ("vllm", "0.33.0", "exl3", "as no release"),
        ("vllm", "0.9.2", "mxfp4", "comes after 0.9.2"),
        ("sglang", "0.5.23", "torchao", "as no release"),
        ("sglang", "0.5.23", "hqq", "as no release"),
        ("sglang", "0.5.4", "auto-round", "comes after 0.5.4"),
        ("sglang", "0.5.6", "bitsandbytes", "comes after 0.5.7"),
    ],
)
def test_14_a_method_that_it_does_not_take_is_refused_by_name(name: str, version: str, method: str, when: str) -> None:
    message = _refused(name, version, method)
    assert f"takes no {method} checkpoint" in message
    assert when in message


def test_14_every_model_of_the_catalog_is_taken_as_it_is_stored_by_the_newest_releases() -> None:
    for name in catalog_names():
        for each in ENGINES.values():
            assert not _refused(each.name, str(each.versions_read.newest), load_architecture(name).quantisation), name


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_tables_of_methods_are_whole(name: str) -> None:
    table = engine(name).quantisations
    assert table is not None
    text = resources.files(f"partitune.engines.{name}").joinpath("quantisations.csv").read_text("utf-8")
    assert sum(map(len, table.runs.values())) == len(text.splitlines()) - 2
    assert table.span[1] >= engine(name).versions_read.newest


def test_methods_are_read_from_either_engines_text() -> None:
    assert methods('QuantizationMethods = Literal["a", "b"]\nOTHER = ["c"]') == {"a", "b"}
    source = """
BASE_QUANTIZATION_METHODS: dict = {"fp8": Fp8}
if is_cpu() or is_cuda():
    BASE_QUANTIZATION_METHODS.update({"mxfp4": Mxfp4})
if is_npu():
    BASE_QUANTIZATION_METHODS.update({"gptq": Ascend})
"""
    assert methods(source) == {"fp8", "mxfp4"}


def test_runs_of_methods_end_at_releases_that_lack_them() -> None:
    first, second, third = Version(0, 1), Version(0, 2), Version(0, 3)
    releases = {first: frozenset({"a", "b"}), second: frozenset({"b"}), third: frozenset({"a", "b"})}
    assert list(runs(releases)) == [("a", "", "0.2.0"), ("a", "0.2.0", ""), ("b", "", "")]

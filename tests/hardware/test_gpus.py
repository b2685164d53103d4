from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.hardware.gpus import GPUS, gpu


def test_published_figures() -> None:
    # NVIDIA H200 data sheet: 4.8 TB/s, 1,979 TFLOP/s fp8 and 989 bf16 without sparsity
    assert gpu("H200").bandwidth_bytes_s == 4.8e12
    assert gpu("H200").bf16_flops_s == 989e12
    assert gpu("B300").fp4_flops_s / gpu("B200").fp4_flops_s == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "nvidia_smi_mib"),
    [("H200", 143771), ("B200", 183359), ("B300", 275040), ("GB200", 189471), ("L40S", 46068)],
)
def test_a_process_sees_a_little_less_than_nvidia_smi_prints(name: str, nvidia_smi_mib: int) -> None:
    assert 0.98 < gpu(name).memory_bytes / (nvidia_smi_mib << 20) < 1.0


def test_every_gpu_is_complete_and_says_where_from() -> None:
    for name, found in GPUS.items():
        assert found.name == name
        assert found.generation
        assert found.source
        assert 0 < found.bf16_flops_s <= found.fp8_flops_s <= found.fp4_flops_s


@pytest.mark.parametrize("spelling", ["h200", "RTX 4090", "rtx_4090", "gb-200"])
def test_spelling_is_forgiving(spelling: str) -> None:
    assert gpu(spelling).name in {"H200", "RTX-4090", "GB200"}


@pytest.mark.parametrize(("wrong", "nearest"), [("A100", "A100-40GB or A100-80GB"), ("H2000", "H200"), ("B30", "B300")])
def test_an_unknown_gpu_names_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(SpecError, match=nearest):
        gpu(wrong)
    with pytest.raises(SpecError, match="known are"):
        gpu("abacus")

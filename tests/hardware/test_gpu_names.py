"""Item 13: every name that nvidia-smi and rocm-smi print means one card, and what may mean several is never guessed."""

from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.hardware.gpus import GPUS, gpu

#: As `nvidia-smi --query-gpu=name` and `rocm-smi --showproductname` print them.
PRINTED = {
    "Tesla V100-SXM2-16GB": "V100-16GB",
    "Tesla V100-SXM2-32GB": "V100-32GB",
    "Tesla V100-PCIE-16GB": "V100-PCIe-16GB",
    "Tesla V100S-PCIE-32GB": "V100S",
    "Tesla T4": "T4",
    "Quadro RTX 8000": "Quadro-RTX-8000",
    "NVIDIA TITAN RTX": "TITAN-RTX",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA A800-SXM4-80GB": "A800-80GB",
    "NVIDIA A40": "A40",
    "NVIDIA A30": "A30",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA RTX A6000": "RTX-A6000",
    "NVIDIA RTX A4000": "RTX-A4000",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
    "NVIDIA RTX 5000 Ada Generation": "RTX-5000-Ada",
    "NVIDIA L4": "L4",
    "NVIDIA L20": "L20",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
    "NVIDIA H20": "H20",
    "NVIDIA H20-3e": "H20-141GB",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA H800": "H800",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB300": "GB300",
    "NVIDIA GB10": "GB10",
    "NVIDIA GeForce RTX 2080 Ti": "RTX-2080-Ti",
    "NVIDIA GeForce RTX 3090": "RTX-3090",
    "NVIDIA GeForce RTX 3090 Ti": "RTX-3090-Ti",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX-4070-Ti-Super",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "NVIDIA GeForce RTX 4090 D": "RTX-4090-D",
    "NVIDIA GeForce RTX 5070 Ti": "RTX-5070-Ti",
    "NVIDIA GeForce RTX 5090": "RTX-5090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000-Workstation",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX-PRO-6000-Max-Q",
    "NVIDIA RTX PRO 5000 Blackwell": "RTX-PRO-5000",
    "AMD Instinct MI210": "MI210",
    "AMD Instinct MI250X / MI250": "MI250X",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X OAM": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI355X": "MI355X",
    "AMD Radeon RX 7900 XTX": "RX-7900-XTX",
    "AMD Radeon PRO W7900": "W7900",
}


@pytest.mark.parametrize(("printed", "name"), PRINTED.items())
def test_13_what_a_tool_prints_is_one_card(printed: str, name: str) -> None:
    assert gpu(printed).name == name


@pytest.mark.parametrize("name", ["A6000", "L20", "L40", "H800", "GB10", "RTX-5070-Ti", "MI355X", "gaudi3", "RTX4090"])
def test_13_cards_people_ask_for_are_known(name: str) -> None:
    assert gpu(name).memory_bytes > 0


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", ["A100-40GB", "A100-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB"]),
        ("NVIDIA V100", ["V100-16GB", "V100-32GB", "V100-PCIe-16GB", "V100-PCIe-32GB"]),
        ("RTX 5060 Ti", ["RTX-5060-Ti-8GB", "RTX-5060-Ti-16GB"]),
        ("A100 PCIe", ["A100-PCIe-40GB", "A100-PCIe-80GB"]),
        ("6000", ["Quadro-RTX-6000", "RTX-6000-Ada", "RTX-PRO-6000", "RTX-PRO-6000-Workstation", "RTX-PRO-6000-Max-Q"]),
    ],
)
def test_13_a_name_of_several_cards_is_answered_with_exactly_those(name: str, meant: list[str]) -> None:
    with pytest.raises(SpecError, match=rf"did you mean {' or '.join(meant)}\?"):
        gpu(name)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "H100 PCIe 96GB", "MI308X", "H100 MIG 1g.10gb"])
def test_13_a_card_beside_a_known_one_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(SpecError, match=r"another card, (so )?state it .*like: L40S"):
        gpu(name)


def test_13_the_order_of_published_speeds() -> None:
    # GeForce with 32-bit accumulation: NVIDIA's Blackwell and Ada whitepapers, FP16 tensor with FP32 accumulate, dense
    assert gpu("RTX-4070").bf16_flops_s == pytest.approx(58.3e12)
    assert gpu("RTX-5080").bf16_flops_s == pytest.approx(112.6e12)
    # AMD's MI355X data sheet: 8 TB/s, 2.5 / 5.0 / 10.1 PFLOP/s
    assert [round(gpu("MI355X").peak_flops_s(width) / 1e15, 1) for width in ("bf16", "fp8", "fp4")] == [2.5, 5.0, 10.1]
    # without an FP8 unit (Ampere and before), or an FP4 one, the next wider type stands
    assert gpu("RTX-A6000").fp8_flops_s == gpu("RTX-A6000").bf16_flops_s
    assert gpu("L40").fp4_flops_s == gpu("L40").fp8_flops_s > gpu("L40").bf16_flops_s


@pytest.mark.parametrize("name", ["V100-32GB", "T4", "MI300X", "MI355X", "Gaudi3", "CPU-core"])
def test_13_a_card_no_kernel_of_whose_kind_was_measured_says_so(name: str) -> None:
    assert "measured" in GPUS[name].doubt
    assert not GPUS["H200"].doubt

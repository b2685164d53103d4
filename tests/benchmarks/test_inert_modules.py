"""Modules of a package run without what they import: whatever decides is real, the rest does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inert_modules import WheelFinder

DECIDES = """
from __future__ import annotations
from enum import IntEnum
import heavy.kernels as kernels
from heavy import Tensor, compiled
from engine.logger import init_logger
from engine.sizes import bytes_of
from engine.plan import rows

logger = init_logger(__name__)

class Wanted(Tensor, dict=True):
    rows: int

@compiled
def doubled(number: int | Tensor) -> int:
    with kernels.scope("doubled"):
        logger.info("doubling")
        return number * 2

class Layer(kernels.Module[int]):
    def forward(self) -> int:
        return 1 if kernels.has_gpu() else rows()
"""


@pytest.fixture
def decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`engine.core.decides` of a package of whose other modules only `engine.plan` is to run."""
    core = tmp_path / "engine" / "core"
    core.mkdir(parents=True)
    (tmp_path / "engine" / "__init__.py").write_text("raise ImportError('not to be run')")
    (tmp_path / "engine" / "plan.py").write_text("def rows(): return 7")
    (core / "__init__.py").write_text("")
    (core / "decides.py").write_text(DECIDES)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    real = ("engine.core", "engine.core.", "engine.plan")
    WheelFinder(tmp_path, "engine", real, ["heavy"], {"engine.sizes": {"bytes_of": len}}).install()
    yield import_module("engine.core.decides")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("engine", "heavy")]:
        del sys.modules[name]


def test_what_is_real_runs(decides: Any) -> None:
    assert decides.doubled(4) == 8
    assert decides.Layer().forward() == 7
    assert decides.Wanted(rows=3).rows == 3
    assert decides.bytes_of is len


def test_nothing_can_be_made_of_what_is_inert(decides: Any) -> None:
    assert not decides.Tensor
    assert decides.Tensor.size is decides.Tensor.size
    assert decides.Tensor.size is not decides.Tensor.stride
    for wrong in (lambda: decides.Tensor.size + 1, lambda: list(decides.Tensor), lambda: decides.Wanted.sizes):
        with pytest.raises((TypeError, AttributeError)):
            wrong()


def test_one_process_reads_one_wheel(decides: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="engine is imported already"):
        WheelFinder(tmp_path, "engine", (), ()).install()

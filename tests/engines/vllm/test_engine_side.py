"""What runs inside vLLM's workers: it stands alone, and it reports the layers that are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from partitune.engines.vllm import engine_side
from partitune.engines.vllm.engine_side.partitune_vllm_worker import LayerReport

FOLDER = Path(engine_side.__file__).parent


class PPMissingLayer:
    """Stands for a layer of another stage, by the name vLLM gives it (`model_executor/models/utils.py`)."""


class Worker(LayerReport):
    """vLLM's worker as far as it is asked: `get_model`, whose parts are listed by `modules`."""

    def __init__(self, layers: str, device: str = "cuda") -> None:
        stack = SimpleNamespace(start_layer=0, layers=[PPMissingLayer() if one == "." else object() for one in layers])
        tower = SimpleNamespace(start_layer=0, layers=[object()] * 2)  # of a vision tower: not what is cut
        weight = SimpleNamespace(device=SimpleNamespace(type=device), nbytes=100)
        self.model = SimpleNamespace(modules=lambda: [object(), tower, stack], parameters=lambda: [weight, weight])

    def get_model(self) -> Any:
        return self.model


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleType("vllm.distributed.parallel_state")
    vars(state).update(
        get_pp_group=lambda: SimpleNamespace(rank_in_group=1), get_tp_group=lambda: SimpleNamespace(rank_in_group=3)
    )
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", ModuleType("vllm.distributed"))
    monkeypatch.setitem(sys.modules, state.__name__, state)


def test_the_layers_that_are_there_are_reported() -> None:
    told = Worker("...xxxx..").partitune_layers()
    assert (told["pp_rank"], told["tp_rank"]) == (1, 3)
    assert (told["first_layer"], told["end_layer"], told["layers"], told["weight_bytes"]) == (3, 7, 9, 200)


def test_weights_in_host_memory_are_not_known() -> None:
    assert Worker("xx", "cpu").partitune_layers()["weight_bytes"] is None


def test_layers_with_a_gap_are_no_stage() -> None:
    with pytest.raises(RuntimeError, match=r"\[0, 2\] of 3"):
        Worker("x.x").partitune_layers()


def test_every_file_stands_alone() -> None:
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
    assert names == ["partitune_vllm_worker"]
    programme = (
        f"import sys; sys.path = [path for path in sys.path if 'site-packages' not in path] + [{str(FOLDER)!r}]\n"
        f"import {', '.join(names)}\n"
        "assert not {'partitune', 'vllm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-c", programme], check=True)

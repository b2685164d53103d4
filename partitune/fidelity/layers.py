"""All layers of a model in one step, against times composed from kernel measurements by another tool.

Decision: layers and head are compared, not the whole step: the composition has its own ideas about dense first layers,
so a DeepSeek model counts here as if every layer were like its last, as it does there. What it leaves out (rotary
embedding, the choice of experts, activations' quantisation) is in ours: a few percent of a short step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from partitune.costs.cost_model import Batch, CostModel, decode, prefill
from partitune.costs.roofline import RooflineCosts
from partitune.engines.registry import ENGINES
from partitune.fidelity.points import Point
from partitune.fidelity.set_ups import shipped_rows
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place
from partitune.models.reader import load_architecture

#: What the catalog has in another number format, or under another name.
_MODELS = {"meta-llama/Meta-Llama-3.1-405B": "llama-3.1-405b", "meta-llama/Meta-Llama-3.1-70B": "llama-3.1-70b"}
#: Models whose every layer the composition takes for one with experts.
_ALL_LIKE_THE_LAST = ("deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2.5")
#: Kernels of routed experts that the set-ups of an engine name.
_EXPERTS = {"sglang": "w4a8_mxfp4_mxfp8"}


def layer_points() -> Iterator[Point]:
    """Every set-up and batch: milliseconds of all layers."""
    for row in shipped_rows("layer_times.csv"):
        new, sequences, past = int(row["new_tokens"]), int(row["sequences"]), int(row["past_tokens"])
        batch = prefill(new, past) if row["phase"] == "prefill" else decode(sequences, past)
        like_last = row["model"] in _ALL_LIKE_THE_LAST
        arguments = (row["model"], row["gpu"], int(row["tp"]), row["engine"])
        predicted, roofline = (_costs(*arguments, with_kernels) for with_kernels in (True, False))
        yield Point(
            engine=row["engine"],
            model=row["model"],
            gpu=row["gpu"],
            case=f"TP{row['tp']} {row['phase']} of {new} after {past}",
            measured=float(row["layers_us"]) / 1e3,
            predicted=_layers_ms(predicted, batch, like_last),
            roofline=_layers_ms(roofline, batch, like_last),
        )


def _layers_ms(costs: CostModel, batch: Batch, like_last: bool) -> float:
    seconds = costs.layer_s(0, batch)
    return 1e3 * float(seconds[-1] * len(seconds) if like_last else seconds.sum())


@cache
def _costs(model: str, gpu_name: str, tp: int, engine: str, with_kernels: bool) -> CostModel:
    known = ENGINES.get(engine) if with_kernels else None
    return RooflineCosts(
        load_architecture(_MODELS.get(model, model)),
        place(Machines(1, 8, [gpu(gpu_name)]), Layout(tp=tp, pp=1)),
        expert_kernel=_EXPERTS.get(engine),
        measured_engine=None if known is None else known.measured,
    )

"""Microseconds of one cost query: all stages of a partition for one batch, known to the model or new to it.

    python benchmarks/costs.py

A simulated run asks once per different batch and is answered from memory afterwards; a planner asks every stage about
batches it has not seen. Making a model reads its kernel tables, kept answers the second time (measured/tables.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from partitune.costs.cost_model import Batch, decode
from partitune.costs.roofline import RooflineCosts
from partitune.engines.registry import engine
from partitune.engines.vllm.models import MEASURED
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place
from partitune.models.reader import load_architecture

SET_UPS = (
    ("kimi-k3", "B300", 2, 8),
    ("deepseek-v3", "H200", 8, 4),
    ("qwen3-235b", "H200", 4, 4),
    ("llama-3.1-405b", "H20", 8, 2),
)
QUERIES = 2000
LIMIT_US = 200


def median_us(ask: Callable[[Batch], object], batches: Sequence[Batch]) -> float:
    """Median CPU microseconds of a query."""
    taken = []
    for batch in batches:
        begin = time.process_time_ns()
        ask(batch)
        taken.append(time.process_time_ns() - begin)
    return sorted(taken)[len(taken) // 2] / 1e3


def main() -> None:
    """Time and print."""
    print(f"{'model':16} {'GPU':5} {'TP x PP':8} {'made':>8} {'new batch':>10} {'known batch':>12}")
    for model, name, tp, pp in SET_UPS:
        architecture = load_architecture(model)
        placement = place(Machines(max(1, tp * pp // 8), 8, [gpu(name)]), Layout(tp=tp, pp=pp))
        begin = time.process_time()
        costs = RooflineCosts(architecture, placement, measured_engine=MEASURED)
        made_s = time.process_time() - begin
        partition = engine("vllm").default_partition(len(architecture.layers), pp, "0.33.0", None)
        stages = costs.stage_costs(partition)
        batches = [decode(1 + n % 256, 1024 + n) for n in range(QUERIES)]
        new, known = median_us(stages.compute_s, batches), median_us(stages.compute_s, batches)
        within = "" if max(new, known) < LIMIT_US else f"  over {LIMIT_US} us"
        print(f"{model:16} {name:5} {f'{tp} x {pp}':8} {made_s:6.2f} s {new:7.0f} us {known:9.2f} us{within}")


if __name__ == "__main__":
    main()

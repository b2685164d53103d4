"""How long the exact planner takes, and how often it is not exact.

    python -m benchmarks.planner

Decision: CPU time of this process, median of repeated solves, beside the time that the project allows itself. Exactness
is counted over random chains small enough to try every partition: unequal stages, capped memory, forbidden cuts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import combinations

import numpy as np

from benchmarks.synthetic_instances import LAYERS, STAGES, Server, true_costs
from partitune.costs.cost_model import Floats
from partitune.planning.solver import (
    along,
    fluid_bound_s,
    minimise_bottleneck,
    minimise_sum,
    minimise_ttft,
    pareto_front,
    stage_tensor,
)
from partitune.planning.stage_order import launchable_orders

#: CPU milliseconds that a solve may take, by layers and stages.
TARGETS = {(93, 8): 5.0, (200, 64): 200.0}
CHAINS = 500


def spent_ms(work: Callable[..., object], *inputs: object) -> float:
    """CPU milliseconds, the median of several times."""
    times: list[float] = []
    while len(times) < 5 or sum(times) < 300:
        begin = time.process_time()
        work(*inputs)
        times.append(1000 * (time.process_time() - begin))
    return statistics.median(times)


def chain(layers: int, stages: int) -> tuple[Floats, Floats, Floats, Floats]:
    """A hybrid model on unequal GPUs: times, KV capacity, and what the times are made of."""
    rng = np.random.default_rng(0)
    full = (np.arange(layers) % 4 == 3) | (np.arange(layers) == layers - 1)
    layer_s = np.where(full, 1.6, 1.0) * rng.uniform(0.9, 1.1, layers) * rng.uniform(0.9, 1.1, (stages, 1))
    edge_s = np.full(stages, 0.2)
    edge_s[-1] += 3.0
    times = stage_tensor(layer_s, edge_s)
    held = np.concatenate(([0], np.cumsum(full)))
    held = held[None, :] - held[:, None]
    length = np.arange(layers + 1)[None, :] - np.arange(layers + 1)[:, None]
    free = 24.0 * layers / stages - 14.0 * length
    capacity = free / np.maximum(held, 1)
    return np.where(capacity > 0, times, np.inf), np.broadcast_to(capacity, times.shape), layer_s, edge_s


def inexact(chains: int) -> int:
    """How many of so many small chains the planner does not solve as trying every partition does."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(chains):
        stages, layers = int(rng.integers(2, 5)), int(rng.integers(6, 11))
        layer_s = rng.integers(1, 9, layers) * rng.uniform(0.5, 2.0, (stages, 1))
        times = stage_tensor(layer_s, rng.uniform(0, 3, stages))
        cap = rng.integers(layers // stages + 1, layers)
        start, end = np.ogrid[: layers + 1, : layers + 1]
        cuts = rng.random(layers + 1) < 0.15
        times[:, end - start > cap] = np.inf
        times[1:, cuts] = np.inf
        capacity = rng.integers(1, 9, times.shape).astype(np.float64)
        every = [np.diff((0, *inner, layers)).tolist() for inner in combinations(range(1, layers), stages - 1)]
        tried = [(along(times, one), along(capacity, one)) for one in every]
        legal = [(float(t.max()), float(c.min()), float(t.sum())) for t, c in tried if np.isfinite(t).all()]
        if not legal:
            continue
        front = sorted(
            {(t, c) for t, c, _ in legal if not any(u <= t and d >= c and (u, d) != (t, c) for u, d, _ in legal)}
        )
        same = [(one.bottleneck_s, one.capacity) for one in pareto_front(times, capacity)] == front
        same &= bool(np.isclose(minimise_bottleneck(times).bottleneck_s, front[0][0], rtol=1e-12))
        same &= bool(np.isclose(minimise_sum(times).total_s, min(total for _, _, total in legal), rtol=1e-12))
        prompt = minimise_ttft(times, 8)
        least = min(total + 7 * slowest for slowest, _, total in legal)
        same &= bool(np.isclose(prompt.total_s + 7 * prompt.bottleneck_s, least, rtol=1e-9))
        wrong += not same
    return wrong


def main() -> None:
    """Print the tables."""
    print(
        f"{'CPU ms, median':22}" + "".join(f"{f'{layers} layers, {stages} stages':>24}" for layers, stages in TARGETS)
    )
    cells: dict[str, list[str]] = {}
    for size, allowed_ms in TARGETS.items():
        times, capacity, layer_s, edge_s = chain(*size)
        points = len(pareto_front(times, capacity))
        for name, took in {
            "least slowest stage": f"{spent_ms(minimise_bottleneck, times):.2f} of {allowed_ms:g}",
            "least sum": f"{spent_ms(minimise_sum, times):.2f}",
            "first token, 8 chunks": f"{spent_ms(minimise_ttft, times, 8):.2f}",
            "front with KV": f"{spent_ms(pareto_front, times, capacity):.2f} ({points} points)",
            "fluid bound": f"{spent_ms(fluid_bound_s, layer_s, edge_s):.2f}",
            "times from layers": f"{spent_ms(stage_tensor, layer_s, edge_s):.2f}",
        }.items():
            cells.setdefault(name, []).append(took)
    for name, row in cells.items():
        print(f"{name:22}" + "".join(f"{cell:>24}" for cell in row))
    print()
    print(f"chains of {CHAINS} not solved as by trying every partition: {inexact(CHAINS)}")
    gaps = []
    for seed in range(200):
        costs = true_costs(seed)
        best = minimise_bottleneck(costs.tensor()).bottleneck_s
        gaps.append(100 * (best / fluid_bound_s(costs.layer, costs.edge) - 1))
    median, p90 = np.percentile(gaps, [50, 90])
    what = f"{LAYERS} layers on {STAGES} stages, 200 instances"
    print(f"{what}: whole layers cost {median:.1f} % in the median, {p90:.1f} % p90, {max(gaps):.1f} % at most")
    server = Server(true_costs(0), 14.0)
    flags = {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.92}
    front = server.front(flags)
    slower = front[-1].bottleneck_s / front[0].bottleneck_s - 1
    richer = (front[-1].capacity or 0.0) / (front[0].capacity or 1.0) - 1
    print(f"one front: {len(front)} points, {100 * richer:.0f} % more KV for {100 * slower:.1f} % of the slowest stage")
    kinds = ["A"] * 4 + ["B"] * 4
    for per_node, machines in ((8, "one machine"), (4, "two machines"), (2, "four machines of two")):
        nodes = [stage // per_node for stage in range(8)]
        print(f"orders of 4 + 4 GPUs on {machines}: {sum(1 for _ in launchable_orders(kinds, nodes))} can be launched")


if __name__ == "__main__":
    main()

"""Twenty pipelines with a known optimum: what a search is judged by before it may cost anything.

Decision: the instances of our algorithm study, rebuilt from their description. 93 layers on 8 stages: a dense first
layer, then three linear-attention layers to one full (1.0 and 1.6), LM head 3.0, embedding 0.4, each hand-off 0.2 and
0.3 more at the node boundary. The believed costs are these. The true ones differ: every kind is 15 to 30 % off either
way, a smooth drift over depth (8 %), 2 % a layer, and 3 % a stage's GPUs. Where the description is silent the choice
stands here: the dense layer costs 1.0, drift is Gaussian with a length of 20 layers, hand-offs count on both sides.

On top of it, a toy server in its steady state, with the four flags that matter and a limit on the time to the first
token. All costs of a stage grow alike with the tokens of a step, so partitions compare as if nothing were served, and
the optimum over all flags and partitions can be enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from partitune.candidate import FlagValue
from partitune.costs.cost_model import Floats
from partitune.errors import InfeasibleSpace
from partitune.planning.solver import Solution, along, pareto_front, stage_tensor

LAYERS, STAGES = 93, 8
IS_FULL = (np.arange(LAYERS) % 4 == 3) | (np.arange(LAYERS) == LAYERS - 1)
FLAGS: Mapping[str, tuple[FlagValue, ...]] = {
    "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192, 16384),
    "max_num_seqs": (8, 16, 32, 48, 64, 96, 128, 192, 256, 512),
    "async_scheduling": (False, True),
    "gpu_memory_utilization": (0.80, 0.84, 0.88, 0.90, 0.92, 0.95),
}
#: What the engine starts with.
DEFAULT_FLAGS: Mapping[str, FlagValue] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "async_scheduling": True,
    "gpu_memory_utilization": 0.92,
}
DEFAULT_PARTITION = (11, 11, 12, 12, 12, 12, 12, 11)
#: Weights of a layer in GB: the first leaves little for KV, the second much.
REGIMES = {"tight memory": 14.0, "rich memory": 9.0}
_MEMORY_GB, _KV_GB_PER_TOKEN = 2 * 141.0, 60e-6  # two H200 a stage; KV of one token in one full-attention layer
_PROMPT, _OUTPUT, _TTFT_LIMIT_S = 4096, 512, 2.5
#: Seconds a unit of cost: reading the weights for a step, a token, and what a chunk of a prompt costs besides.
_STEP_S, _TOKEN_S, _CHUNK_S = 0.8e-3, 2.5e-6, 0.5e-3
_HOST_S = 2.5e-3  # of a step without async scheduling
_ACTIVATION_GB_PER_TOKEN = 0.9e-3


@dataclass(frozen=True)
class Costs:
    """A chain of layers on a row of stages, in units of a linear-attention layer."""

    layer: Floats  # [stages, layers]
    edge: Floats  # [stages]

    def tensor(self) -> Floats:
        """Cost of every (stage, first layer, end layer)."""
        return stage_tensor(self.layer, self.edge)


def believed() -> Costs:
    """The constants of the description."""
    return _costs(dict.fromkeys(_KINDS, 1.0), np.ones(LAYERS), np.ones(STAGES))


def true_costs(seed: int) -> Costs:
    """One instance of what is really so."""
    rng = np.random.default_rng(seed)
    kinds = {kind: 1 + rng.choice([-1, 1]) * rng.uniform(0.15, 0.30) for kind in _KINDS}
    depth = np.arange(LAYERS)
    smooth = np.exp(-((depth[:, None] - depth[None]) ** 2) / (2 * 20.0**2)) + 1e-9 * np.eye(LAYERS)
    drift = 1 + 0.08 * np.linalg.cholesky(smooth) @ rng.standard_normal(LAYERS)
    return _costs(kinds, drift * (1 + 0.02 * rng.standard_normal(LAYERS)), 1 + 0.03 * rng.standard_normal(STAGES))


_KINDS = ("linear", "full", "dense", "embedding", "head", "hand-off")


def _costs(kinds: Mapping[str, float], layer: Floats, stage: Floats) -> Costs:
    base = np.where(IS_FULL, 1.6 * kinds["full"], kinds["linear"])
    base[0] = kinds["dense"]
    edge = np.zeros(STAGES)
    edge[0] += 0.4 * kinds["embedding"]
    edge[-1] += 3.0 * kinds["head"]
    hand_offs = kinds["hand-off"] * np.array([0.2 + 0.3 * (boundary == STAGES // 2) for boundary in range(1, STAGES)])
    edge[:-1] += hand_offs
    edge[1:] += hand_offs
    return Costs(base * layer * stage[:, None], edge * stage)


@dataclass(frozen=True)
class Served:
    """What a toy server does with one candidate."""

    tok_s: float
    short_gb: float  # memory that the tightest stage lacks, <= 0 when it fits
    late_s: float  # time to first token over its limit, <= 0 when met

    @property
    def feasible(self) -> bool:
        """True when it fits and meets its limit."""
        return self.short_gb <= 0 and self.late_s <= 0


@dataclass(frozen=True)
class Server:
    """A pipeline served under flags; `costs` may be the true ones or those believed."""

    costs: Costs
    layer_gb: float
    fragmentation: float = 0.05  # of the memory for KV that is never used

    @cached_property
    def _tensor(self) -> Floats:
        return self.costs.tensor()

    def serve(self, partition: tuple[int, ...], flags: Mapping[str, FlagValue]) -> Served:
        """Steady state: equal micro-batches, as many in flight as there are stages, or one more."""
        tokens = along(self._kv_tokens(flags), partition)
        if tokens.min() <= _PROMPT + _OUTPUT:
            return Served(0.0, float(-along(self._free_gb(flags), partition).min()) + 1.0, 0.0)
        return self._served(float(along(self._tensor, partition).max()), float(tokens.min()), flags)

    def front(self, flags: Mapping[str, FlagValue]) -> tuple[Solution, ...]:
        """The exact front of slowest stage and KV tokens. Raises InfeasibleSpace."""
        tokens = self._kv_tokens(flags)
        return pareto_front(np.where(tokens > _PROMPT + _OUTPUT, self._tensor, np.inf), tokens)

    def best(self) -> float:
        """Most output tokens a second over all flags and partitions."""
        best = 0.0
        memory_flags = ("max_num_batched_tokens", "gpu_memory_utilization")
        for budget, share in product(*(FLAGS[name] for name in memory_flags)):
            flags = {"max_num_batched_tokens": budget, "gpu_memory_utilization": share}
            try:
                front = self.front(flags)
            except InfeasibleSpace:
                continue
            for seqs, ahead in product(FLAGS["max_num_seqs"], FLAGS["async_scheduling"]):
                every = {**flags, "max_num_seqs": seqs, "async_scheduling": ahead}
                served = [self._served(one.bottleneck_s, one.capacity or 0.0, every) for one in front]
                best = max([best, *(one.tok_s for one in served if one.feasible)])
        return best

    def _served(self, slowest: float, kv_tokens: float, flags: Mapping[str, FlagValue]) -> Served:
        budget = float(flags["max_num_batched_tokens"])
        in_flight = STAGES + (1 if flags["async_scheduling"] else 0)
        running = min(float(flags["max_num_seqs"]), kv_tokens / (_PROMPT + _OUTPUT / 2))
        chunks = math.ceil(_PROMPT / budget)
        # Of every micro-batch some requests end, and as many prompts have to be read for those that follow.
        rows = min(running / in_flight, budget / (1 + _PROMPT / _OUTPUT))
        tokens_s = _TOKEN_S * rows * (1 + _PROMPT / _OUTPUT) + _CHUNK_S * chunks * rows / _OUTPUT
        host_s = 0.0 if flags["async_scheduling"] else _HOST_S
        step_s = slowest * (_STEP_S + tokens_s) + host_s
        # A prompt finds the others' work in the pipeline.
        chunk_s = slowest * (_STEP_S + _CHUNK_S + _TOKEN_S * (min(budget, _PROMPT) + rows)) + host_s
        ttft_s = in_flight * step_s + (STAGES + chunks - 1) * chunk_s
        return Served(rows / step_s, 0.0, ttft_s - _TTFT_LIMIT_S)

    def _free_gb(self, flags: Mapping[str, FlagValue]) -> Floats:
        start, end = np.ogrid[: LAYERS + 1, : LAYERS + 1]
        weights = self.layer_gb * np.maximum(end - start, 0)[None] + self._edge_gb[:, None, None]
        activations = _ACTIVATION_GB_PER_TOKEN * float(flags["max_num_batched_tokens"])
        free: Floats = _MEMORY_GB * float(flags["gpu_memory_utilization"]) - weights - activations
        return free

    @cached_property
    def _edge_gb(self) -> Floats:
        return np.array([2.3, *[0.0] * (STAGES - 2), 2.3])

    def _kv_tokens(self, flags: Mapping[str, FlagValue]) -> Floats:
        """Tokens that every window can hold: counted layer by layer, as cuts fall anywhere between full layers."""
        full = np.concatenate(([0], np.cumsum(IS_FULL)))
        held = (full[None, :] - full[:, None])[None]
        usable = (1 - self.fragmentation) * self._free_gb(flags)
        tokens: Floats = np.where(held > 0, usable / (_KV_GB_PER_TOKEN * np.maximum(held, 1)), -np.inf)
        return tokens


def with_costs(server: Server, costs: Costs) -> Server:
    """The same server believed to cost something else."""
    return replace(server, costs=costs)

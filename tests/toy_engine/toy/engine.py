"""Toy as the rest of partitune sees it: a thin face on what stands beside it. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from partitune.engines.toy.kv_planning import kv_blocks, kv_cache
from partitune.engines.toy.launch import ToyLaunch
from partitune.engines.toy.logs import ToyReadout
from partitune.engines.toy.rules import SOURCE, faults
from partitune.engines.toy.scheduler import simulate

from partitune.candidate import FlagValue
from partitune.costs.cost_model import Floats
from partitune.costs.memory import MemorySettings
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.engines.memory import KvCache
from partitune.engines.rules import Violation
from partitune.engines.scheduling import Flow, Simulation, near_powers
from partitune.engines.versions import Version, VersionRange
from partitune.errors import SpecError
from partitune.simulation.run import Overheads, Run

_OVERHEADS = Overheads(engine_step_s=1e-4)


class Toy(Engine):
    """The engine Toy."""

    name = "toy"
    versions_read = VersionRange("Toy", oldest=Version(1, 0), newest=Version(1, 2))
    split_rules = ((Version(0, 0), "remainder-first"),)
    written_by_partitune: ClassVar[Mapping[str, str]] = {
        "TOY_STAGE_LAYERS": "seeds, knobs.partition or --partition",
        "model": "model",
        "stages": "parallel.pp",
        "tensor_ranks": "parallel.tp",
    }
    launch = ToyLaunch()
    readout = ToyReadout()

    def default_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """The same on every GPU."""
        return {"batch_tokens": 4096, "running_requests": 128, "page_tokens": 16, "memory_share": 0.9}

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks."""
        return (*faults(deployment), *self.partition_faults(deployment, SOURCE))

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """A share of the card, one graph."""
        flags = self.effective_flags(deployment)
        return MemorySettings(
            max_num_batched_tokens=int(flags["batch_tokens"]),
            max_num_seqs=int(flags["running_requests"]),
            gpu_memory_utilization=float(flags["memory_share"]),
            share_flag="memory_share",
            graph_sizes=1,
        )

    def kv_cache(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvCache:
        """Pages of one partition."""
        return kv_cache(
            deployment, partition, free_bytes, self._page_tokens(deployment), self.fewest_kv_blocks(deployment)
        )

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Pages per (stage, first layer, end layer)."""
        return kv_blocks(deployment, free_bytes, self._page_tokens(deployment))

    def fewest_kv_blocks(self, deployment: Deployment) -> int:
        """Pages of the longest request."""
        return -(-deployment.architecture.max_position // self._page_tokens(deployment))

    def flow(self, deployment: Deployment) -> Flow:
        """A group a stage."""
        flags, stages = self.effective_flags(deployment), deployment.stages
        running = int(flags["running_requests"])
        return Flow(
            "groups",
            cohorts=stages,
            step_tokens=int(flags["batch_tokens"]),
            max_requests=running,
            cohort_requests=max(1, running // stages),
            notes=self.notes(deployment.version),
            meaning="as many groups of requests as stages, each on its way through them",
        )

    def levers(self, deployment: Deployment, requests: int, prompt_tokens: int) -> Mapping[str, Sequence[FlagValue]]:
        """What a burst is cut by."""
        own = int(self.effective_flags(deployment)["batch_tokens"])
        return {"batch_tokens": near_powers(requests * prompt_tokens // deployment.stages, 64, 65536, own)}

    def run(self, simulation: Simulation) -> Run:
        """Group after group."""
        if simulation.record_timeline:
            raise SpecError("--trace: Toy's pipeline cannot be drawn; leave --trace out")
        return simulate(simulation, self.flow(simulation.deployment), simulation.overheads or _OVERHEADS)

    def _page_tokens(self, deployment: Deployment) -> int:
        return int(self.effective_flags(deployment)["page_tokens"])


ENGINE: Engine = Toy()

"""Holds our sizing of SGLang's pool against a recording of the engine's own.

Decision: a record names a model of the catalog and flags as the engine spells them, so that what reads the model and
the flags is held to the engine too, and not the division alone. `benchmarks/record_sglang_kv.py` writes the file.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import PositiveInt

from partitune.engines.deployment import Deployment
from partitune.engines.recordings import Agreement, Record
from partitune.engines.sglang.kv_planning import kv_cache
from partitune.engines.sglang.scheduler.settings import most_running
from partitune.errors import PartituneError, SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture

#: Recorded without a card: none of the types of cache in the records asks for one generation.
_GPU = "H200"


class KvRecord(Record, extra="forbid"):
    """One partition put through the engine's sizing: what went in and what came out, as the file spells it."""

    engine: str  # name and version
    model: str  # of the catalog
    tp: PositiveInt
    partition: list[PositiveInt]
    flags: Mapping[str, bool | int | float | str]
    available_bytes_per_stage: list[PositiveInt]
    cell_bytes_per_stage: list[float]
    max_total_num_tokens: int
    swa_max_total_num_tokens: int | None
    max_mamba_cache_size: int | None
    max_running_requests: int

    def deployment(self) -> Deployment:
        """The start. Raises SpecError for a model that the catalog does not have."""
        layout = Layout(tp=self.tp, pp=len(self.partition))
        version = self.engine.removeprefix("sglang ")
        flags = {"chunked_prefill_size": 8192, **self.flags}
        return Deployment(version, load_architecture(self.model), layout, gpu(_GPU), flags, tuple(self.partition))

    def check(self) -> None:
        """Raises SpecError for lists of another length than the stages, or a partition of another number of layers."""
        layers = len(self.deployment().architecture.layers)
        if sum(self.partition) != layers:
            raise SpecError(f"partition: has {sum(self.partition)} layers, {self.model} has {layers}")
        for key in ("available_bytes_per_stage", "cell_bytes_per_stage"):
            if len(getattr(self, key)) != len(self.partition):
                raise SpecError(f"{key}: must have one entry a stage, {len(self.partition)} of them")

    def agreement(self) -> Agreement:
        """What our sizing makes of the record, which goes by its model, partition and flags."""
        flags = "".join(f" {name}={value}" for name, value in self.flags.items())
        return Agreement(f"{self.model} {','.join(map(str, self.partition))}{flags}", self.difference(), self.model)

    def difference(self) -> str | None:
        """The first figure that our sizing makes another than the engine did; None: all agree."""
        deployment = self.deployment()
        try:
            cache = kv_cache(deployment, self.partition, self.available_bytes_per_stage)
        except PartituneError as error:
            return f"the engine sized {self.max_total_num_tokens} tokens, we refuse: {error}"
        cells = [round(cell * cache.block_size) for cell in self.cell_bytes_per_stage]
        for name, engine, ours in (
            ("max_total_num_tokens", self.max_total_num_tokens, cache.tokens),
            ("max_mamba_cache_size", self.max_mamba_cache_size, cache.state_slots),
            ("max_running_requests", self.max_running_requests, most_running(deployment, cache)),
            ("bytes of a page", cells, list(cache.stage_block_bytes)),
        ):
            if engine != ours:
                return f"{name} is {engine} in the engine and {ours} here"
        return None

"""Published A/B results about pipelines: does the simulator say the same of who wins, and by how much?

Decision: the pairs are data (`data/published_pairs.yaml`), written as the search spaces a user would write, each with
its source and with what that source does not state. A sign is the test; the ratio beside it is for the reader, since
workload, kernels and often the GPU are not published to the last flag. Not among them are results about something that
no search space can say: schedulers that were proposed and never released, a tensor-parallel group across nodes,
other vendors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from partitune.candidate import Candidate
from partitune.errors import PartituneError
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.models.published import find_model
from partitune.planning.resolve import resolve
from partitune.spec.objectives import METRICS
from partitune.spec.search_space import SearchSpace

Winner = Literal["a", "b", "same"]
_SAME = 0.02
_QUANTISATIONS: dict[str, dict[str, object]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "block_fp8": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate"],
    },
    "nvfp4": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": ["lm_head", "*self_attn*"],
    },
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One published result beside the simulator's."""

    name: str
    source: str
    metric: str
    better: Winner
    expected: float | None  # B over A, as published
    found: float | None  # B over A, as simulated; None: one side cannot run
    assumed: str  # what the source does not state; "" when it states everything
    reason: str = ""  # why one side cannot run

    @property
    def stated(self) -> bool:
        """True when the source states the configuration."""
        return not self.assumed

    @property
    def right(self) -> bool:
        """True when the simulator names the same winner."""
        if self.found is None:
            return False
        if self.better == "same":
            return abs(self.found - 1) <= _SAME
        more_is_better = METRICS[self.metric] == "maximize"
        return (self.found > 1) == (more_is_better == (self.better == "b")) and self.found != 1


def published_pairs(folder: Path) -> Iterator[Pair]:
    """Every pair; model files that no catalog has are written to `folder`."""
    text = resources.files("partitune.fidelity").joinpath("data", "published_pairs.yaml").read_text("utf-8")
    for number, entry in enumerate(yaml.safe_load(text)["pairs"]):
        found, reason = None, ""
        try:
            before, after = (
                _metric(_laid_over(entry["both"], entry[side]), entry["metric"], folder / f"{number}{side}.json")
                for side in ("a", "b")
            )
            found = after / before
        except PartituneError as error:
            reason = str(error).splitlines()[0]
        yield Pair(
            name=entry["name"],
            source=entry["source"],
            metric=entry["metric"],
            better=entry["better"],
            expected=entry.get("expected"),
            found=found,
            assumed=entry.get("assumed", ""),
            reason=reason,
        )


def _metric(side: Mapping[str, Any], metric: str, config: Path) -> float:
    space = {key: value for key, value in side.items() if key not in ("model", "partition")}
    problem = resolve(
        SearchSpace.from_mapping(
            {"kind": "search_space", "name": "validation", "model": _model(side["model"], config), **space}
        )
    )
    partition = tuple(side.get("partition", problem.default_partition))
    return SimulatorDriver(problem).measure(Candidate(partition, {})).metrics[metric]


def _model(asked: Mapping[str, Any], path: Path) -> str:
    """A catalog name, or the path of its config with changes."""
    name: str = asked["name"]
    changes = dict(asked.get("config", {}))
    if "quantisation" in asked:
        changes["quantization_config"] = _QUANTISATIONS[asked["quantisation"]]
    known = find_model(name)
    if not changes or known is None:
        return name
    config = json.loads(resources.files("partitune.models").joinpath("configs", known.file).read_text("utf-8"))
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    return str(path)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, mapping by mapping."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged

"""Published A/B results about pipelines: does the simulator say the same of who wins, and by how much?

Decision: the pairs are data (`data/published_pairs.yaml`), written as the search spaces a user would write, each with
its source and with what that source does not state. Sources are split (`data/published_sources.yaml`): constants may be
chosen from some and never from the others, so that the error of the ratio can be told where nothing was fitted. What no
pair can use is listed with its reason (`data/published_unused.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from partitune.errors import PartituneError
from partitune.fidelity.set_ups import model_with, published_problem, shipped, simulated
from partitune.spec.metrics import METRICS

Winner = Literal["a", "b", "same"]
#: `fit`: constants may be chosen from the source. `held_out`: never.
Part = Literal["fit", "held_out"]
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
    part: Part
    expected: float | None = None  # B over A, as published
    simulated: float | None = None  # B over A; None: one side cannot run
    assumed: str = ""  # what the source does not state; "" when it states everything
    reason: str = ""  # why one side cannot run
    results: tuple[str, ...] = ()  # numbers of the published results it uses

    @property
    def stated(self) -> bool:
        """True when the source states the configuration."""
        return not self.assumed

    @property
    def error(self) -> float | None:
        """Simulated ratio over the published one, less one; None where one of them is missing."""
        return self.simulated / self.expected - 1 if self.simulated and self.expected else None

    @property
    def right(self) -> bool:
        """True when the simulator names the same winner."""
        if self.simulated is None:
            return False
        if self.better == "same":
            return abs(self.simulated - 1) <= _SAME
        more_is_better = METRICS[self.metric] == "maximize"
        return (self.simulated > 1) == (more_is_better == (self.better == "b")) and self.simulated != 1


def published_pairs(folder: Path) -> Iterator[Pair]:
    """Every pair; model files that no catalog has are written to `folder`."""
    parts = {source["name"]: source["part"] for source in yaml.safe_load(shipped("published_sources.yaml"))}
    for number, entry in enumerate(yaml.safe_load(shipped("published_pairs.yaml"))["pairs"]):
        both, metric, results = entry.pop("both"), entry["metric"], tuple(entry.pop("results"))
        sides = {side: _laid_over(both, entry.pop(side)) for side in ("a", "b")}
        ratio, reason = None, ""
        try:
            before, after = (_figure(keys, metric, folder / f"{number}{side}.json") for side, keys in sides.items())
            ratio = after / before
        except PartituneError as error:
            reason = str(error).splitlines()[0]
        yield Pair(**entry, part=parts[entry["source"]], simulated=ratio, reason=reason, results=results)


def unused_results() -> dict[str, str]:
    """Numbers of the published results that no pair uses: what their source does not state, or is not simulated."""
    return {
        number: "; ".join(f"{word} {entry[word]}" for word in ("lacks", "beyond") if word in entry)
        for entry in yaml.safe_load(shipped("published_unused.yaml"))
        for number in entry["results"]
    }


def _figure(side: Mapping[str, Any], metric: str, config: Path) -> float:
    space = {key: value for key, value in side.items() if key not in ("model", "partition", "env")}
    model = side["model"]
    changes = dict(model.get("config", {}))
    if "quantisation" in model:
        changes["quantization_config"] = _QUANTISATIONS[model["quantisation"]]
    problem = published_problem({"model": model_with(model["name"], changes, config), **space})
    return simulated(problem, tuple(side.get("partition", ())), side.get("env"))[metric]


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, mapping by mapping."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged

"""What a deployment costs to run: dollars and kilowatt-hours a million generated tokens.

Decision: only the GPUs that serve are counted, at the price and the power the search space gives; what is not given is
not guessed, so that no figure of this kind ever rests on an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.spec.objectives import COST, ENERGY

_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Tariff:
    """Price and power of one GPU; None where the search space says nothing."""

    gpu_hour_usd: float | None = None
    gpu_power_w: float | None = None

    def metrics(self, output_throughput_tok_s: float, gpus: int) -> dict[str, float]:
        """The figures that can be known for `gpus` GPUs that together make so many tokens a second."""
        if output_throughput_tok_s <= 0:
            return {}
        gpu_hours = gpus * _MILLION / output_throughput_tok_s / 3600
        cost = {} if self.gpu_hour_usd is None else {COST: gpu_hours * self.gpu_hour_usd}
        return cost if self.gpu_power_w is None else {**cost, ENERGY: gpu_hours * self.gpu_power_w / 1000}

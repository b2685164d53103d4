"""What a search aims at, and what it may not miss, as a search space says it.

Decision: a direction is a property of the metric, never of a file: a search that maximises latency is a typing error,
and a front drawn from it would look right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from partitune.candidate import Direction
from partitune.errors import did_you_mean
from partitune.spec.metrics import METRICS
from partitune.spec.yaml.faults import Fault, describe
from partitune.spec.yaml.strict_model import StrictModel, allowed, number, wrong


def _metric(name: object) -> object:
    if isinstance(name, str) and name in METRICS:
        return name
    raise wrong(f"found {describe(name)}{did_you_mean(str(name), METRICS)}; allowed: {', '.join(METRICS)}")


Metric = Annotated[str, BeforeValidator(_metric)]
#: Worst value that is accepted: an upper limit of a metric that is minimised, else a lower one.
Limit = Annotated[float, number(0, 1e15, "the worst value accepted", above=True)]


class Goodput(StrictModel):
    """What every single request has to keep to count as good; a figure left out is not asked for."""

    ttft_ms: Annotated[float | None, number(0, 1e9, "worst time to first token", above=True)] = None
    tpot_ms: Annotated[float | None, number(0, 1e9, "worst time per output token after the first", above=True)] = None
    e2e_ms: Annotated[float | None, number(0, 1e9, "worst time of the whole request", above=True)] = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits that were given, by name."""
        return {name: value for name, value in self if value is not None}


class Objective(StrictModel):
    """One metric to make better. Written as its name, or with the direction spelled out."""

    metric: Annotated[Metric, allowed("the name of a metric")]
    direction: Annotated[Direction | None, allowed("maximize or minimize")] = None

    @classmethod
    def long_form(cls, value: Any) -> Any:
        """A name alone is a mapping with nothing but the metric."""
        return {"metric": value} if isinstance(value, str) else value

    @property
    def better(self) -> Direction:
        """Which way the metric is better."""
        return METRICS[self.metric]

    def faults(self) -> Iterator[Fault]:
        """A direction against the metric's own."""
        if self.direction not in (None, self.better):
            text = f"found {self.direction}; allowed: {self.better}, as that is better for {self.metric}"
            yield Fault(("direction",), text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The long form, or the name of the metric alone, which `long_form` accepts."""
        return {"anyOf": [{"enum": list(METRICS)}, handler(schema)]}

"""The metrics a search can aim at or limit, and which way each is better.

Decision: one closed table. A direction is a property of the metric, never of a file: a search that maximises latency
is a typing error, and a front drawn from it would look right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from partitune.candidate import Direction
from partitune.errors import did_you_mean
from partitune.spec.yaml.faults import Fault, describe
from partitune.spec.yaml.strict_model import StrictModel, allowed, number, wrong

_RATES = ("output_throughput_tok_s", "total_throughput_tok_s", "request_throughput_req_s")
GOODPUT = "goodput_req_s"
COST = "cost_per_million_output_tokens_usd"
ENERGY = "energy_per_million_output_tokens_kwh"
_CAPACITY = ("kv_tokens", "kv_blocks")
_LATENCIES = tuple(
    f"{what}_{point}_ms" for what in ("ttft", "tpot", "itl", "e2e") for point in ("mean", "p50", "p90", "p99")
)

#: Every metric by name. ttft: time to first token, tpot: mean time per output token after the first of one request,
#: itl: one gap between two tokens, e2e: the whole request, makespan: the whole workload, goodput: requests a second
#: that keep every limit of `goodput`.
METRICS: Mapping[str, Direction] = {
    **dict.fromkeys(_RATES, "maximize"),
    **dict.fromkeys(_LATENCIES, "minimize"),
    "makespan_s": "minimize",
    **dict.fromkeys(_CAPACITY, "maximize"),
    GOODPUT: "maximize",
    COST: "minimize",
    ENERGY: "minimize",
}
#: Metrics that a candidate is told by, and compared with another.
HEADLINES = (*_RATES[:2], "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "makespan_s")
#: Metrics that whoever sends the requests measures; the others are the engine's, or follow from these.
CLIENT_METRICS = frozenset((*_RATES, *_LATENCIES, "makespan_s", GOODPUT))
#: Between the name of a load and that of a metric, where the figures of one load stand beside those of the mix.
OF_LOAD = "/"
#: Metrics that need something said: metric -> the key of a search space that says it.
NEEDS: Mapping[str, str] = {
    GOODPUT: "goodput",
    COST: "cluster.gpu_hour_price_usd",
    ENERGY: "cluster.gpu_power_w",
}


def by_load(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The figures of the whole, and those of every load of a mix by its name; no loads where there is one."""
    whole: dict[str, float] = {}
    loads: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        load, of_load, metric = name.partition(OF_LOAD)
        (loads.setdefault(load, {}) if of_load else whole)[metric or name] = value
    return whole, loads


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

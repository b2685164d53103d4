"""The metrics a search can aim at or limit, and which way each is better.

Decision: one closed table, apart from what reads files, so that whoever shows a figure need not load that.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import Direction

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

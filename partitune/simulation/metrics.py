"""The figures a benchmark would report about a run, under the names the project uses everywhere.

Decision: defined as `vllm bench serve` defines them, so that a simulated and a measured figure can be put side by side:
latency counts from when the request is sent, time per output token leaves out the first token and requests of one
token, gaps between tokens are pooled over all requests, percentiles interpolate linearly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from partitune.simulation.run import Run

#: Percentiles given for every latency, beside its mean.
_PERCENTILES = (50, 90, 99)
#: How metrics end that grow with the data ranks.
_RATES = ("_tok_s", "_req_s")


def metrics(run: Run, goodput: Mapping[str, float] | None = None) -> dict[str, float]:
    """Throughputs (`_tok_s`, `_req_s`), latencies (`_ms`) and what the pipeline did in `run`.

    Args:
        run: a simulated run with at least one request.
        goodput: limits in milliseconds that a good request keeps (`ttft_ms`, `tpot_ms`, `e2e_ms`); a request of one
            token has a `tpot_ms` of 0, as in vLLM 0.32 `benchmarks/serve.py`. None or empty: not asked for.

    Returns:
        Figures by name. A latency nobody has (time per output token when every request makes one token) is left out.
    """
    output_tokens = sum(request.output_tokens for request in run.requests)
    prompt_tokens = sum(request.prompt_tokens for request in run.requests)
    duration = run.duration_s
    figures = {
        "output_throughput_tok_s": output_tokens / duration,
        "total_throughput_tok_s": (output_tokens + prompt_tokens) / duration,
        "request_throughput_req_s": len(run.requests) / duration,
        "makespan_s": duration,
        "preemptions": float(run.preemptions),
        "batches": float(run.batches),
        "empty_steps": float(run.empty_steps),
        "mean_in_flight_batches": run.mean_in_flight_batches,
        "mean_batch_tokens": run.batch_tokens / run.batches,
        "mean_decode_batch": run.decode_tokens / run.decode_steps if run.decode_steps else 0.0,
    }
    first = np.array([request.first_token_s - request.sent_s for request in run.requests])
    whole = np.array([request.finish_s - request.sent_s for request in run.requests])
    tokens = np.array([request.output_tokens for request in run.requests])
    several = tokens > 1
    figures |= _latency("ttft", first)
    figures |= _latency("tpot", (whole - first)[several] / (tokens[several] - 1))
    figures |= _latency("itl", run.inter_token_s)
    figures |= _latency("e2e", whole)
    if goodput:
        tpot = np.divide(whole - first, tokens - 1, out=np.zeros_like(whole), where=several)
        latencies = {"ttft_ms": first, "tpot_ms": tpot, "e2e_ms": whole}
        good = np.all([1e3 * latencies[name] <= limit for name, limit in goodput.items()], axis=0)
        figures["goodput_req_s"] = float(good.sum()) / duration
    return figures


def of_all_ranks(figures: Mapping[str, float], share: float) -> dict[str, float]:
    """Figures of one data rank turned into those of the deployment; the rank has `share` of all requests.

    Data ranks are taken to be alike: what is a rate or a capacity adds up, a latency is everybody's.
    """
    return {name: value / share if name.endswith(_RATES) else value for name, value in figures.items()}


def _latency(name: str, seconds: NDArray[np.float64]) -> dict[str, float]:
    if not seconds.size:
        return {}
    values = [seconds.mean(), *np.percentile(seconds, _PERCENTILES)]
    names = ("mean", *(f"p{rank}" for rank in _PERCENTILES))
    return {f"{name}_{statistic}_ms": float(value * 1e3) for statistic, value in zip(names, values, strict=True)}

"""Whole servers of one stage, measured by others, against the simulator: time per output token and to the first one.

Decision: a point is written as users write theirs and runs through the simulator's driver, so that scheduling, engine
time and stage times are held together. What the published table does not state is taken from the launch scripts of the
benchmark it came from (InferenceX, github.com/SemiAnalysisAI/InferenceX, `benchmarks/single_node/`): token budgets, no
prefix cache, 8-bit KV caches on Blackwell of MiniMax-M2.5 (`minimaxm2.5_fp8_b300.sh`)
and of NVIDIA's FP4 checkpoints (assumed: their `kv_cache_quant_algo` is FP8), random lengths (assumed: 0.8 to 1 of the
stated ones), and the expert kernel of gpt-oss on Blackwell. Nothing is fitted per point. A time to the first token is
the client's mean over all requests: the first prompts come all at once, each later one when a request ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from partitune.candidate import FlagValue
from partitune.costs.cost_model import Batch, decode, prefill
from partitune.costs.roofline import RooflineCosts
from partitune.errors import PartituneError
from partitune.fidelity.points import Point
from partitune.fidelity.set_ups import model_with, published_problem, shipped_rows, simulated
from partitune.planning.problem import Problem

#: Requests of a run for each place of the concurrency: `--num-prompts $((CONC * 10))` in the scripts. The mean time to
#: the first token hangs on it, since the first prompts wait for one another. More than so many would take minutes.
_REQUESTS_PER_PLACE, _MOST_REQUESTS = 10, 1280
#: The release that made asynchronous scheduling vLLM's default.
_FIRST_ASYNCHRONOUS = (0, 14)
#: Measured with lengths that do not vary (not by InferenceX).
_FIXED_LENGTHS = "Qwen/Qwen3-32B"
#: NVIDIA's FP4 checkpoints keep attention, router and head in 16 bits.
_NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "ignore": ["lm_head", "re:.*self_attn.*", "gate", "re:.*shared_experts.*"],
}


@dataclass(frozen=True, slots=True)
class Server:
    """Both figures of one server, in milliseconds."""

    output_token: Point
    first_token: Point


def server_points(folder: Path, every: int = 1) -> Iterator[Server | str]:
    """Every `every`-th whole server, or which one was not simulated and why.

    Model files that no catalog has are written to `folder`.
    """
    for row in islice(shipped_rows("whole_servers.csv"), 0, None, every):
        try:
            yield _server(row, folder)
        except PartituneError as error:
            yield f"{row['model']} on {row['gpu']} with {row['engine']}: {str(error).splitlines()[0]}"


def _server(row: Mapping[str, str], folder: Path) -> Server:
    concurrency, prompt, output = (int(row[key]) for key in ("concurrency", "prompt_tokens", "output_tokens"))
    problem = _problem(row, concurrency, prompt, output, folder)
    kernel = problem.engine.expert_kernel(problem.architecture, problem.placement.gpus[0], {})
    if row["model"].startswith("openai/gpt-oss") and row["gpu"].startswith("B"):
        kernel = "w4a8_mxfp4_mxfp8"  # the script sets VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8
    costs, roofline = (
        RooflineCosts(problem.architecture, problem.placement, expert_kernel=kernel, measured_engine=measured)
        for measured in (problem.engine.measured, None)
    )
    predicted, by_roofline = (simulated(replace(problem, costs=model)) for model in (costs, roofline))
    stage = costs.stage_costs(problem.default_partition)

    def point(measured: str, metric: str, step: Batch) -> Point:
        seconds = stage.sources(step)[0]
        return Point(
            engine=f"{row['engine']} {row['version']}",
            model=row["model"],
            gpu=row["gpu"],
            case=f"{row['precision']} TP{row['tp']} {prompt}/{output} x {concurrency}",
            measured=float(row[measured]),
            predicted=predicted[metric],
            roofline=by_roofline[metric],
            covered=seconds.measured / sum(seconds),
        )

    return Server(
        point("tpot_ms", "tpot_mean_ms", decode(concurrency, prompt + output // 2)),
        point("ttft_ms", "ttft_mean_ms", prefill(prompt)),
    )


def _problem(row: Mapping[str, str], concurrency: int, prompt: int, output: int, folder: Path) -> Problem:
    name, version = row["model"], row["version"].removesuffix(".post1")
    fixed = name == _FIXED_LENGTHS
    share = 1.0 if fixed else 0.9
    in_fp4 = row["precision"] == "fp4" and not name.startswith("openai/gpt-oss")
    config = folder / f"{name.replace('/', '--')}-nvfp4.json"
    return published_problem(
        {
            "model": model_with(name, {"quantization_config": _NVFP4} if in_fp4 else {}, config),
            "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": row["gpu"]},
            "engine": {
                "name": row["engine"],
                "version": "0.19.0" if version.startswith("nightly") else version,
                "flags": _flags(row, version, concurrency, prompt + output),
            },
            "parallel": {"tp": int(row["tp"]), "pp": 1, "expert_parallel": row["expert_ranks"] != "1"},
            "workload": {
                "kind": "random",
                "requests": min(_REQUESTS_PER_PLACE * concurrency, _MOST_REQUESTS),
                "prompt_tokens": round(share * prompt),
                "output_tokens": round(share * output),
                "concurrency": concurrency,
                "range_ratio": 0.0 if fixed else 1 / 9,
            },
        }
    )


def _flags(row: Mapping[str, str], version: str, concurrency: int, longest: int) -> dict[str, FlagValue]:
    """What the launch scripts of an engine say; vLLM's for every other."""
    vllm: dict[str, FlagValue] = {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": max(concurrency, 512),
        "max_model_len": longest + 200,
        "enable_prefix_caching": False,
    }
    numbers = version.split(".")
    if numbers[0].isdecimal() and (int(numbers[0]), int(numbers[1])) < _FIRST_ASYNCHRONOUS:
        vllm = {"async_scheduling": False}
    checkpoint = row["precision"] == "fp4" and "gpt-oss" not in row["model"]  # `auto` takes its type of cache
    if checkpoint or ("MiniMax" in row["model"] and row["gpu"].startswith("B")):
        vllm["kv_cache_dtype"] = "fp8"
    return {"sglang": _sglang_flags(row, concurrency)}.get(row["engine"], vllm)


def _sglang_flags(row: Mapping[str, str], concurrency: int) -> dict[str, FlagValue]:
    """Those of `dsr1_{fp8,fp4}_{h200,b200,b300}.sh`: all of SGLang's points are DeepSeek-R1 and V3.

    Four B200 have room for the FP8 weights only because the script gives them 0.95 and small batches.
    """
    chunk, share, running = 32768, 0.82, 128
    if row["precision"] == "fp4":
        chunk, share, running = 16384, 0.85, 256
    elif row["gpu"] == "H200":
        running = 512 if row["prompt_tokens"] == row["output_tokens"] else 256
    elif row["tp"] == "4":
        chunk, share, running = 8192, 0.95, 32
    return {
        "chunked_prefill_size": chunk,
        "max_prefill_tokens": chunk,
        "mem_fraction_static": share,
        "max_running_requests": max(concurrency, running),
        "cuda_graph_max_bs_decode": running,
        "disable_radix_cache": True,
        **({} if row["gpu"] == "H200" else {"kv_cache_dtype": "fp8_e4m3"}),
    }

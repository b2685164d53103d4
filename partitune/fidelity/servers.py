"""Whole servers of one stage, measured by others, against the simulator: milliseconds per output token.

Decision: a point is written as users write theirs and runs through the simulator's driver, so that scheduling, engine
time and stage times are held together. What the published table does not state is taken from the launch scripts of the
benchmark it came from (InferenceX, github.com/InferenceMAX/InferenceMAX, `benchmarks/`): token budgets, no prefix
cache, random lengths (assumed: 0.8 to 1 of the stated ones), and the expert kernel of gpt-oss on Blackwell. Nothing is
fitted per point.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import islice
from pathlib import Path

from partitune.candidate import Candidate, FlagValue
from partitune.costs.cost_model import CostModel, decode
from partitune.costs.measured.operations import MeasuredEngine
from partitune.costs.roofline import RooflineCosts
from partitune.errors import PartituneError
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.fidelity.points import Point, shipped_rows
from partitune.models.published import find_model
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace

#: Requests of a run: some waves of the concurrency, as every request shall see the prompts of all others.
_WAVES, _MOST_REQUESTS = 4, 1024
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
class Skipped:
    """A row that was not simulated."""

    engine: str
    model: str
    gpu: str
    reason: str


def server_points(folder: Path, every: int = 1) -> Iterator[Point | Skipped]:
    """Every `every`-th whole server; model files that no catalog has are written to `folder`."""
    for row in islice(shipped_rows("whole_servers.csv"), 0, None, every):
        try:
            yield _point(row, folder)
        except PartituneError as error:
            yield Skipped(row["engine"], row["model"], row["gpu"], str(error).splitlines()[0])


def _point(row: Mapping[str, str], folder: Path) -> Point:
    problem = _resolved(row, folder)
    costs, kernel = problem.costs, problem.engine.expert_kernel(problem.architecture, problem.placement.gpus[0])
    if row["model"].startswith("openai/gpt-oss") and row["gpu"].startswith("B"):
        # The script sets VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8.
        kernel = "w4a8_mxfp4_mxfp8"
        costs = _with(problem, kernel, problem.engine.measured)
    roofline = _with(problem, kernel, None)
    concurrency, prompt, output = (int(row[key]) for key in ("concurrency", "prompt_tokens", "output_tokens"))
    partition = problem.default_partition
    step = costs.stage_costs(partition).sources(decode(concurrency, prompt + output // 2))[0]
    return Point(
        engine=f"{row['engine']} {row['version']}",
        model=row["model"],
        gpu=row["gpu"],
        case=f"{row['precision']} TP{row['tp']} {prompt}/{output} x {concurrency}",
        measured=float(row["tpot_ms"]),
        predicted=_tpot_ms(replace(problem, costs=costs)),
        roofline=_tpot_ms(replace(problem, costs=roofline)),
        covered=step.measured / sum(step),
    )


def _tpot_ms(problem: Problem) -> float:
    return SimulatorDriver(problem).measure(Candidate(problem.default_partition, {})).metrics["tpot_mean_ms"]


def _with(problem: Problem, expert_kernel: str | None, engine: MeasuredEngine | None) -> CostModel:
    return RooflineCosts(problem.architecture, problem.placement, expert_kernel=expert_kernel, measured_engine=engine)


def _resolved(row: Mapping[str, str], folder: Path) -> Problem:
    concurrency, prompt, output = (int(row[key]) for key in ("concurrency", "prompt_tokens", "output_tokens"))
    fixed = row["model"] == _FIXED_LENGTHS
    share = 1.0 if fixed else 0.9
    version = row["version"].removesuffix(".post1")
    return resolve(
        SearchSpace.from_mapping(
            {
                "kind": "search_space",
                "name": "validation",
                "model": _model(row["model"], row["precision"], folder),
                "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": row["gpu"]},
                "engine": {
                    "name": row["engine"],
                    "version": "0.19.0" if version.startswith("nightly") else version,
                    "flags": _FLAGS.get(row["engine"], _vllm_flags)(version, concurrency, prompt + output),
                },
                "parallel": {"tp": int(row["tp"]), "pp": 1, "expert_parallel": row["expert_ranks"] != "1"},
                "workload": {
                    "kind": "random",
                    "requests": max(8, min(_WAVES * concurrency, _MOST_REQUESTS)),
                    "prompt_tokens": round(share * prompt),
                    "output_tokens": round(share * output),
                    "concurrency": concurrency,
                    "range_ratio": 0.0 if fixed else 1 / 9,
                },
            }
        )
    )


def _sglang_flags(_version: str, concurrency: int, _longest: int) -> dict[str, FlagValue]:
    return {
        "chunked_prefill_size": 32768,
        "max_prefill_tokens": 32768,
        "mem_fraction_static": 0.82,
        "max_running_requests": max(concurrency, 16),
    }


#: What the launch scripts of an engine say; vLLM's for every other.
_FLAGS = {"sglang": _sglang_flags}


def _vllm_flags(version: str, concurrency: int, longest: int) -> dict[str, FlagValue]:
    numbers = version.split(".")
    if numbers[0].isdecimal() and (int(numbers[0]), int(numbers[1])) < _FIRST_ASYNCHRONOUS:
        return {"async_scheduling": False}
    return {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": max(concurrency, 512),
        "max_model_len": longest + 200,
        "enable_prefix_caching": False,
    }


def _model(name: str, precision: str, folder: Path) -> str:
    """A catalog name, or the path of the catalog's config in another number format."""
    known = find_model(name)
    if known is None:
        return name
    if precision != "fp4" or name.startswith("openai/gpt-oss"):
        return known.name
    config = json.loads(resources.files("partitune.models").joinpath("configs", known.file).read_text("utf-8"))
    inner = config.get("text_config", config)
    inner["quantization_config"] = _NVFP4
    path = folder / f"{known.file.removesuffix('.json')}-nvfp4.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)

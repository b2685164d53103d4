"""Fits the constants of partitune/costs/ to measured kernel tables and writes the package's data file.

    python benchmarks/fit_costs.py DATA_DIR            prints the constants and their errors, rewrites the data file
    python benchmarks/fit_costs.py DATA_DIR --dry-run  prints only

DATA_DIR holds gemm.csv, gqa_attention.csv, mla_module.csv, moe.csv, kda_kimi_k3.csv, collectives_intra_node.csv,
layer_times.csv and layer_times_configs.csv, cut from the tables of aiconfigurator-core 0.12.0 (PyPI; Apache-2.0,
Copyright NVIDIA CORPORATION & AFFILIATES). Every operation is one `Curve` (partitune/costs/fitted.py), fitted in
log space with a robust loss; a weak prior holds what the rows do not determine.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitune.costs.blocks import ELEMENTWISE_BANDWIDTH, EXPERT_PASSES
from partitune.costs.fitted import Curve, Fit, distinct_experts
from partitune.hardware.gpus import Gpu, gpu

OUTPUT = Path(__file__).parents[1] / "partitune" / "costs" / "fitted_constants.json"
GPU_OF = {
    "a100_sxm": "A100-80GB", "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300",
    "gb200": "GB200", "l40s": "L40S",
}  # fmt: skip
NOTICE = (
    "Constants derived from measurements in aiconfigurator-core 0.12.0 (github.com/ai-dynamo/aiconfigurator), "
    "Copyright NVIDIA CORPORATION & AFFILIATES, Apache License 2.0. Written by benchmarks/fit_costs.py."
)
GEMM_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}
GEMM_NAME = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
PEAK = {
    "bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "w4a16_mxfp4": "bf16", "w4a16_marlin": "bf16",
    "w4a8_mxfp4_mxfp8": "fp8",
}  # fmt: skip
EXPERT_BYTES = {"bfloat16": 2.0, "fp8_block": 1.0, "w4a16_mxfp4": 0.53125, "w4a8_mxfp4_mxfp8": 0.53125}
MLA_HEAD_WIDTH = 192 + 128  # DeepSeek-V3: query-key and value width of a head in prefill
MLA_ABSORBED_WIDTH = 576 + 512  # of a head over the compressed KV in decode
MLA_KV_BYTES = 1152


@dataclass(frozen=True)
class Row:
    """One measurement: what it reads and computes, what it took, and the part that another curve already explains."""

    read_bytes: float
    flops: float
    us: float
    explained_us: float = 0.0


Rows = dict[tuple[str, str], list[Row]]  # (operation, system) -> rows


def table(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """Rows of one CSV file."""
    with (folder / name).open() as file:
        yield from csv.DictReader(file)


def gemm_rows(folder: Path) -> Rows:
    """GEMMs m x k x n; L40S has none, so its Llama-70B FFN (two GEMMs) stands in."""
    rows: Rows = defaultdict(list)
    for r in table(folder, "gemm.csv"):
        m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
        dtype = r["gemm_dtype"]
        rows["gemm/" + GEMM_NAME[dtype], r["system"]].append(
            Row(n * k * GEMM_BYTES[dtype], 2.0 * m * n * k, float(r["latency_us"]))
        )
    params = 3 * 8192 * 28672
    for r in layer_rows(folder, "c10", "ffn"):
        rows["gemm/bf16", "l40s"].append(Row(params * 2.0, 2.0 * params * int(r["new_tokens"]), float(r["us"])))
    return rows


def layer_rows(folder: Path, cfg: str, part: str) -> Iterator[dict[str, str]]:
    """Rows of one part of one model set-up in layer_times.csv, its time as `us`."""
    for r in table(folder, "layer_times.csv"):
        if r["cfg"] == cfg and r["part"] == part:
            yield {**r, "us": r["us_per_occurrence"]}


def gqa_rows(folder: Path, gemm: dict[str, Curve]) -> Rows:
    """Attention kernels; A100 and L40S have only whole attention blocks (Llama-70B), so their GEMMs are taken off.

    Prefill: FLOPs of the pairs plus, joined by knee 1, a term per token and head. Decode: the KV that is read.
    """
    rows: Rows = defaultdict(list)
    for r in table(folder, "gqa_attention.csv"):
        heads, kv, width = int(r["q_heads"]), int(r["kv_heads"]), int(r["head_dim"])
        batch, new, past = int(r["batch"]), int(r["new_tokens_per_seq"]), int(r["past_tokens"])
        pairs = batch * new * (past + (new + 1) / 2)
        context = r["phase"] == "context"
        read = 4.0 * width * (heads * batch * new if context else kv * batch * (past + new))
        row = Row(read, 4.0 * width * heads * pairs if context else 0.0, float(r["latency_us"]))
        rows["gqa_prefill" if context else "gqa_decode", r["system"]].append(row)
    params = 8192 * (8192 + 2 * 1024) + 8192 * 8192
    for cfg, system, tp in (("c09", "a100_sxm", 2), ("c10", "l40s", 1)):
        for r in layer_rows(folder, cfg, "attn"):
            batch, new, past = int(r["seqs"]), int(r["new_tokens"]), int(r["past_tokens_per_seq"])
            context = r["phase"] == "prefill"
            tokens, per_seq = (new, new) if context else (new, 1)
            pairs = batch * per_seq * (past + (per_seq + 1) / 2)
            explained = 1e6 * (gemm[system](2.0 * params / tp, 2.0 * params * tokens / tp) + gemm[system].fixed_s)
            read = 4.0 * (8192 * new if context else 1024 * batch * (past + 1)) / tp
            row = Row(read, 4.0 * 8192 / tp * pairs if context else 0.0, float(r["us"]), explained)
            rows["gqa_prefill" if context else "gqa_decode", system].append(row)
    return rows


def mla_rows(folder: Path, gemm: dict[str, Curve]) -> Rows:
    """Whole MLA modules of DeepSeek-V3: the projections are explained by the GEMM curve, the rest is fitted."""
    rows: Rows = defaultdict(list)
    for r in table(folder, "mla_module.csv"):
        heads, batch, system = int(r["heads_per_rank"]), int(r["batch"]), r["system"]
        new, past = int(r["new_tokens_per_seq"]), int(r["past_tokens"])
        params = 7168 * (1536 + 576) + heads * (1536 * 192 + 512 * 256 + 128 * 7168)
        explained = 1e6 * gemm[system](2.0 * params, 2.0 * params * batch * new)
        if r["phase"] == "context":
            per_token = 2.0 * MLA_HEAD_WIDTH * heads * batch * new
            row = Row(per_token, per_token * (past + (new + 1) / 2), float(r["latency_us"]), explained)
            rows["mla_prefill", system].append(row)
        else:
            tokens = batch * (past + new)
            row = Row(
                tokens * MLA_KV_BYTES, 2.0 * MLA_ABSORBED_WIDTH * heads * tokens, float(r["latency_us"]), explained
            )
            rows["mla_decode", system].append(row)
    return rows


def moe_rows(folder: Path) -> Rows:
    """Routed experts under tensor parallelism with skewed routing. K3 runs on Marlin, gpt-oss on its own kernels."""
    rows: Rows = defaultdict(list)
    for r in table(folder, "moe.csv"):
        if r["moe_ep"] != "1" or r["routing"] == "balanced":
            continue
        tokens, experts, topk = int(r["tokens"]), int(r["experts"]), int(r["topk"])
        params = 3 * int(r["hidden"]) * int(r["inter"]) / int(r["moe_tp"])
        dtype = r["moe_dtype"]
        kernel = {"bfloat16": "bf16", "fp8_block": "fp8_block"}.get(dtype, dtype)
        if kernel == "w4a16_mxfp4" and "K3" in r["model"]:
            kernel = "w4a16_marlin"
        read = distinct_experts(experts, topk, tokens) * params * EXPERT_BYTES[dtype]
        moved = 2.0 * tokens * topk * int(r["hidden"]) * EXPERT_PASSES
        explained = 1e6 * moved / (ELEMENTWISE_BANDWIDTH * gpu(GPU_OF[r["system"]]).bandwidth_bytes_s)
        row = Row(read, 2.0 * tokens * topk * params, float(r["latency_us"]), explained)
        rows["moe/" + kernel, r["system"]].append(row)
    return rows


def state_rows(folder: Path, gemm: dict[str, Curve]) -> Rows:
    """State scans. KDA from its kernels; GDN (Qwen3.5-397B) and Mamba2 (Nemotron-H-56B) from blocks less their GEMMs.

    Prefill: `flops` counts tokens and `read_bytes` tokens x state bytes of a rank, joined by knee 1 (a sum).
    """
    rows: Rows = defaultdict(list)
    kernels: dict[tuple[str, str, int, int], dict[str, float]] = defaultdict(dict)
    for r in table(folder, "kda_kimi_k3.csv"):
        size = int(r["batch"]) if r["phase"] == "generation" else int(r["seq_len"])
        kernels[r["system"], r["phase"], int(r["heads_per_rank"]), size][r["kernel"]] = float(r["latency_us"])
    for (system, phase, heads, size), us in kernels.items():
        state = heads * 128 * 128 * 4.0
        if phase == "context":
            # Timed eagerly, the convolution holds the host's launches, which a stage counts for itself.
            longer = (key for key in kernels if key[:3] == (system, phase, heads) and key[3] >= size)
            convolution = min(kernels[key]["causal_conv1d_fn_qkv3"] / key[3] for key in longer) * size
            took = convolution + us["flashkda_fwd"]
            rows["kda_prefill", system].append(Row(size * state, size, took))
        else:
            took = us["causal_conv1d_update"] + us["fused_kda_decode"]
            rows["kda_decode", system].append(Row(2.0 * size * state, 0.0, took))
    gdn_params = 4096 * (2 * 2048 + 2 * 8192 + 128) + 8192 * 4096
    mamba_params = 8192 * (2 * 16384 + 2 * 8 * 256 + 256) + 16384 * 8192
    blocks = (
        ("c16", "attn:gdn", "h200_sxm", "gdn", 4, gdn_params, 64 * 128 * 128 * 4.0),
        ("c17", "layer:mamba2", "h100_sxm", "mamba", 4, mamba_params, 256 * 64 * 256 * 4.0),
    )
    for cfg, part, system, family, tp, params, state in blocks:
        for r in layer_rows(folder, cfg, part):
            tokens = int(r["new_tokens"])
            explained = 1e6 * (gemm[system](2.0 * params / tp, 2.0 * params * tokens / tp) + gemm[system].fixed_s)
            if r["phase"] == "prefill":
                rows[f"{family}_prefill", system].append(Row(tokens * state / tp, 0.0, float(r["us"]), explained))
            elif family == "gdn":  # c17's decode would need 20 times the memory bandwidth: its state is not read there
                row = Row(2.0 * tokens * state / tp, 0.0, float(r["us"]), explained)
                rows["gdn_decode", system].append(row)
    return rows


def collective_rows(folder: Path) -> Rows:
    """One node: vLLM's custom all-reduce in both modes, NCCL all-gather (L40S: half its NCCL all-reduce)."""
    rows: Rows = defaultdict(list)
    gathers = set()
    for r in table(folder, "collectives_intra_node.csv"):
        size, us, system = int(r["bytes"]), float(r["latency_us"]), r["system"]
        mode = {"cuda_graph": "graph", "eager": "eager"}.get(r["mode"])
        if r["op"] == "all_reduce" and mode:
            rows[f"all_reduce/{mode}/{r['num_gpus']}", system].append(Row(size, 0.0, us))
        elif r["op"] == "all_gather":
            gathers.add(system)
            rows[f"all_gather/{r['num_gpus']}", system].append(Row(size, 0.0, us))
    for r in table(folder, "collectives_intra_node.csv"):
        if r["op"] == "all_reduce" and r["mode"] == "nccl" and r["system"] not in gathers:
            rows[f"all_gather/{r['num_gpus']}", r["system"]].append(
                Row(int(r["bytes"]), 0.0, float(r["latency_us"]) / 2)
            )
    return rows


def predict(theta: NDArray[np.float64], scales: tuple[float, float], rows: list[Row]) -> NDArray[np.float64]:
    """Microseconds of every row under log constants `theta`; `scales` are what the two fractions multiply."""
    fixed, bandwidth, compute, knee = np.exp(theta)
    curve = Curve(fixed * 1e-6, 1 / (bandwidth * scales[0]), 1 / (compute * scales[1]), knee)
    return np.array([row.explained_us + 1e6 * curve(row.read_bytes, row.flops) for row in rows])


@dataclass(frozen=True, slots=True)
class Fitted(Fit):
    """A fit, and how near it comes to what was measured."""

    rows: int = 0
    median_error: float = 0.0  # median of |fit / measured - 1| over the rows
    p90_error: float = 0.0


def fit(rows: list[Row], peak: str, target: Gpu, knee: float | None, fixed_us: float | None = None) -> Fitted:
    """Robust Levenberg-Marquardt on log times over (fixed us, bandwidth, compute, knee); two of them can be pinned."""
    scales = (1e9, 1e9)
    if peak:
        peaks = {"bf16": target.bf16_flops_s, "fp8": target.fp8_flops_s, "fp4": target.fp4_flops_s}
        scales = (target.bandwidth_bytes_s, peaks[peak])
    observed = np.log([row.us for row in rows])
    small = min(row.us - row.explained_us for row in rows)
    slowest = max(rows, key=lambda row: row.us)
    start = 1e-6 * max(slowest.us - slowest.explained_us, 1.0)
    guess = [fixed_us or max(0.7 * small, 1.0), 0.7, 0.6, knee or 1.5]
    if not peak:
        guess[1:3] = [max(slowest.read_bytes, 1.0) / start / 1e9, max(slowest.flops, 1.0) / start / 1e9]
    prior = np.log(guess)
    stiffness = np.array([10.0 if fixed_us else 0.02, 0.02, 0.02, 10.0 if knee else 0.3])

    def residuals(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        off = np.log(predict(theta, scales, rows)) - observed
        robust = np.sign(off) * np.sqrt(2 * 0.1 * (np.sqrt(0.1**2 + off**2) - 0.1))  # pseudo-Huber, 10 %
        return np.concatenate([robust, stiffness * (theta - prior)])

    theta, damping = prior.copy(), 1e-2
    now = residuals(theta)
    highest = np.array([np.inf, np.inf, 0.0 if peak else np.inf, np.inf])  # no kernel computes above its peak
    for _ in range(300):
        jacobian = np.stack([(residuals(theta + 1e-5 * e) - now) / 1e-5 for e in np.eye(4)], axis=1)
        step = np.linalg.solve(jacobian.T @ jacobian + damping * np.eye(4), -jacobian.T @ now)
        moved = np.minimum(theta + np.clip(step, -0.5, 0.5), highest)
        trial = residuals(moved)
        if trial @ trial < now @ now:
            theta, now, damping = moved, trial, max(damping / 3, 1e-9)
        else:
            damping *= 4
    errors = np.abs(np.exp(np.log(predict(theta, scales, rows)) - observed) - 1)
    fixed, bandwidth, compute, knee = (float(f"{value:.4g}") for value in np.exp(theta))
    return Fitted(
        fixed_us=fixed,
        bandwidth=bandwidth if any(row.read_bytes for row in rows) else 1.0,
        compute=compute if any(row.flops for row in rows) else 1.0,
        knee=knee,
        rows=len(rows),
        median_error=round(float(np.quantile(errors, 0.5)), 3),
        p90_error=round(float(np.quantile(errors, 0.9)), 3),
        peak=peak,
    )


def fit_all(rows: Rows, fitted: dict[str, dict[str, Fitted]]) -> None:
    """Fit every operation on every system, print one line each, add to `fitted`."""
    for (operation, system), group in sorted(rows.items()):
        family = operation.split("/")[0]
        name = operation.split("/")[-1]
        absolute = family.startswith("all_") or family in ("kda_prefill", "gdn_prefill", "mamba_prefill")
        additive = absolute or family in ("gqa_prefill", "mla_prefill")
        peak = "" if absolute else PEAK.get(name, "bf16") if "/" in operation else "bf16"
        # L40S has large GEMMs only: they say nothing about the start of a small one, so that is H100's.
        fixed_us = 4.0 if (operation, system) == ("gemm/bf16", "l40s") else None
        result = fit(group, peak, gpu(GPU_OF[system]), 1.0 if additive else None, fixed_us)
        fitted.setdefault(operation, {})[system] = result
        print(
            f"{operation:26} {system:9} {result.rows:4} rows  fixed {result.fixed_us:8.2f} us  bandwidth "
            f"{result.bandwidth:9.4g}  compute {result.compute:9.4g}  knee {result.knee:5.2f}  "
            f"median error {result.median_error:6.1%}  p90 {result.p90_error:6.1%}"
        )


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.data
    fitted: dict[str, dict[str, Fitted]] = {}
    fit_all(gemm_rows(folder), fitted)
    gemm = {system: found.curve(gpu(GPU_OF[system])) for system, found in fitted["gemm/bf16"].items()}
    for build in (gqa_rows, mla_rows, state_rows):
        fit_all(build(folder, gemm), fitted)
    for plain in (moe_rows, collective_rows):
        fit_all(plain(folder), fitted)
    if not arguments.dry_run:
        operations = {name: {s: asdict(found) for s, found in systems.items()} for name, systems in fitted.items()}
        OUTPUT.write_text(json.dumps({"notice": NOTICE, "operations": operations}, indent=1) + "\n")


if __name__ == "__main__":
    main()

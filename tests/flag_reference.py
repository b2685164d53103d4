"""Every flag of both engines, as docs/flags.md shows them, and for each modelled one an example that changes a figure.

Decision: an example is a space, and the flag's value or the key that partitune writes the flag from; `test_coverage`
runs each. `make docs` writes the page and a test compares, so a flag without a row cannot land.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from partitune.analysis.explanation import candidate_of, explain
from partitune.candidate import FlagValue
from partitune.engines.coverage import Covered, Effect
from partitune.engines.sglang.coverage import SGLANG_COVERAGE
from partitune.engines.vllm.coverage import VLLM_COVERAGE
from partitune.planning.resolve import resolve
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace

PAGE = Path(__file__).parent.parent / "docs" / "flags.md"
TABLES: Mapping[str, Mapping[str, Covered]] = {"vllm": VLLM_COVERAGE, "sglang": SGLANG_COVERAGE}
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}

_LOAD = {"kind": "random", "requests": 24, "prompt_tokens": 700, "output_tokens": 40, "range_ratio": 0.3}
_SPACES: dict[str, dict[str, Any]] = {
    "dense": {"model": "qwen3-8b", "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"}},
    "hybrid": {"model": "kimi-k3", "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "B300"}},
    "experts": {"model": "deepseek-v3", "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "H200"}},
    "windows": {"model": "gpt-oss-120b", "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "H200"}},
    "two-pages": {"model": "mimo-v2-flash", "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "H200"}},
    "images": {"model": "qwen3.5-27b", "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "H200"}},
    "llama-4": {
        "model": "llama-4-maverick",
        "cluster": {"nodes": 1, "gpus_per_node": 16, "gpu": "H200"},
        "config": {"vision_config": {"num_hidden_layers": 34, "hidden_size": 1408, "intermediate_size": 5632}},
    },
}
_SIZES: dict[str, dict[str, Any]] = {
    "dense": {"tp": 2, "pp": 2},
    "hybrid": {"tp": 2, "pp": 8},
    "experts": {"tp": 1, "pp": 2, "dp": 8, "expert_parallel": True},
    "windows": {"tp": 1, "pp": 4},
    "two-pages": {"tp": 2, "pp": 4},
    "images": {"tp": 2, "pp": 2},
    "llama-4": {"tp": 8, "pp": 1},
}
_OTHERS = """*not modelled*: it changes bytes or times in the engine and no figure here; where it is set, it is named
beside every figure, and as a knob it is refused unless something is launched. *no effect*: it does neither. A flag that
stands nowhere is named as one that partitune does not know, and so is a variable that looks as if it could matter."""
#: Where KV is short.
_TIGHT: dict[str, dict[str, FlagValue]] = {
    "vllm": {"num_gpu_blocks_override": 300, "max_model_len": 2048},
    "sglang": {"max_total_tokens": 4000},
}


class Example(NamedTuple):
    """One change that changes a figure."""

    space: str
    value: FlagValue
    key: str = ""  # of the search space, which the flag follows from; empty: the flag itself
    with_flags: Mapping[str, FlagValue] = {}


def _all(space: str, **values: FlagValue) -> dict[str, Example]:
    return {name: Example(space, value) for name, value in values.items()}


EXAMPLES: dict[str, dict[str, Example]] = {
    "vllm": {
        **_all(
            "dense",
            gpu_memory_utilization=0.7, kv_cache_dtype="fp8", performance_mode="interactivity",
            max_num_batched_tokens=512, max_num_seqs=4, block_size=32, kv_cache_memory_bytes=3_000_000_000,
            num_gpu_blocks_override=4096, max_cudagraph_capture_size=8, cudagraph_capture_sizes="1 2",
            long_prefill_token_threshold=64, enforce_eager=True, async_scheduling=False,
            quantization="fp8_per_tensor", cpu_offload_gb=1.0,
        ),
        "kv_cache_dtype_skip_layers": Example("dense", "0,1", with_flags={"kv_cache_dtype": "fp8"}),
        "offload_backend": Example("dense", "prefetch", with_flags={"cpu_offload_gb": 1.0}),
        "offload_group_size": Example("dense", 4, with_flags={"cpu_offload_gb": 1.0}),
        "eplb_config": Example("experts", '{"num_redundant_experts": 16}', with_flags={"enable_eplb": True}),
        "disable_hybrid_kv_cache_manager": Example("windows", True),
        "VLLM_KV_CACHE_LAYOUT": Example("two-pages", "BLNHC"),
        "mamba_cache_dtype": Example("hybrid", "float32"),
        "mamba_ssm_cache_dtype": Example("hybrid", "bfloat16"),
        "limit_mm_per_prompt": Example("hybrid", '{"image": 0}'),
        **_all(
            "hybrid",
            max_model_len=65536, language_model_only=True, enable_prefix_caching=False, mamba_cache_mode="none",
        ),
        "enable_chunked_prefill": Example("dense", False, with_flags={"max_num_batched_tokens": 1024,
                                                                      "max_model_len": 1024}),
        "watermark": Example("tight", 0.3),
        "max_num_active_seqs": Example("dense", 4),
        "max_num_scheduled_tokens": Example("dense", 512),
        "long_prefill_token_threshold_adaptive": Example(
            "dense", True, with_flags={"long_prefill_token_threshold": 16}
        ),
        "prefix_cache_retention_interval": Example("talks", 64),
        "scheduler_reserve_full_isl": Example("tight", False, with_flags={"max_num_batched_tokens": 128}),
        "prefill_schedule_interval": Example("experts", 8, with_flags={"max_num_batched_tokens": 256}),
        "pipeline_parallel_size": Example("dense", 1, "parallel.pp"),
        "tensor_parallel_size": Example("dense", 1, "parallel.tp"),
        "data_parallel_size": Example("experts", 4, "parallel.dp"),
        "decode_context_parallel_size": Example("latent", 2, "parallel.dcp"),
        "prefill_context_parallel_size": Example("latent", 2, "parallel.pcp"),
        "enable_expert_parallel": Example("experts", False, "parallel.expert_parallel"),
        "all2all_backend": Example("experts", "deepep_high_throughput", "parallel.all2all_backend"),
        "disable_custom_all_reduce": Example("dense", "nccl", "parallel.all_reduce_backend"),
    },
    "sglang": {
        **_all(
            "dense",
            pp_max_micro_batch_size=2, pp_async_batch_depth=2, max_running_requests=4, max_total_tokens=6000,
            page_size=64, mem_fraction_static=0.5, chunked_prefill_size=512, max_prefill_tokens=800,
            prefill_max_requests=2, enable_dynamic_chunking=True, enable_mixed_chunk=True, prefill_decode_interval=4,
            disable_cuda_graph=True, disable_decode_cuda_graph=True, disable_cuda_graph_padding=True,
            cuda_graph_max_bs_decode=8, cuda_graph_bs_decode="1 2", cuda_graph_backend_decode="disabled",
            kv_cache_dtype="fp8_e4m3", quantization="fp8", cpu_offload_gb=1,
        ),
        "swa_full_tokens_ratio": Example("windows", 0.25),
        "disable_hybrid_swa_memory": Example("windows", True),
        "mamba_full_memory_ratio": Example("hybrid", 0.2),
        "mamba_ssm_dtype": Example("hybrid", "bfloat16"),
        "ep_num_redundant_experts": Example("experts", 16),
        "language_model_only": Example("images", True),
        "enable_multimodal": Example("llama-4", True),
        "schedule_policy": Example("alike", "lpm", with_flags={"max_running_requests": 4}),
        "max_mamba_cache_size": Example("hybrid", 64),
        "prefill_decode_interval_min_bs": Example("dense", 64, with_flags={"prefill_decode_interval": 4}),
        "disable_radix_cache": Example("tight", True),
        "context_length": Example("dense", 512),  # refuses the load
        "pp_size": Example("dense", 1, "parallel.pp"),
        "tp_size": Example("dense", 1, "parallel.tp"),
        "dp_size": Example("experts", 4, "parallel.dp"),
        "dcp_size": Example("latent", 2, "parallel.dcp"),
        "ep_size": Example("experts", False, "parallel.expert_parallel"),
        "moe_a2a_backend": Example("experts", "deepep", "parallel.all2all_backend"),
        "disable_custom_all_reduce": Example("dense", "nccl", "parallel.all_reduce_backend"),
        "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR": Example("dense", "0.1", with_flags={
            "enable_dynamic_chunking": True, "chunked_prefill_size": 256,
        }),
        "SGLANG_PP_COMM_OVERLAP": Example("dense", "1"),
        "SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM": Example("dense", "1", with_flags={"chunked_prefill_size": 256}),
    },
}  # fmt: skip


def space(engine: str, name: str) -> SearchSpace:
    """The space of an example, on this engine."""
    kind = {"tight": "dense", "latent": "experts", "talks": "windows", "alike": "dense"}.get(name, name)
    sizes = {"tp": 4, "pp": 2} if name == "latent" else _SIZES[kind]
    flags = _TIGHT[engine] if name == "tight" else {}
    load = {**_LOAD, "concurrency": 24, **({"output_tokens": 300} if name == "tight" else {})}
    if name == "talks":
        load |= {"turns": 4, "concurrency": 4, "range_ratio": 0.0}
    if name == "alike":
        load |= {"prefix_tokens": 500, "prefixes": 4, "prompt_tokens": 200}
    return SearchSpace.from_mapping(
        {"name": "s", "engine": {"name": engine, "flags": flags}, "parallel": sizes, "workload": load, **_SPACES[kind]}
    )


def figures(engine: str, example: Example, *, changed: bool) -> str:
    """Every figure of the example's candidate, as one text."""
    spec, flags = space(engine, example.space), dict(example.with_flags)
    if changed and example.key:
        spec = with_settings(spec, {example.key: example.value})
    name = next(flag for flag, other in EXAMPLES[engine].items() if other is example)
    if changed and not example.key:
        flags[name] = example.value
    problem = resolve(spec)
    shown = explain(problem, candidate_of(problem, None, flags)).to_json()
    assert changed or shown["outcome"] == "ok", shown["reason"]
    for about in ("knobs", "notes", "doubts", "not_modelled", "partition"):
        shown.pop(about)
    return json.dumps(shown, sort_keys=True)


def page() -> str:
    """The page: modelled flags by name, the others by their reason."""
    lines = [
        "# What the simulator makes of every flag",
        "",
        "*modelled*: a test changes it and sees a figure change (`tests/engines/test_coverage.py`, one case a flag).",
        _OTHERS,
    ]
    for engine, table in TABLES.items():
        counts = {effect: sum(row.effect is effect for row in table.values()) for effect in Effect}
        told = ", ".join(f"{count} {effect}" for effect, count in counts.items())
        lines += ["", f"## {TITLES[engine]}: {told}", "", "| flags | what becomes of them |", "|---|---|"]
        for (effect, why), rows in groupby(table.items(), key=lambda item: (item[1].effect, item[1].why)):
            flags = " ".join(f"`{name}`" for name, _ in rows)
            lines.append(f"| {flags} | **{effect}**{f': {why}' if why else ''} |")
    lines += ["", "Made by `make docs` from `engines/*/coverage.py`; a test holds this page to them."]
    return "\n".join(lines) + "\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(page())

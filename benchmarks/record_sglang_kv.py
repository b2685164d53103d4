"""Record how SGLang itself sizes its KV pool, stage by stage, without a GPU.

    python -m benchmarks.record_sglang_kv --sglang PATH --out tests/data/kv_capacity_sglang_0_5_23.json

PATH and the Python as for record_sglang_schedules.py. Model configs are those of the catalog
(partitune/models/configs), without their quantisation, which decides weights and no KV.

Decision: the engine's own `KVCacheConfigurator` is asked (`_resolve_memory_pool_config`: the memory that is free,
states of linear attention, the pool of the model's kind, the caps, the smallest over the stages), with its real
`ModelConfig`. Replaced are the free memory, which a record states, and the all-reduce over the stages: every stage is
asked twice, the second time with the least of what all said. Written against 0.5.23.
"""

# The engine is not installed where the checks run.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CONFIGS = Path(__file__).parent.parent / "partitune" / "models" / "configs"
_GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """One start: a model of the catalog, its layout and flags, and what is free on every stage."""

    model: str  # the catalog's name
    config: str  # its file
    tp: int
    partition: tuple[int, ...]
    free_gib: tuple[float, ...]  # one for all, or one a stage
    flags: dict[str, Any] = field(default_factory=dict)

    @property
    def free_bytes(self) -> list[int]:
        """Of every stage."""
        each = self.free_gib * len(self.partition) if len(self.free_gib) == 1 else self.free_gib
        return [int(gib * _GIB) for gib in each]


def cases() -> Iterator[Case]:
    """Ten models, one to eight stages, even and uneven, and the flags that decide the pool."""
    qwen, llama, r1 = (
        ("qwen3-32b", "Qwen--Qwen3-32B"),
        ("llama-3.1-70b", "meta-llama--Meta-Llama-3.1-70B"),
        "deepseek-r1",
    )
    yield Case(*qwen, 1, (64,), (60.0,))
    yield Case(*qwen, 2, (32, 32), (70.5,), {"page_size": 64})
    yield Case(*qwen, 2, (15, 16, 16, 17), (70.5, 60.25, 60.0, 66.0), {"kv_cache_dtype": "fp8_e4m3"})
    yield Case(*qwen, 4, (8,) * 8, (40.0,), {"max_total_tokens": 100_000, "page_size": 16})
    yield Case(*qwen, 4, (32, 32), (40.0,), {"max_running_requests": 64})
    yield Case(*llama, 4, (27, 26, 27), (35.0, 34.0, 33.0))
    yield Case(*llama, 8, (20, 20, 20, 20), (35.0,), {"page_size": 32, "kv_cache_dtype": "fp8_e5m2"})
    yield Case("qwen3-235b", "Qwen--Qwen3-235B-A22B", 8, (47, 47), (30.0,))
    yield Case("qwen3-235b", "Qwen--Qwen3-235B-A22B", 2, (11, 11, 12, 12, 12, 12, 12, 12), (24.5,))
    yield Case(r1, "deepseek-ai--DeepSeek-R1", 8, (61,), (22.0,))
    yield Case(r1, "deepseek-ai--DeepSeek-R1", 4, (30, 31), (9.75,), {"kv_cache_dtype": "fp8_e4m3"})
    yield Case(r1, "deepseek-ai--DeepSeek-R1", 8, (15, 15, 15, 16), (80.0, 81.0, 82.0, 79.0), {"page_size": 64})
    gpt_oss = ("gpt-oss-120b", "openai--gpt-oss-120b")
    yield Case(*gpt_oss, 1, (36,), (12.0,))
    yield Case(*gpt_oss, 2, (18, 18), (40.0,), {"page_size": 64})
    yield Case(*gpt_oss, 2, (9, 9, 9, 9), (40.0, 38.5, 41.0, 39.0))
    yield Case(*gpt_oss, 4, (18, 18), (40.0,), {"swa_full_tokens_ratio": 0.25})
    yield Case(*gpt_oss, 4, (18, 18), (40.0,), {"max_running_requests": 256, "disable_radix_cache": True})
    mimo = ("mimo-v2-flash", "XiaomiMiMo--MiMo-V2-Flash")
    yield Case(*mimo, 4, (24, 24), (50.0,))
    yield Case(*mimo, 8, (12, 12, 12, 12), (50.0,), {"kv_cache_dtype": "fp8_e4m3"})
    following = ("qwen3-next-80b", "Qwen--Qwen3-Next-80B-A3B-Instruct")
    yield Case(*following, 2, (24, 24), (30.0,))
    yield Case(*following, 4, (12, 12, 12, 12), (60.0, 61.0, 62.0, 63.0))
    yield Case(*following, 2, (23, 25), (30.0,), {"mamba_full_memory_ratio": 0.3, "page_size": 64})
    yield Case(*following, 2, (24, 24), (30.0,), {"max_mamba_cache_size": 200})
    yield Case(*following, 2, (24, 24), (30.0,), {"max_running_requests": 100, "disable_radix_cache": True})
    k3 = ("kimi-k3", "moonshotai--Kimi-K3")
    yield Case(*k3, 2, (11, 11, 11, 12, 12, 12, 12, 12), (30.0,))
    yield Case(
        *k3,
        2,
        (12, 12, 11, 11, 11, 11, 14, 11),
        (30.0, 31.0, 32.0, 33.0, 34.0, 35.0, 28.0, 37.0),
        {"max_mamba_cache_size": 300},
    )
    yield Case("qwen3.5-122b-a10b", "Qwen--Qwen3.5-122B-A10B", 2, (24, 24), (40.0,))
    yield Case("deepseek-v3.2", "deepseek-ai--DeepSeek-V3.2", 8, (30, 31), (40.0,), {"kv_cache_dtype": "bfloat16"})


class Sizing:
    """The engine's configurator for one start after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = importlib.import_module("sglang.srt.runtime_context")
        self.configurator = importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
        self.pools = importlib.import_module("sglang.srt.model_executor.pool_configurator")
        self.torch = importlib.import_module("torch")
        self.said: list[int] = []  # tokens of each stage, in the first round
        self.least: int | None = None  # of those, in the second
        self.free_gib = 0.0
        vars(self.configurator)["get_available_gpu_memory"] = lambda *_, **__: self.free_gib
        self.torch.distributed.all_reduce = self._all_reduce

    def _all_reduce(self, tensor: Any, **_: object) -> None:
        if self.least is None:
            self.said.append(int(tensor))
        else:
            tensor.fill_(self.least)

    def record(self, case: Case) -> dict[str, Any]:
        """What the engine makes of one start."""
        self._publish(case)
        os.environ["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, case.partition))
        self.free_gib = min(case.free_bytes) / _GIB  # the engine takes the least of all ranks
        self.said, self.least = [], None
        ends = [sum(case.partition[: stage + 1]) for stage in range(len(case.partition))]
        ranges = [(end - held, end) for held, end in zip(case.partition, ends, strict=True)]
        for layers in ranges:
            self._stage(case, *layers)
        self.least = min(self.said, default=None)
        stages = [self._stage(case, *layers) for layers in ranges]
        assert len({json.dumps(stage["pool"]) for stage in stages}) == 1, "stages disagree"
        return {
            "engine": "sglang 0.5.23",
            "model": case.model,
            "tp": case.tp,
            "partition": list(case.partition),
            "flags": case.flags,
            "available_bytes_per_stage": case.free_bytes,
            "cell_bytes_per_stage": [stage["cell"] for stage in stages],
            **stages[0]["pool"],
        }

    def _publish(self, case: Case) -> None:
        arguments = importlib.import_module("sglang.srt.server_args").ServerArgs(
            model_path="none",
            tp_size=case.tp,
            pp_size=len(case.partition),
            device="cpu",
            attention_backend="torch_native",
            skip_tokenizer_init=True,
            disable_overlap_schedule=len(case.partition) > 1,
        )
        self.context.publish(arguments, role="scheduler", ranks=self.context.SpawnRanks(world_rank=0))
        self.context.get_parallel().override_permanently(world_group=SimpleNamespace(cpu_group=None))

    def _stage(self, case: Case, first: int, end: int) -> dict[str, Any]:
        flags = case.flags
        self.context.get_context().override(
            "recorder",
            mem_fraction_static=0.8,
            page_size=flags.get("page_size", 1),
            max_total_tokens=flags.get("max_total_tokens"),
            max_running_requests=flags.get("max_running_requests"),
            max_mamba_cache_size=flags.get("max_mamba_cache_size"),
            mamba_full_memory_ratio=flags.get("mamba_full_memory_ratio", 0.9),
            swa_full_tokens_ratio=flags.get("swa_full_tokens_ratio", 0.8),
            disable_radix_cache=flags.get("disable_radix_cache", False),
            chunked_prefill_size=8192,
            cuda_graph_config=SimpleNamespace(prefill=SimpleNamespace(full_prefill_max_req=None, backend=None)),
        )
        kvc = self._configurator(case, first, end)
        # With nothing held before the weights there is no slack: the record's free memory is all for the pool.
        config = kvc._resolve_memory_pool_config(0)
        pool = self.pools.create_memory_pool_configurator(kvc)
        capped = isinstance(pool, self.pools.SWARequestCapPoolConfigurator)
        slots = self.context.get_schedule().max_mamba_cache_size if kvc.mambaish_config is not None else None
        return {
            # Where the pool of windows has its own length, a token of the other pool is all that is left to divide by.
            "cell": pool._full_cell_bytes() if capped else pool._cell_size,
            "pool": {
                "max_total_num_tokens": config.max_total_num_tokens,
                "swa_max_total_num_tokens": config.swa_max_total_num_tokens,
                "max_mamba_cache_size": slots,
                "max_running_requests": config.max_running_requests,
            },
        }

    def _configurator(self, case: Case, first: int, end: int) -> Any:
        from sglang.srt.configs.hybrid_arch import hybrid_gdn_config, hybrid_kda_config, mambaish_config
        from sglang.srt.configs.model_config import AttentionArch, ModelConfig
        from sglang.srt.model_executor.model_runner_components.layer_setup import resolve_layer_indices
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        dtype = case.flags.get("kv_cache_dtype", "auto")
        types = {"fp8_e4m3": self.torch.float8_e4m3fn, "fp8_e5m2": self.torch.float8_e5m2}
        model_config = ModelConfig(model_path=str(self._model(case)), dtype="bfloat16")
        kvc = object.__new__(self.configurator.KVCacheConfigurator)
        for name, value in {
            "device": "cpu",
            "gpu_id": 0,
            "attn_dp_size": 1,
            "pp_size": len(case.partition),
            "model_config": model_config,
            "server_args": self.context.get_server_args(),
            "kv_cache_dtype": types.get(dtype, self.torch.bfloat16),
            "kv_cache_dtype_str": dtype,
            "model_dtype": self.torch.bfloat16,
            "page_size": case.flags.get("page_size", 1),
            "sliding_window_size": getattr(model_config.hf_text_config, "sliding_window", None),
            "spec_algorithm": SpeculativeAlgorithm.NONE,
            "spec_aux_config": SimpleNamespace(draft_model_config=None, eagle_draft_num_layers=None),
            "is_draft_worker": False,
            "post_capture_kv_active": False,
            "is_hybrid_swa": bool(model_config.is_hybrid_swa),
            "use_mla_backend": model_config.attention_arch == AttentionArch.MLA,
            "layer_info": resolve_layer_indices(
                model=SimpleNamespace(start_layer=first, end_layer=end),
                model_config=model_config,
                is_draft_worker=False,
            ),
            "mambaish_config": mambaish_config(model_config),
            "hybrid_gdn_config": hybrid_gdn_config(model_config),
            "hybrid_kda_config": hybrid_kda_config(model_config),
            "extra_mamba_cache_bytes_per_req": 0,
            "dflash_draft_cell_size_per_token": None,
            "kv_shard_size": 1,
            "kv_shard_spec": None,
        }.items():
            object.__setattr__(kvc, name, value)
        return kvc

    def _model(self, case: Case) -> Path:
        folder = self.folder / case.config
        if not folder.exists():
            config = json.loads((CONFIGS / f"{case.config}.json").read_text("utf-8"))
            for section in (config, *(inner for inner in config.values() if isinstance(inner, dict))):
                for key in ("auto_map", "quantization_config"):
                    section.pop(key, None)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))
        return folder


def main() -> None:
    """Record all cases, or those of the models that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sglang", type=Path, required=True, help="directory that holds the package sglang")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("names", nargs="*", help="models; default: all")
    options = parser.parse_args()
    sys.path.insert(0, str(options.sglang))
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        sizing = Sizing(Path(folder))
        for case in cases():
            if not options.names or case.model in options.names:
                records.append(sizing.record(case))
                print(json.dumps(records[-1]), flush=True)
    options.out.write_text("[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in records) + "\n]\n")


if __name__ == "__main__":
    main()

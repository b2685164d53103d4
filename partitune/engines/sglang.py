"""SGLang: its default split, defaults, refusals, and the rule by which its KV pool shrinks over stages.

Decision: SGLang has no central scheduler (each stage runs one, a request stays in one of `pp + depth` slots for life),
so none of vLLM's regimes describes it: its flow has a name of its own. Its KV pool is the least free
memory of any stage divided by the largest cell of any stage, even when these are different stages. Layers with a
sliding window are counted like full ones (SGLang gives them a smaller pool of their own, `swa_full_tokens_ratio`).

Source: SGLang 0.5.23 `srt/distributed/utils.py`, `srt/mem_cache/kv_cache_configurator.py`,
`srt/arg_groups/memory_hook.py`, `srt/arg_groups/validation_hook.py`; splits read in 0.5.5.post3 and 0.5.6.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

import numpy as np

from partitune.cluster.hardware import Gpu
from partitune.costs.memory import MemorySettings
from partitune.engines.default_splits import all_on_last, chosen_split, remainder_last
from partitune.engines.flags import arguments, config_entries, read_config, unknown_flag
from partitune.engines.interface import (
    Deployment,
    Floats,
    Flow,
    Violation,
    environment_knobs,
    flag_knobs,
)
from partitune.engines.kv_planning import KvPlan
from partitune.engines.sglang_flags import NAMES_OF_VLLM, SGLANG_FLAGS
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.model.architecture import STATE_KINDS, Architecture, Ffn
from partitune.partition.legality import illegal_reasons
from partitune.result import Knob

_READ = VersionRange("SGLang", oldest=Version(0, 5, 16), newest=Version(0, 5, 23))
_LAST_RANKS_SINCE = Version(0, 5, 6)  # PR 13977; first ranks (PR 13282) were never released
_STATE_TO_KV = 0.9  # mamba_full_memory_ratio
_VALIDATION = "SGLang 0.5.23 srt/arg_groups/validation_hook.py"
_MIB = 1 << 20
_BLACKWELL = ("blackwell", "blackwell-rack")
#: Requests that run at once when no flag says so: the least that the engine derives from its KV pool, unless that is
#: tiny (`mem_cache/kv_cache_configurator.py` resolve_max_num_reqs).
FEWEST_ROWS = 2048


class Sglang:
    """The engine SGLang."""

    name = "sglang"
    partition_env = "SGLANG_PP_LAYER_PARTITION"
    said_elsewhere: ClassVar[Mapping[str, str]] = {
        partition_env: "seeds, knobs.partition or --partition",
        "model_path": "model",
        "pp_size": "parallel.pp",
        "tp_size": "parallel.tp",
        "pipeline_parallel_size": "parallel.pp",  # SGLang takes both spellings
        "tensor_parallel_size": "parallel.tp",
    }
    model_key = "model-path"

    def notes(self, version: str) -> tuple[str, ...]:
        """What is assumed about this version."""
        return _READ.notes(parse_version(version))

    def default_partition(self, layers: int, stages: int, version: str, rule: str | None = None) -> tuple[int, ...]:
        """`get_pp_indices` of the release, or a named rule."""
        own = remainder_last if parse_version(version) >= _LAST_RANKS_SINCE else all_on_last
        return chosen_split(layers, stages, own, rule)

    def flow(self, deployment: Deployment) -> Flow:
        """A request stays in one slot for life, at most `pp_max_micro_batch_size` in each.

        That cap is by default the running requests over the stages (`managers/scheduler.py` init_model_worker): far
        more than a burst of a few requests needs, all of which then share one slot.
        """
        knobs = self.effective_knobs(deployment)
        running = _integer(knobs, "max_running_requests", FEWEST_ROWS)
        chunk = int(knobs["chunked_prefill_size"])
        return Flow(
            "slots",
            cohorts=self.slots(deployment),
            step_tokens=chunk if chunk > 0 else int(knobs["max_prefill_tokens"]),
            max_requests=running,
            cohort_requests=_integer(knobs, "pp_max_micro_batch_size", max(running // deployment.stages, 1)),
            notes=self.notes(deployment.version),
        )

    def slots(self, deployment: Deployment) -> int:
        """Micro-batches in flight (`managers/scheduler_pp_mixin.py`)."""
        if deployment.stages == 1:
            return 1
        return deployment.stages + _integer(deployment.knobs, "pp_async_batch_depth", 0)

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """Weights and KV share `mem_fraction_static` of what is free at start; a batch works in the rest."""
        flow, knobs = self.flow(deployment), self.effective_knobs(deployment)
        return MemorySettings(
            max_num_batched_tokens=flow.step_tokens,
            max_num_seqs=flow.cohort_requests,
            gpu_memory_utilization=float(knobs["mem_fraction_static"]),
            cuda_graphs=not knobs.get("disable_cuda_graph", False),
            static_share=True,
        )

    def expert_kernel(self, architecture: Architecture, gpu: Gpu) -> str | None:
        """8-bit activations with mxfp4 weights on data-centre Blackwell (`layers/quantization/mxfp4.py`; PR 34299)."""
        mxfp4 = any(layer.ffn.kind is Ffn.MOE and layer.ffn.expert_dtype == "mxfp4" for layer in architecture.layers)
        special = architecture.architecture.startswith("GptOss")
        return "w4a8_mxfp4_mxfp8" if mxfp4 and not special and gpu.generation in _BLACKWELL else None

    def is_asynchronous(self, deployment: Deployment) -> bool:
        """Never with a pipeline: overlap scheduling is forced off (`arg_groups/overrides.py`)."""
        return deployment.stages == 1 and deployment.knobs.get("disable_overlap_schedule") is not True

    def default_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """Chunk size by GPU memory, static memory by chunk and parallel size, and the fixed defaults."""
        memory_mib = deployment.gpu.memory_bytes / _MIB
        chunk = _integer(deployment.knobs, "chunked_prefill_size", _chunk_default(memory_mib))
        working = chunk if chunk > 0 else _integer(deployment.knobs, "max_prefill_tokens", 16384)
        reserved = 512 + 1.5 * max(working, 2048) + deployment.tp * deployment.stages / 8 * 1024
        reserved += 2 * _graph_batch(memory_mib, deployment.tp)
        if memory_mib > 60 * 1024:
            reserved = max(reserved, 10 * 1024)
        return {
            "chunked_prefill_size": chunk,
            "max_prefill_tokens": 16384,
            "mem_fraction_static": round((memory_mib - reserved) / memory_mib, 3),
            "pp_async_batch_depth": 0,
            "enable_mixed_chunk": False,
            "enable_dynamic_chunking": False,
            "schedule_policy": "fcfs",
            "schedule_conservativeness": 1.0,
            "page_size": 1,
        }

    def effective_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """Defaults overlaid with the deployment's flags."""
        return {**self.default_knobs(deployment), **flag_knobs(deployment.knobs)}

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks."""
        effective = self.effective_knobs(deployment)
        return (*_flag_faults(deployment), *_shape_faults(deployment, effective), *_mode_faults(deployment))

    def serve_arguments(self, model: str, deployment: Deployment) -> tuple[str, ...]:
        """`python -m sglang.launch_server …` with the parallel sizes and the deployment's own flags."""
        program = ("python", "-m", "sglang.launch_server", "--model-path", model)
        return (*program, *arguments(_all_flags(deployment), SGLANG_FLAGS))

    def config_yaml(self, deployment: Deployment) -> Mapping[str, Knob]:
        """For `--config`: long flag names; a flag that is off is left out."""
        return config_entries(_all_flags(deployment), SGLANG_FLAGS)

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:  # noqa: ARG002
        """The same command on every node, told its rank (`entrypoints/engine.py`)."""
        start = f"python -m sglang.launch_server --config {shlex.quote(config)}"
        if nodes == 1:
            return (start,)
        group = f"{start} --nnodes {nodes} --dist-init-addr ADDRESS_OF_NODE_0:20000 --node-rank"
        return tuple(f"{group} {rank}" for rank in range(nodes))

    def read_config(self, entries: Mapping[str, object]) -> Mapping[str, Knob]:
        """What `--config` makes of such a file."""
        return read_config(entries, SGLANG_FLAGS)

    def environment(self, deployment: Deployment) -> Mapping[str, str]:
        """Partition (only when one was chosen: an empty value is an error) and environment knobs."""
        variables = environment_knobs(deployment.knobs)
        if deployment.partition is not None:
            variables[self.partition_env] = ",".join(map(str, deployment.partition))
        return variables

    def plan_kv(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvPlan:
        """Pool of one partition: the least free memory over the largest cell; a block is a page."""
        knobs = self.effective_knobs(deployment)
        page = _integer(knobs, "page_size", 1)
        ends = list(accumulate(partition))
        starts = [0, *ends[:-1]]
        token_bytes, state_bytes = _layer_bytes(deployment)
        cells = [int(token_bytes[i:j].sum()) for i, j in zip(starts, ends, strict=True)]
        states = [int(state_bytes[i:j].sum()) for i, j in zip(starts, ends, strict=True)]
        if not any(cells) or (min(cells) == 0 and not any(states)):
            raise InfeasibleSpace(
                f"stage {cells.index(0)} owns no layer that keeps KV per token; SGLang cannot size its pool"
            )
        slots = _state_slots(deployment, min(free_bytes), max(states))
        pool = min(free_bytes) - slots * max(states)
        pages = min(max(pool, 0) // (max(cells) * page), _integer(knobs, "max_total_tokens", 1 << 62) // page)
        # A hybrid's stage without attention sets no limit of its own.
        alone = [max(pool, 0) // (cell * page) if cell else None for cell in cells]
        stage_pages = tuple(max(filter(None, alone), default=pages) if own is None else own for own in alone)
        longest = _integer(knobs, "context_length", deployment.architecture.max_position)
        if pages == 0:
            raise OutOfMemory(
                f"the tightest stage has {min(free_bytes) / 2**30:.2f} GiB for KV and state: not one page fits",
                excess=float(max(cells) * page - pool),
            )
        return KvPlan(
            num_blocks=pages,
            block_size=page,
            tokens=pages * page,
            concurrency=pages * page / longest,
            stage_blocks=stage_pages,
            stage_block_bytes=tuple(cell * page for cell in cells),
            stranded_bytes=tuple(
                int(free) - pages * page * cell - slots * state
                for free, cell, state in zip(free_bytes, cells, states, strict=True)
            ),
            group_layers=tuple(int((token_bytes[i:j] > 0).sum()) for i, j in zip(starts, ends, strict=True)),
            groups=1,
        )

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Pages that a stage could hold by itself; the pool is smaller when another stage has less free memory."""
        page = _integer(self.effective_knobs(deployment), "page_size", 1)
        token_bytes, state_bytes = _layer_bytes(deployment)
        prefix = np.concatenate(([0], np.cumsum(token_bytes)))
        cells = prefix[None, :] - prefix[:, None]
        share = 1 / (1 + _STATE_TO_KV) if state_bytes.any() else 1.0
        pages = np.floor(np.maximum(free_bytes, 0.0) * share / (np.maximum(cells, 1) * page)[None])
        return np.where(cells[None] > 0, pages, 0.0)

    def fewest_kv_blocks(self, deployment: Deployment) -> int:  # noqa: ARG002  (the protocol's)
        """Pages of one token: SGLang starts with any pool and refuses long requests later."""
        return 1


def _chunk_default(memory_mib: float) -> int:
    return next((chunk for below, chunk in ((20, 2048), (60, 4096), (160, 8192)) if memory_mib < below * 1024), 16384)


def _graph_batch(memory_mib: float, tp: int) -> int:
    """Largest decode batch that is captured; costs 2 MiB each."""
    steps = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
    return next((few if tp < 4 else many for below, few, many in steps if memory_mib < below * 1024), 512)


def _layer_bytes(deployment: Deployment) -> tuple[Floats, Floats]:
    """Bytes per token and bytes of state per sequence of every layer on one rank."""
    blocks = [layer.attention for layer in deployment.architecture.layers]
    tokens = [round(block.kv_bytes_per_token_rank(deployment.tp)) for block in blocks]
    states = [block.state_bytes // deployment.tp if block.kind in STATE_KINDS else 0 for block in blocks]
    return np.array(tokens, dtype=np.float64), np.array(states, dtype=np.float64)


def _state_slots(deployment: Deployment, free: int, state_bytes: int) -> int:
    """Slots for fixed states, the same on every stage: so many as the fullest stage (`state_bytes` a slot) can have."""
    if state_bytes == 0:
        return 0
    slots = deployment.knobs.get("max_mamba_cache_size")
    if isinstance(slots, int):
        return slots
    return int(free * _STATE_TO_KV / (1 + _STATE_TO_KV)) // state_bytes


def _flag_faults(deployment: Deployment) -> Iterator[Violation]:
    source = "SGLang 0.5.23 srt/arg_groups/fields"
    for name, value in flag_knobs(deployment.knobs).items():
        if name in SGLANG_FLAGS:
            fault = SGLANG_FLAGS[name].fault(value)
            if fault:
                yield Violation("flag-value", f"{name}: {fault}", source)
        elif name in NAMES_OF_VLLM:
            message = f"{name}: vLLM's name; SGLang has {NAMES_OF_VLLM[name]}"
            yield Violation("unknown-flag", message, source)
        elif difflib.get_close_matches(name.lower().replace("-", "_"), SGLANG_FLAGS, n=1, cutoff=0.85):
            yield Violation("unknown-flag", unknown_flag(name, SGLANG_FLAGS, f"SGLang {deployment.version}"), source)


def _shape_faults(deployment: Deployment, effective: Mapping[str, Knob]) -> Iterator[Violation]:
    stages, tp = deployment.stages, deployment.tp
    heads = max(layer.attention.heads for layer in deployment.architecture.layers)
    if heads % tp:
        yield Violation(
            "heads-over-tp", f"tensor parallel size {tp} does not divide {heads} attention heads", _VALIDATION
        )
    if stages > len(deployment.architecture.layers):
        layers = len(deployment.architecture.layers)
        yield Violation(
            "fewer-layers-than-stages",
            f"{layers} layers for {stages} stages",
            "SGLang 0.5.23 srt/utils/common.py make_layers",
        )
    nodes = _integer(effective, "nnodes", 1)
    if tp * stages % nodes:
        yield Violation("nodes", f"{tp} x {stages} GPUs cannot be divided over {nodes} nodes", _VALIDATION)
    elif stages % nodes and nodes % stages:
        yield Violation(
            "stages-over-nodes",
            f"{stages} stages over {nodes} nodes leave a stage unstarted",
            "SGLang 0.5.23 entrypoints/engine.py",
        )
    chunk, page = _integer(effective, "chunked_prefill_size", 0), _integer(effective, "page_size", 1)
    if chunk > 0 and page > 0 and chunk % page:
        yield Violation(
            "chunk-of-pages", f"chunked_prefill_size {chunk} must be a multiple of page_size {page}", _VALIDATION
        )
    if deployment.partition is not None:
        if len(deployment.partition) != stages:
            message = f"the partition has {len(deployment.partition)} entries for {stages} stages"
            yield Violation("partition", message, "SGLang 0.5.23 srt/distributed/utils.py")
        for reason in illegal_reasons(deployment.architecture, deployment.partition):
            yield Violation("partition", reason, "SGLang 0.5.23 srt/distributed/utils.py")


def _mode_faults(deployment: Deployment) -> Iterator[Violation]:
    """Options that exclude a pipeline."""
    knobs = deployment.knobs
    if deployment.stages == 1:
        return
    for name in ("min_free_slots_delay", "enable_pdmux"):
        if knobs.get(name, False) is not False:
            yield Violation("not-with-pipeline", f"{name} is refused with more than one pipeline stage", _VALIDATION)
    algorithm = knobs.get("speculative_algorithm")
    if algorithm is None:
        return
    prefill_node = knobs.get("disaggregation_mode") == "prefill"
    relayed = str(knobs.get("SGLANG_ENABLE_PP_SPEC", "")).lower() in ("1", "true", "yes", "y")
    eagle = str(algorithm).upper() == "EAGLE" and not knobs.get("enable_multi_layer_eagle")
    if not eagle and not (algorithm == "DSPARK" and prefill_node):
        yield Violation(
            "draft-with-pipeline", f"speculative_algorithm {algorithm} is refused; only EAGLE runs", _VALIDATION
        )
    elif eagle and relayed == prefill_node:
        yield Violation(
            "draft-with-pipeline",
            "EAGLE with a pipeline needs either disaggregation_mode prefill or SGLANG_ENABLE_PP_SPEC=1, not both",
            _VALIDATION,
        )


def _all_flags(deployment: Deployment) -> dict[str, Knob]:
    sizes: dict[str, Knob] = {"pp_size": deployment.stages, "tp_size": deployment.tp}
    return {**sizes, **flag_knobs(deployment.knobs)}


def _integer(knobs: Mapping[str, Knob], name: str, otherwise: int) -> int:
    value = knobs.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

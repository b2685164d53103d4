"""SGLang: its default split, defaults, refusals, and the rule by which its KV pool shrinks over stages.

Decision: SGLang has no central scheduler (each stage runs one, a request stays in one of `pp + depth` slots for life),
so none of vLLM's regimes describes it: its flow has a name of its own. Its KV pool is the least free
memory of any stage divided by the largest cell of any stage, even when these are different stages. Layers with a
sliding window are counted like full ones (SGLang gives them a smaller pool of their own, `swa_full_tokens_ratio`).

Source: SGLang 0.5.23 `srt/distributed/utils.py`, `srt/mem_cache/kv_cache_configurator.py`,
`srt/arg_groups/memory_hook.py`, `srt/arg_groups/validation_hook.py`; splits read in 0.5.5.post3 and 0.5.6.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from partitune.candidate import Knob
from partitune.costs.cost_model import Floats
from partitune.costs.memory import MemorySettings
from partitune.engines.default_splits import all_on_last, chosen_split, remainder_last
from partitune.engines.deployment import Deployment, environment_knobs, flag_knobs
from partitune.engines.flags import arguments, config_entries, read_config, whole_number
from partitune.engines.memory import KvPlan
from partitune.engines.replicated_embeddings import sglang_copies
from partitune.engines.rules import Violation
from partitune.engines.scheduling import Flow
from partitune.engines.sglang.flags import SGLANG_FLAGS
from partitune.engines.sglang.parallel_rules import attention_replicas, has_experts, layout_flags, resolved_layout
from partitune.engines.sglang.rules import check_sglang
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Layout, RankOrder
from partitune.models.architecture import STATE_KINDS, Architecture, Ffn
from partitune.partition import Partition

_READ = VersionRange("SGLang", oldest=Version(0, 5, 16), newest=Version(0, 5, 23))
_LAST_RANKS_SINCE = Version(0, 5, 6)  # PR 13977; first ranks (PR 13282) were never released
_STATE_TO_KV = 0.9  # mamba_full_memory_ratio
_MIB = 1 << 20
#: Requests that run at once when no flag says so: the least that the engine derives from its KV pool, unless that is
#: tiny (`mem_cache/kv_cache_configurator.py` resolve_max_num_reqs).
FEWEST_ROWS = 2048

#: What moves the distance to the limit.
_LEVERS = {
    "roofline": "more requests in a slot (pp_max_micro_batch_size, max_running_requests), so that weights are read for "
    "more of them",
    "fill": "a smaller pp_max_micro_batch_size spreads the requests over more slots; pp_async_batch_depth adds slots",
    "host": "larger steps (chunked_prefill_size, pp_max_micro_batch_size); pp_async_batch_depth prepares them ahead",
}


class Sglang:
    """The engine SGLang."""

    name = "sglang"
    partition_env = "SGLANG_PP_LAYER_PARTITION"
    written_by_partitune: ClassVar[Mapping[str, str]] = {
        partition_env: "seeds, knobs.partition or --partition",
        "model_path": "model",
        "pp_size": "parallel.pp",
        "tp_size": "parallel.tp",
        "pipeline_parallel_size": "parallel.pp",  # SGLang takes both spellings
        "tensor_parallel_size": "parallel.tp",
        "dp_size": "parallel.dp",
        "data_parallel_size": "parallel.dp",
        "attn_dp_size": "parallel.dp",
        "attention_data_parallel_size": "parallel.dp",
        "ep_size": "parallel.expert_parallel",
        "expert_parallel_size": "parallel.expert_parallel",
        "dcp_size": "parallel.dcp",
        "decode_context_parallel_size": "parallel.dcp",
        "attn_cp_size": "parallel.pcp",
        "attention_context_parallel_size": "parallel.pcp",
        "enable_prefill_cp": "parallel.pcp",
        "moe_a2a_backend": "parallel.all2all_backend",
        "disable_custom_all_reduce": "parallel.all_reduce_backend",
    }
    model_key = "model-path"

    def notes(self, version: str) -> tuple[str, ...]:
        """What is assumed about this version."""
        return _READ.notes(parse_version(version))

    def default_partition(self, layers: int, stages: int, version: str, rule: str | None = None) -> tuple[int, ...]:
        """`get_pp_indices` of the release, or a named rule."""
        own = remainder_last if parse_version(version) >= _LAST_RANKS_SINCE else all_on_last
        return chosen_split(layers, stages, own, rule)

    def resolved_layout(self, layout: Layout, architecture: Architecture) -> Layout:
        """With the exchange of tokens and experts that SGLang picks."""
        return resolved_layout(layout, architecture)

    def rank_order(self, architecture: Architecture) -> RankOrder:
        """Attention data ranks lie inside a stage; replicas of a dense model each have a pipeline of their own."""
        return RankOrder.REPLICAS_INSIDE if has_experts(architecture) else RankOrder.REPLICAS_OUTSIDE

    def flow(self, deployment: Deployment) -> Flow:
        """A request stays in one slot for life, at most `pp_max_micro_batch_size` in each.

        That cap is by default the running requests over the stages (`managers/scheduler.py` init_model_worker): far
        more than a burst of a few requests needs, all of which then share one slot.
        """
        knobs = self.effective_knobs(deployment)
        running = whole_number(knobs, "max_running_requests", FEWEST_ROWS)
        chunk = int(knobs["chunked_prefill_size"])
        return Flow(
            "slots",
            cohorts=self.slots(deployment),
            step_tokens=chunk if chunk > 0 else int(knobs["max_prefill_tokens"]),
            max_requests=running,
            cohort_requests=whole_number(knobs, "pp_max_micro_batch_size", max(running // deployment.stages, 1)),
            notes=self.notes(deployment.version),
            levers=_LEVERS,
        )

    def slots(self, deployment: Deployment) -> int:
        """Micro-batches in flight (`managers/scheduler_pp_mixin.py`)."""
        if deployment.stages == 1:
            return 1
        return deployment.stages + whole_number(deployment.knobs, "pp_async_batch_depth", 0)

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """Weights and KV share `mem_fraction_static` of what is free at start; a batch works in the rest."""
        flow, knobs = self.flow(deployment), self.effective_knobs(deployment)
        return MemorySettings(
            max_num_batched_tokens=flow.step_tokens,
            max_num_seqs=flow.cohort_requests,
            gpu_memory_utilization=float(knobs["mem_fraction_static"]),
            cuda_graphs=not knobs.get("disable_cuda_graph", False),
            static_share=True,
            copies=sglang_copies(deployment.architecture),
        )

    def expert_kernel(self, architecture: Architecture, gpu: Gpu) -> str | None:
        """8-bit activations with mxfp4 weights on data-centre Blackwell (`layers/quantization/mxfp4.py`; PR 34299)."""
        mxfp4 = any(layer.ffn.kind is Ffn.MOE and layer.ffn.expert_dtype == "mxfp4" for layer in architecture.layers)
        special = architecture.architecture.startswith("GptOss")
        return "w4a8_mxfp4_mxfp8" if mxfp4 and not special and gpu.generation.value.data_centre_blackwell else None

    def is_asynchronous(self, deployment: Deployment) -> bool:
        """Never with a pipeline: overlap scheduling is forced off (`arg_groups/overrides.py`)."""
        return deployment.stages == 1 and deployment.knobs.get("disable_overlap_schedule") is not True

    def default_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """Chunk size by GPU memory, static memory by chunk and parallel size, and the fixed defaults."""
        memory_mib = deployment.gpu.memory_bytes / _MIB
        chunk = whole_number(deployment.knobs, "chunked_prefill_size", _chunk_default(memory_mib))
        world = deployment.tp * deployment.layout.pcp * attention_replicas(deployment.layout, deployment.architecture)
        working = chunk if chunk > 0 else whole_number(deployment.knobs, "max_prefill_tokens", 16384)
        reserved = 512 + 1.5 * max(working, 2048) + world * deployment.stages / 8 * 1024
        reserved += 2 * _graph_batch(memory_mib, world)
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
        """Defaults overlaid with the deployment's flags, as one scheduler sees them.

        Attention data ranks share chunk and requests, and reserve less for requests that run
        (`arg_groups/parallel_hook.py` handle_data_parallelism, resolve_max_num_reqs).
        """
        knobs = {**self.default_knobs(deployment), **flag_knobs(deployment.knobs)}
        ranks = attention_replicas(deployment.layout, deployment.architecture)
        if ranks == 1:
            return knobs
        for name in ("chunked_prefill_size", "max_running_requests"):
            if (total := whole_number(knobs, name, 0)) > 0:
                knobs[name] = max(1, total // ranks)
        return {**knobs, "schedule_conservativeness": 0.3 * float(knobs["schedule_conservativeness"])}

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks."""
        return check_sglang(deployment, self.effective_knobs(deployment))

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
        page = whole_number(knobs, "page_size", 1)
        ranges = Partition(partition).ranges
        token_bytes, state_bytes = _layer_bytes(deployment)
        cells = [int(token_bytes[i:j].sum()) for i, j in ranges]
        states = [int(state_bytes[i:j].sum()) for i, j in ranges]
        if not any(cells) or (min(cells) == 0 and not any(states)):
            raise InfeasibleSpace(
                f"stage {cells.index(0)} owns no layer that keeps KV per token; SGLang cannot size its pool"
            )
        slots = _state_slots(deployment, min(free_bytes), max(states))
        pool = min(free_bytes) - slots * max(states)
        pages = min(max(pool, 0) // (max(cells) * page), whole_number(knobs, "max_total_tokens", 1 << 62) // page)
        # A hybrid's stage without attention sets no limit of its own.
        alone = [max(pool, 0) // (cell * page) if cell else None for cell in cells]
        stage_pages = tuple(max(filter(None, alone), default=pages) if own is None else own for own in alone)
        longest = whole_number(knobs, "context_length", deployment.architecture.max_position)
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
            group_layers=tuple(int((token_bytes[i:j] > 0).sum()) for i, j in ranges),
            groups=1,
        )

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Pages that a stage could hold by itself; the pool is smaller when another stage has less free memory."""
        page = whole_number(self.effective_knobs(deployment), "page_size", 1)
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
    # Decode context parallelism deals the tokens out: a rank keeps one of `dcp`.
    tokens = [block.kv_bytes_per_token_rank(deployment.tp) / deployment.layout.dcp for block in blocks]
    states = [block.state_bytes // deployment.tp if block.kind in STATE_KINDS else 0 for block in blocks]
    return np.array([round(one) for one in tokens], dtype=np.float64), np.array(states, dtype=np.float64)


def _state_slots(deployment: Deployment, free: int, state_bytes: int) -> int:
    """Slots for fixed states, the same on every stage: so many as the fullest stage (`state_bytes` a slot) can have."""
    if state_bytes == 0:
        return 0
    slots = deployment.knobs.get("max_mamba_cache_size")
    if isinstance(slots, int):
        return slots
    return int(free * _STATE_TO_KV / (1 + _STATE_TO_KV)) // state_bytes


def _all_flags(deployment: Deployment) -> dict[str, Knob]:
    return {**layout_flags(deployment.layout, deployment.architecture), **flag_knobs(deployment.knobs)}

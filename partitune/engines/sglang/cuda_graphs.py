"""Decode batches for which SGLang captures a CUDA graph: their largest by GPU and ranks, never more than can run.

Decision: SGLang's own list and not vLLM's, as the memory of a stage counts its sizes and the engine reserves memory by
the largest. Graphs of prompts are not counted: a pipeline has none by default, and they share the activations' memory.

Source: SGLang 0.5.23 `srt/arg_groups/cuda_graph_hook.py` (parse_cuda_graph_config,
generate_decode_cuda_graph_batch_sizes), `srt/arg_groups/memory_hook.py` (handle_gpu_memory_settings),
`srt/model_executor/runner/base_cuda_graph_runner.py` (get_batch_sizes_to_capture). Not read: a `cuda_graph_config` in
JSON.
"""

from __future__ import annotations

from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number, whole_numbers
from partitune.engines.sglang.parallel_rules import attention_replicas, engine_ranks

_GIB = 1 << 30
#: GiB of the GPU below which -> largest batch on fewer than four ranks, and on more.
_LARGEST = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
_LARGEST_ABOVE = 512
_OFF = ("disable_cuda_graph", "disable_decode_cuda_graph")


def largest_batch(deployment: Deployment) -> int:
    """The largest decode batch that is to be captured; 0: none."""
    flags = deployment.flags
    backend = flags.get("cuda_graph_backend_decode")
    off = any(flags.get(name) for name in _OFF) if backend is None else backend == "disabled"
    if off or flags.get("disaggregation_mode") == "prefill":
        return 0
    if given := whole_numbers(flags, "cuda_graph_bs_decode"):
        return max(given)
    memory, few = deployment.gpu.memory_bytes, engine_ranks(deployment.layout, deployment.architecture) < 4
    default = next((low if few else high for below, low, high in _LARGEST if memory < below * _GIB), _LARGEST_ABOVE)
    return whole_number(flags, "cuda_graph_max_bs_decode", default)


def capture_sizes(deployment: Deployment, running: int) -> tuple[int, ...]:
    """Sizes in ascending order, where at most `running` requests of a scheduler run at once.

    Raises:
        SpecError: `cuda_graph_bs_decode` is not a list of whole numbers.
    """
    largest, flags, layout = largest_batch(deployment), deployment.flags, deployment.layout
    sizes = set(whole_numbers(flags, "cuda_graph_bs_decode"))
    if not sizes and flags.get("disable_cuda_graph_padding"):
        sizes.update(range(1, largest + 1))
    elif not sizes and flags.get("speculative_algorithm") is None:
        sizes.update((1, 2, 4, 8, 12), range(16, 257, 8), range(272, 512, 16), range(512, largest + 1, 32), (largest,))
    elif not sizes:
        sizes.update(range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8))
        sizes.update(range(272, largest + 1, 16), (largest,))
    # Ranks that gather tokens need the same number each, and context ranks share a batch.
    gathers = attention_replicas(layout, deployment.architecture) > 1 or layout.all2all_backend not in (None, "none")
    grain = layout.tp if gathers else 1
    grain *= layout.pcp if grain % layout.pcp else 1
    most = -(-running // grain) * grain
    if largest > most:
        sizes.add(most)
    return tuple(sorted(size for size in sizes if 0 < size <= min(largest, most) and size % grain == 0))

"""Batch sizes for which vLLM captures a CUDA graph; a smaller decode batch is padded to the next of them.

Decision: derived like the engine derives them, because the default depends on two flags that a search varies.

Source: vLLM 0.32.0 and 0.33.0 `config/vllm.py` (_set_cudagraph_sizes). Not read: a `compilation_config` in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.engines.flags import whole_numbers
from partitune.hardware.gpus import Gpu

#: Largest size captured by default; data-centre Blackwell (compute capability 10) captures more.
_LARGEST, _LARGEST_BLACKWELL = 512, 1024


def capture_sizes(flags: Mapping[str, FlagValue], gpu: Gpu) -> tuple[int, ...]:
    """Sizes in ascending order, none in eager mode.

    Args:
        flags: effective flags; `max_num_seqs` and `max_num_batched_tokens` must be among them.
        gpu: what the engine starts on.

    Raises:
        SpecError: `cudagraph_capture_sizes` is not a list of whole numbers.
    """
    seqs, tokens = int(flags["max_num_seqs"]), int(flags["max_num_batched_tokens"])
    if flags.get("enforce_eager"):
        return ()
    if given := whole_numbers(flags, "cudagraph_capture_sizes"):
        return tuple(sorted({size for size in given if size <= tokens}))
    limit = flags.get("max_cudagraph_capture_size")
    default = _LARGEST_BLACKWELL if gpu.generation.value.data_centre_blackwell else _LARGEST
    largest = min(2 * seqs, default) if limit is None else int(limit)
    sizes = {seqs} if limit is None and seqs <= largest else set()
    largest = min(tokens, largest)
    fine = range(1, min(largest, 32) + 1) if flags.get("performance_mode") == "interactivity" else (1, 2, 4)
    sizes.update(size for size in fine if size <= largest)
    sizes.update(range(8, min(largest + 1, 256), 8))
    sizes.update(range(256, largest + 1, 16))
    if tokens <= largest:
        sizes.add(tokens)
    return tuple(sorted(size for size in sizes if size <= tokens))

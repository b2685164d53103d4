"""Time of the collectives inside a tensor-parallel group.

Decision: two modes, because they differ by four times for small messages: a step of decodes only runs inside a CUDA
graph (5-8 us an all-reduce), a step with prompt tokens does not (20 us, mostly host). Groups of 2, 4 and 8 are
measured; another size takes the next larger one (vLLM custom all-reduce tables and nccl-tests all_gather of
aiconfigurator-core 0.12.0, see fitted.py).
"""

from __future__ import annotations

from partitune.costs.fitted import Origin, curve
from partitune.costs.kernels import Curve
from partitune.costs.measured.operations import Kernels
from partitune.hardware.gpus import Gpu

_MEASURED_SIZES = (2, 4, 8)


class TensorParallelGroup:
    """Collectives of `tp` GPUs of one kind on one node. With tp 1 everything is free."""

    __slots__ = ("_eager", "_gather", "_graph", "_measured", "_nccl", "_width", "origins", "tp")

    def __init__(self, gpu: Gpu, tp: int, kernels: Kernels | None = None, *, nccl: bool = False) -> None:
        """`nccl`: all-reduces without the engines' own kernel, as a reduce-scatter and an all-gather (assumed)."""
        self.tp, self._nccl = tp, nccl
        self._width = 4096  # of the message that was asked for; only bytes matter
        self._measured = kernels.all_reduce(self._width, tp) if kernels and tp > 1 and not nccl else None
        self.origins: tuple[Origin, ...] = ()
        free = Curve(0.0, 0.0, 0.0, 1.0)
        self._graph = self._eager = self._gather = free
        if tp > 1:
            size = next((n for n in _MEASURED_SIZES if n >= tp), _MEASURED_SIZES[-1])
            self._graph, first = curve(f"all_reduce/graph/{size}", gpu)
            self._eager, second = curve(f"all_reduce/eager/{size}", gpu)
            self._gather, third = curve(f"all_gather/{size}", gpu)
            self.origins = (first, second, third)

    def all_reduce_s(self, message_bytes: float, *, graph: bool) -> float:
        """Seconds of one all-reduce of `message_bytes` (the whole tensor)."""
        if self._nccl:
            return 2 * self.all_gather_s(message_bytes)
        if graph and self._measured:
            return self._measured(message_bytes / (2 * self._width))
        return (self._graph if graph else self._eager)(message_bytes, 0.0)

    @property
    def measured_in_graph(self) -> bool:
        """True when the all-reduce inside a CUDA graph is read from a table."""
        return self._measured is not None

    def all_gather_s(self, message_bytes: float) -> float:
        """Seconds of one all-gather whose result is `message_bytes` on every rank."""
        return self._gather(message_bytes, 0.0)

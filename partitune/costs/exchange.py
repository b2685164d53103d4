"""Time that tokens take to reach their experts and to come back, beside the all-reduce of a plain tensor group.

Decision: both kinds of exchange (`cluster.layout.Exchange`) are bytes over the links they cross, with measured
all-gathers inside a node, because no table holds an expert group of every size on every network. Gathering moves every
token to every rank; routing moves a token to the ranks of the experts it chose, `ranks * (1 - (1 - 1/ranks)^k)` on
average. Data ranks step together, so all of them are taken to have as many tokens as the one that is asked about.
"""

from __future__ import annotations

from partitune.costs.collectives import TensorParallelGroup
from partitune.costs.kernels import distinct_experts
from partitune.hardware.gpus import Gpu
from partitune.hardware.links import link_in_node
from partitune.hardware.parallelism import Exchange
from partitune.hardware.placement import Placement


class ExpertExchange:
    """The exchange of one kind of expert block between the ranks of a stage."""

    __slots__ = ("_crossing", "_gather", "_layout", "_link", "_near", "_rank_gather", "_token_bytes", "_visits")

    def __init__(self, placement: Placement, gpu: Gpu, width: int, dtype_bytes: int, per_token: int) -> None:
        """`width` is what a token measures on its way to the experts, `per_token` how many it visits."""
        layout, nodes = placement.layout, placement.expert_nodes
        self._layout, self._token_bytes = layout, float(width * dtype_bytes)
        self._visits = distinct_experts(layout.expert_ranks, 1, per_token)
        self._rank_gather = TensorParallelGroup(gpu, layout.tp)
        ranks = layout.stage_gpus if layout.sequence_parallel_moe else layout.dp * layout.pcp
        near = max(1, ranks // nodes)
        self._gather = TensorParallelGroup(gpu, near)
        self._near = link_in_node(gpu)
        self._link = placement.expert_link
        #: Share of what a rank receives that comes from other nodes, and the ranks that bring it in side by side.
        self._crossing = (1 - 1 / nodes, near)

    def all_reduces(self) -> bool:
        """True where partial sums of the tensor ranks are still to be all-reduced afterwards."""
        return self._layout.exchange is not Exchange.ROUTED and not self._layout.sequence_parallel_moe

    def __call__(self, tokens: int) -> float:
        """Seconds to dispatch and combine `tokens` tokens of this rank, those of its peers alike."""
        layout = self._layout
        if layout.exchange is Exchange.REDUCE:
            return 0.0
        once = self._gathered_s(tokens) if layout.exchange is Exchange.GATHER else self._routed_s(tokens)
        # Cut over the tensor ranks before, the tokens are put together again at the end.
        whole = self._rank_gather.all_gather_s(tokens * self._token_bytes) if layout.sequence_parallel_moe else 0.0
        return 2 * once + whole

    def _gathered_s(self, tokens: int) -> float:
        """One all-gather of the tokens of all data ranks; scattering their sums takes as long."""
        message = tokens * self._token_bytes * self._layout.dp * self._layout.pcp
        share, near = self._crossing
        seconds = self._gather.all_gather_s(message)
        return seconds + (self._link.transfer_s(message * share / near) if self._link else 0.0)

    def _routed_s(self, tokens: int) -> float:
        """One all-to-all: every rank sends its tokens to the ranks of their experts."""
        own = tokens / self._layout.tp if self._layout.sequence_parallel_moe else float(tokens)
        sent = own * self._visits * self._token_bytes
        share, _ = self._crossing
        seconds = self._near.transfer_s(sent * (1 - share))
        return seconds + (self._link.transfer_s(sent * share) if self._link else 0.0)

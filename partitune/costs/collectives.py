"""What the ranks of a stage tell one another: sums, tokens on their way to experts, shares of a context.

Decision: all of it is bytes over the links they cross, with measured all-reduces and all-gathers inside a node, because
no table holds a group of every size on every network. An all-reduce has two modes, which differ by four times for small
messages: a step of decodes only runs inside a CUDA graph (5-8 us), a step with prompt tokens does not (20 us, mostly
host). Groups of 2, 4 and 8 are measured; another size takes the next larger one (vLLM custom all-reduce tables and
nccl-tests all_gather of aiconfigurator-core 0.12.0, see fitted.py). Where a stage stands on several nodes an all-reduce
is hierarchical, as NCCL's: reduce-scatter inside the node, every rank's slice around the nodes, all-gather inside; the
engines' own kernel does not leave a node (vLLM 0.33 `custom_all_reduce.py`), and no table of it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partitune.costs.cost_model import Batch, Seconds
from partitune.costs.fitted import Curve, Origin, curve, distinct_experts
from partitune.costs.measured.operations import Kernels
from partitune.hardware.gpus import Gpu
from partitune.hardware.links import Link, link_in_node
from partitune.hardware.parallelism import Exchange, Layout
from partitune.hardware.placement import Placement
from partitune.models.architecture import STATE_KINDS, Attention, AttentionBlock

_MEASURED_SIZES = (2, 4, 8)
#: Widths of a query against the compressed cache of latent attention and of what comes back (published MLA models).
_LATENT_WIDTHS = 576 + 512


class TensorParallelGroup:
    """Collectives of `tp` GPUs of one kind on one node, or on `nodes` whole ones. With tp 1 everything is free."""

    def __init__(
        self,
        gpu: Gpu,
        tp: int,
        kernels: Kernels | None = None,
        *,
        nccl: bool = False,
        nodes: int = 1,
        link: Link | None = None,
    ) -> None:
        """`nccl`: all-reduces without the engines' own kernel, as a reduce-scatter and an all-gather (assumed).

        `link` joins the `nodes` that the group stands on, each with as many of its ranks.
        """
        self._nccl = nccl
        self._nodes, self._link, tp = nodes, link, tp // nodes
        self._near_ranks = tp
        self._width = 4096  # of the message that was asked for; only bytes matter
        self._measured = kernels.all_reduce(self._width, tp) if kernels and tp > 1 and not nccl and not link else None
        size = next((n for n in _MEASURED_SIZES if n >= tp), _MEASURED_SIZES[-1])
        operations = (f"all_reduce/graph/{size}", f"all_reduce/eager/{size}", f"all_gather/{size}") if tp > 1 else ()
        curves = [curve(operation, gpu) for operation in operations]
        self._graph, self._eager, self._gather = [each for each, _ in curves] or [Curve(0.0, 0.0, 0.0, 1.0)] * 3
        self.origins: tuple[Origin, ...] = tuple(origin for _, origin in curves)

    def all_reduce(self, message_bytes: float, *, graph: bool) -> Seconds:
        """One all-reduce of `message_bytes` (the whole tensor), inside a CUDA graph or not."""
        if self._link is not None:
            # One NCCL kernel does all of it; the latency of a link, a measured send and receive, has its start in it.
            inside_s = 2 * self._gather.variable_s(message_bytes, 0.0)
            return Seconds(0.0, inside_s + 2 * self._crossing_s(message_bytes))
        if self._nccl:
            return Seconds(0.0, 2 * self.all_gather_s(message_bytes))
        if graph and self._measured:
            return Seconds(self._measured(message_bytes / (2 * self._width)), 0.0)
        return Seconds(0.0, (self._graph if graph else self._eager)(message_bytes, 0.0))

    def all_gather_s(self, message_bytes: float) -> float:
        """Seconds of one all-gather whose result is `message_bytes` on every rank."""
        return self._gather(message_bytes, 0.0) + self._crossing_s(message_bytes)

    def _crossing_s(self, message_bytes: float) -> float:
        """Seconds that the slices of a node's ranks take around the other nodes, each over a NIC of its own."""
        if self._link is None:
            return 0.0
        slice_bytes = message_bytes / self._near_ranks / self._nodes
        return (self._nodes - 1) * self._link.transfer_s(slice_bytes)


class ExpertExchange:
    """Time that tokens take to reach the experts of one kind of block and to come back.

    Gathering moves every token to every rank; routing moves a token to the ranks of the experts it chose, `ranks *
    (1 - (1 - 1/ranks)^k)` on average. Data ranks step together, so all of them are taken to have as many tokens as the
    one that is asked about.
    """

    def __init__(self, placement: Placement, gpu: Gpu, token_bytes: float, per_token: int) -> None:
        """`token_bytes` is what a token measures on its way to the experts, `per_token` how many it visits."""
        layout, nodes = placement.layout, placement.expert_nodes
        self._layout, self._token_bytes = layout, token_bytes
        self._visits = distinct_experts(layout.expert_ranks, 1, per_token)
        self._rank_gather = TensorParallelGroup(
            gpu, layout.tp, nodes=placement.tensor_nodes, link=placement.tensor_link
        )
        ranks = layout.stage_gpus if layout.sequence_parallel_moe else layout.dp * layout.pcp
        self._near_ranks = max(1, ranks // nodes)
        self._gather = TensorParallelGroup(gpu, self._near_ranks)
        self._near, self._far = link_in_node(gpu), placement.expert_link
        self._far_share = 1 - 1 / nodes  # of what a rank receives
        #: Whether partial sums of the tensor ranks are still to be all-reduced afterwards.
        self.all_reduces = layout.exchange is not Exchange.ROUTED and not layout.sequence_parallel_moe

    def __call__(self, tokens: int) -> float:
        """Seconds to dispatch and combine `tokens` tokens of this rank, those of its peers alike."""
        layout = self._layout
        if layout.exchange is Exchange.REDUCE:
            return 0.0
        if layout.exchange is Exchange.GATHER:
            # One all-gather of the tokens of all data ranks; scattering their sums takes as long.
            message = tokens * self._token_bytes * layout.dp * layout.pcp
            once, far_bytes = self._gather.all_gather_s(message), message * self._far_share / self._near_ranks
        else:
            # One all-to-all: every rank sends its tokens to the ranks of their experts.
            own = tokens / layout.tp if layout.sequence_parallel_moe else float(tokens)
            sent = own * self._visits * self._token_bytes
            once, far_bytes = self._near.transfer_s(sent * (1 - self._far_share)), sent * self._far_share
        once += self._far.transfer_s(far_bytes) if self._far else 0.0
        # Cut over the tensor ranks before, the tokens are put together again at the end.
        whole = self._rank_gather.all_gather_s(tokens * self._token_bytes) if layout.sequence_parallel_moe else 0.0
        return 2 * once + whole


class ContextRanks:
    """What prefill and decode context parallelism change in a batch of one rank, and what its ranks tell one another.

    Prefill context ranks each compute their part of every prompt chunk and, where the cache is whole on each of them,
    their part of the decodes (vLLM 0.32 `config/parallel.py`, pcp_shard_decode_requests), so a rank sees a smaller
    batch and the blocks need not know. Keys and values of a chunk are gathered by all of them; ranks that share a
    dealt-out cache gather the queries of a decode and scatter what they found (`dcp_comm_backend` ag_rs).
    """

    def __init__(self, gpu: Gpu, layout: Layout, attention: Sequence[AttentionBlock]) -> None:
        self._layout = layout
        self._prefill, self._decode = TensorParallelGroup(gpu, layout.pcp), TensorParallelGroup(gpu, layout.dcp)
        self._kv_bytes = [block.kv_bytes_per_token_rank(layout.tp) for block in attention]
        self._query_bytes = [_query_bytes(block) * layout.dcp / layout.tp for block in attention]

    def share_of(self, batch: Batch) -> Batch:
        """What of `batch` one rank computes."""
        ranks = self._layout.pcp
        if ranks == 1:
            return batch
        share = replace(
            batch, prefill_tokens=-(-batch.prefill_tokens // ranks), prefill_pairs=batch.prefill_pairs / ranks
        )
        if self._layout.dcp > 1:
            return share
        return replace(
            share,
            decode_tokens=-(-batch.decode_tokens // ranks),
            decode_context=-(-batch.decode_context // ranks),
            padding=-(-batch.padding // ranks),
        )

    def gathering_s(self, batch: Batch) -> list[float]:
        """Seconds per attention block that the ranks of a whole `batch` spend on telling one another."""
        if self._layout.pcp == self._layout.dcp == 1:
            return [0.0] * len(self._kv_bytes)
        seconds = []
        for kv_bytes, query_bytes in zip(self._kv_bytes, self._query_bytes, strict=True):
            told = self._prefill.all_gather_s(batch.prefill_tokens * kv_bytes) if batch.prefill_tokens else 0.0
            if batch.decode_tokens and query_bytes and self._layout.dcp > 1:
                told += 2 * self._decode.all_gather_s(batch.decode_tokens * query_bytes / 2)
            seconds.append(told)
        return seconds


def _query_bytes(block: AttentionBlock) -> float:
    """Bytes of all heads' queries of one token and of what comes back; 0 where the cache is not dealt out."""
    if block.kind in STATE_KINDS or block.kind is Attention.NONE:
        return 0.0
    latent = block.shards == 1 and block.kind in (Attention.MLA, Attention.SPARSE)
    widths = _LATENT_WIDTHS if latent else block.flops_per_pair / (2 * block.heads)  # 4 FLOPs a head and width
    return 2.0 * block.heads * widths

"""How vLLM's own torch traces are spelled.

Decision: the time in a file's name is 0, so that a simulated set is the same every time and is told from a real one.

Source: vLLM 0.33.0 `v1/worker/gpu_worker.py` (annotate_profile), `distributed/utils.py` (get_worker_rank_suffix:
without experts there is no group of them, and only the rank is named), `v1/executor/multiproc_executor.py`
(setup_proc_title_and_log_prefix), `profiler/wrapper.py`; PyTorch's tensorboard_trace_handler.
"""

from __future__ import annotations

from partitune.simulation.timeline import TracedBatch
from partitune.simulation.trace_names import Rank, TraceNames


class VllmTraceNames(TraceNames):
    """Names of vLLM 0.33.0."""

    empty = "execute_context_0(0)_generation_0(0)"

    def step(self, batch: TracedBatch) -> str:
        """Requests and, in brackets, tokens: of prompts, then of decodes."""
        return f"execute_context_{batch.prompts}({batch.prompt_tokens})_generation_{batch.decodes}({batch.decodes})"

    def worker(self, rank: Rank) -> str:
        """Every dimension of more than one rank."""
        layout = rank.layout
        ranks = {"DP": (layout.dp, 0), "PP": (layout.pp, rank.stage), "TP": (layout.tp, rank.tensor)}
        shown = [f"_{name}{number}" for name, (size, number) in ranks.items() if size > 1]
        experts = f"_EP{rank.tensor}" if layout.expert_ranks > 1 else ""
        return f"VLLM::Worker{''.join(shown)}{experts}"

    def file(self, rank: Rank) -> str:
        """`dp0_pp1_tp0_dcp0_ep0_rank1.0.pt.trace.json.gz`."""
        number = rank.layout.tp * rank.stage + rank.tensor
        dims = f"dp0_pp{rank.stage}_tp{rank.tensor}_dcp{rank.tensor % rank.layout.dcp}_ep{rank.tensor}_"
        return f"{dims if rank.has_experts else ''}rank{number}.0.pt.trace.json.gz"

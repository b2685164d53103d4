"""How SGLang's own torch traces are spelled.

Decision: the profile's name is `simulated` where a real one has the time it was started at. A slot without a batch runs
nothing, so there is no step without tokens.

Source: SGLang 0.5.23 `srt/utils/profile_utils.py` (build_step_span_name),
`srt/managers/scheduler_components/profiler_manager.py` (file names), `srt/managers/scheduler.py` (the process's title).
"""

from __future__ import annotations

from partitune.simulation.timeline import TracedBatch
from partitune.simulation.trace_names import Rank, TraceNames


class SglangTraceNames(TraceNames):
    """Names of SGLang 0.5.23."""

    beside = "slots"
    about_beside = "micro-batches for life: from the decision on stage 0 until the tokens are back there"

    def step(self, batch: TracedBatch) -> str:
        """Mode, requests, and of prompts alone their tokens."""
        if not batch.prompts:
            return f"step[DECODE bs={batch.decodes}]"
        if batch.decodes:
            return f"step[MIXED bs={batch.prompts + batch.decodes}]"
        return f"step[EXTEND bs={batch.prompts} toks={batch.prompt_tokens}]"

    def worker(self, rank: Rank) -> str:
        """Every dimension of more than one rank."""
        layout = rank.layout
        ranks = {"DP": (layout.dp, 0), "PP": (layout.pp, rank.stage), "TP": (layout.tp, rank.tensor)}
        return "sglang::scheduler" + "".join(f"_{name}{number}" for name, (size, number) in ranks.items() if size > 1)

    def file(self, rank: Rank) -> str:
        """`simulated-TP-0-PP-1.trace.json.gz`."""
        parts = [f"simulated-TP-{rank.tensor}"]
        if rank.layout.dp > 1:
            parts.append("DP-0")
        if rank.layout.pp > 1:
            parts.append(f"PP-{rank.stage}")
        if rank.layout.expert_ranks > 1:
            parts.append(f"EP-{rank.tensor}")
        return "-".join(parts) + ".trace.json.gz"

"""How one deployment is spread over GPUs: the sizes of every kind of parallelism, and what moves between them.

Decision: one value holds all of it, because the sizes only mean something together: experts are spread over the tensor,
context and data ranks of a stage, decode context parallelism reuses tensor ranks, and the number of GPUs is a product.
Sizes are neutral: `tp` is the ranks that share one request's attention, whatever an engine counts under that name.
What an engine derives from the sizes (how routed tokens travel, whether they are cut over tensor ranks) stands here
too, written by the engine's rules, so that time and memory ask no engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from partitune.errors import SpecError


class Exchange(StrEnum):
    """How tokens reach their experts and come back."""

    REDUCE = "reduce"  # every rank of the stage has every token; partial sums are all-reduced
    GATHER = "gather"  # every rank gathers the tokens of all data ranks; partial sums are reduce-scattered
    ROUTED = "routed"  # a token goes to the ranks of the experts it chose, and its results come back


class RankOrder(StrEnum):
    """Which size counts slowest when ranks are numbered; tensor ranks always count fastest."""

    REPLICAS_OUTSIDE = "replicas outside"  # data, pipeline, context, tensor: vLLM distributed/parallel_state.py
    REPLICAS_INSIDE = "replicas inside"  # pipeline, data, context, tensor: SGLang with attention data parallelism


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of one deployment; all 1 is one GPU."""

    tp: int = 1  # tensor ranks of a stage: they share the heads of one request
    pp: int = 1  # pipeline stages
    dp: int = 1  # data ranks: each with requests, attention weights and KV of its own
    pcp: int = 1  # prefill context ranks: each computes a part of every prompt chunk
    dcp: int = 1  # tensor (and context) ranks over which the tokens of the KV cache are dealt out
    expert_ranks: int = 1  # ranks with whole experts of their own; 1: every expert is cut over all ranks of the stage
    all2all_backend: str | None = None  # the engine's name for it; None: its default
    all_reduce_backend: str | None = None  # custom or nccl; None: the engine's default
    expert_imbalance: float = 1.0  # tokens of the busiest expert rank over the mean
    exchange: Exchange = Exchange.REDUCE
    sequence_parallel_moe: bool = False  # tokens are cut over the tensor ranks before they go to the experts
    #: Further experts that every rank has room for beside all experts of a layer; None: each rank holds its own only.
    balancing_slots: int | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.pp * self.stage_gpus

    @property
    def stage_gpus(self) -> int:
        """GPUs of one stage, all replicas together: the experts of a layer are spread over them."""
        return self.tp * self.pcp * self.dp

    @property
    def expert_cut(self) -> int:
        """Ranks over which one expert is cut."""
        return self.stage_gpus // self.expert_ranks

    @property
    def name(self) -> str:
        """`tp2-pp8`, `tp4-pp2-dp2-ep8-dcp4`: sizes of 1 are left out, except tp and pp."""
        sizes = (("dp", self.dp), ("pcp", self.pcp), ("ep", self.expert_ranks), ("dcp", self.dcp))
        words = [f"tp{self.tp}", f"pp{self.pp}", *(f"{key}{size}" for key, size in sizes if size > 1)]
        words += [backend for backend in (self.all2all_backend, self.all_reduce_backend) if backend]
        return "-".join(words)


_SIZE = re.compile(r"(tp|pp|dp|pcp|ep|dcp)([1-9][0-9]{0,3})", re.ASCII)
_ALL_REDUCE = ("custom", "nccl")


def layout_named(name: str, like: Layout) -> Layout:
    """The layout whose `name` this is, with the imbalance of `like`, which a name does not tell.

    Raises:
        SpecError: not the name of a layout.
    """
    sizes: dict[str, Any] = {}
    for word in name.split("-"):
        if size := _SIZE.fullmatch(word):
            sizes["expert_ranks" if size[1] == "ep" else size[1]] = int(size[2])
        elif "tp" in sizes and re.fullmatch("[a-z][a-z0-9_]*", word):
            sizes["all_reduce_backend" if word in _ALL_REDUCE else "all2all_backend"] = word
        else:
            sizes.clear()
            break
    if not {"tp", "pp"} <= sizes.keys():
        raise SpecError(f"layout: {name!r} is not one; allowed: sizes such as tp2-pp8 or tp4-pp2-dp2-ep8")
    return Layout(**sizes, expert_imbalance=like.expert_imbalance)

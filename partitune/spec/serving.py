"""Where and how the model is served: the cluster, the engine and what is fixed about it, the parallel sizes.

Decision: what differs from stage to stage (GPU type, memory taken by others) is a list in stage order, because stages
are what a partition talks about, or in the order of the cluster's GPUs, which any layout can be cut from; everything
the engine has only one of (TP size) is one value, and a list is refused with the reason. Sizes of 1 change nothing, so
a file names only the kinds of parallelism it uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag

from partitune.spec.domains import MAX_STAGES, ExportedName, ExportedValue, FlagValues
from partitune.spec.yaml.faults import describe
from partitune.spec.yaml.strict_model import StrictModel, allowed, number, whole, wrong

T = TypeVar("T")

_VERSION = r"[0-9]+(\.[0-9]+){1,3}((a|b|rc|\.dev|\.post)[0-9]*)*(\+[a-z0-9.]+)?"
_WORD = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
Word = Annotated[str, Field(pattern=_WORD)]
GpuName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,79}$")]
ReservedGib = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]


def _how_many(value: object) -> str:
    return "per_stage" if isinstance(value, list | tuple) else "all"


def _one_size(value: object) -> object:
    if isinstance(value, list | tuple | Mapping):
        raise wrong(
            "found a size per stage; allowed: one whole number for all stages, as engines have no tensor-parallel "
            "size per stage (give unequal stages unequal layers instead)"
        )
    return value


def _version(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(_VERSION, value, re.ASCII):
        raise wrong(f'found the text {value[:60]!r}; allowed: a released version such as "0.33.0"')
    return value


OneOrPerStage = Annotated[
    Annotated[T, Tag("all")]
    | Annotated[tuple[T, ...], Field(strict=False, min_length=1, max_length=MAX_STAGES), Tag("per_stage")],
    Discriminator(_how_many),
]


class Links(StrictModel):
    """Names of the connections; what is left out follows from the GPU type."""

    in_node: Annotated[Word | None, allowed("the name of a link, such as nvlink5")] = None
    between_nodes: Annotated[Word | None, allowed("the name of a link, such as infiniband-400g")] = None


class OwnGpu(StrictModel):
    """A GPU that no table knows. What is left out comes from the known GPU it is `like`."""

    name: Annotated[Word, allowed("what to call it: no name of a known GPU")]
    like: Annotated[GpuName | None, allowed("a known GPU such as L40S, whose kernels and missing figures it takes")] = (
        None
    )
    memory_gib: Annotated[float | None, number(0, 1e5, "GiB that a process on it sees", above=True)] = None
    bandwidth_gb_s: Annotated[float | None, number(0, 1e6, "GB/s of its memory", above=True)] = None
    bf16_tflops: Annotated[float | None, number(0, 1e6, "dense, 32-bit accumulation", above=True)] = None
    fp8_tflops: Annotated[float | None, number(0, 1e6, "dense; as `like` has it beside bf16", above=True)] = None
    fp4_tflops: Annotated[float | None, number(0, 1e6, "dense; as `like` has it beside fp8", above=True)] = None


def _named_or_own(value: object) -> str:
    return "own" if isinstance(value, dict | OwnGpu) else "name"


GpuOfFile = Annotated[Annotated[GpuName, Tag("name")] | Annotated[OwnGpu, Tag("own")], Discriminator(_named_or_own)]


class Cluster(StrictModel):
    """The machines of one replica."""

    nodes: Annotated[int, whole(1, 4096, "machines")]
    gpus_per_node: Annotated[int, whole(1, 1024, "GPUs of a machine")]
    gpu: Annotated[
        OneOrPerStage[GpuOfFile],
        allowed(
            "a GPU type such as H200, a mapping with name, memory_gib, bandwidth_gb_s, bf16_tflops, like (one of your "
            "own), or a list with the type of every stage"
        ),
    ]
    reserved_gib: Annotated[
        OneOrPerStage[ReservedGib],
        allowed("GiB of each GPU that others use, 0 to 10000, or a list with one number a stage"),
    ] = 0.0
    links: Annotated[Links, allowed("a mapping with in_node, between_nodes")] = Links()
    gpu_hour_price_usd: Annotated[float | None, number(0, 1e6, "price of one GPU for an hour", above=True)] = None
    gpu_power_w: Annotated[float | None, number(0, 1e5, "mean power of one GPU under load", above=True)] = None


class Engine(StrictModel):
    """The engine, and the flags and variables it is started with; its own defaults hold for the rest.

    A flag that also varies has its starting value here: the one of the baseline and of the seeds.
    """

    name: Annotated[Word, allowed("the name of an engine, such as vllm")] = "vllm"
    version: Annotated[
        str | None,
        BeforeValidator(_version),
        allowed('a released version in quotes, such as "0.33.0"; if left out, the newest whose rules were read'),
    ] = None
    runner: Annotated[
        Literal["auto", "v1", "v2"], allowed("auto (what this version takes by itself), v1 or v2 (vLLM's model runner)")
    ] = "auto"
    split_rule: Annotated[Word | None, allowed("the name of a default split; the engine's own if left out")] = None
    flags: Annotated[
        FlagValues, allowed("a mapping of engine flags in snake_case to values, such as {max_num_seqs: 128}")
    ] = Field(default_factory=dict)
    env: Annotated[
        dict[ExportedName, ExportedValue],
        allowed(
            "a mapping of environment variables to texts of letters, digits and _.,:/+-, such as {NCCL_DEBUG: WARN}"
        ),
    ] = Field(default_factory=dict)


def _spread(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, int) and 2 <= value <= 4096):
        return value
    raise wrong(
        f"found {describe(value)}; allowed: true (whole experts on every GPU of a stage), false (every expert cut over "
        "them) or a whole number from 2 to 4096 (GPUs with experts of their own; SGLang)"
    )


class _Spread(StrictModel):
    """What a deployment has beside stages and tensor ranks; `expert_imbalance` is an input of the cost model."""

    dp: Annotated[int, whole(1, 1024, "data ranks, each with requests, attention weights and KV of its own")] = 1
    expert_parallel: Annotated[bool | int, BeforeValidator(_spread), allowed("true, false or a number of GPUs")] = False
    pcp: Annotated[int, whole(1, 1024, "GPUs that share the tokens of a prompt")] = 1
    dcp: Annotated[int, whole(1, 1024, "tensor ranks that share the tokens of the KV cache")] = 1
    all2all_backend: Annotated[Word | None, allowed("the engine's name of a back end, such as deepep_low_latency")] = (
        None
    )
    all_reduce_backend: Annotated[Literal["custom", "nccl"] | None, allowed("custom or nccl")] = None
    expert_imbalance: Annotated[float, number(1, 4096, "tokens of the busiest expert GPU over the mean")] = 1.0


class Sizes(_Spread):
    """How one deployment is spread over the GPUs."""

    tp: Annotated[int, BeforeValidator(_one_size), whole(1, 1024, "GPUs of a stage")]
    pp: Annotated[int, whole(1, MAX_STAGES, "pipeline stages")]

    @property
    def gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.tp * self.pp * self.dp * self.pcp

    @property
    def expert_ranks(self) -> int:
        """GPUs with experts of their own; 1: every expert is cut over all GPUs of a stage."""
        if isinstance(self.expert_parallel, bool):
            return self.tp * self.dp * self.pcp if self.expert_parallel else 1
        return self.expert_parallel


def _which_layouts(value: object) -> str | None:
    if value is None:
        return "none"
    return "auto" if isinstance(value, str) else "list" if isinstance(value, list | tuple) else None


class Parallel(_Spread):
    """Where a search starts, and which other layouts it may try with a partition for each.

    Where layouts vary, tp and pp may be left out: the search then starts from the first that is listed, or with `auto`
    from the one that people start with (tp of a node, pp of the nodes) where it can be used, else the fastest.
    """

    tp: Annotated[
        int | None, BeforeValidator(_one_size), whole(1, 1024, "GPUs of a stage; with layouts, it may be left out")
    ] = None
    pp: Annotated[int | None, whole(1, MAX_STAGES, "pipeline stages; with layouts, it may be left out")] = None
    layouts: Annotated[
        Annotated[Literal["auto"], Tag("auto")]
        | Annotated[tuple[Sizes, ...], Field(strict=False, min_length=1, max_length=200), Tag("list")]
        | Annotated[None, Tag("none")],
        Discriminator(_which_layouts),
        allowed(
            "auto (all that the model, the engine and the GPUs admit) or a list of mappings with tp, pp and others"
        ),
    ] = None

    @property
    def start(self) -> Sizes | None:
        """The sizes that a search starts with; None: with `layouts: auto`, whatever can be used."""
        if self.tp is not None and self.pp is not None:
            names = [*_Spread.model_fields, "tp", "pp"]
            return Sizes.model_construct(**{name: getattr(self, name) for name in names})
        return self.layouts[0] if isinstance(self.layouts, tuple) else None

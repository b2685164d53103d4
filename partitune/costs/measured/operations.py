"""Which measured operation of aiconfigurator-core stands for which part of a layer.

Decision: the package's single operations are used, never its models, because its compositions charge four all-reduces
a DeepSeek layer instead of two, take a model's dense first layers for experts, and know no partition. The package is
optional: without it there are no tables, the fitted roofline answers, and the cost model says so.

Traps of aiconfigurator-core 0.12.0 that are met here: a release that is not listed is re-read as another one, so each
is named exactly; vLLM's block-scaled FP8 GEMMs, the convolution of a KDA prompt and sparse attention over a prompt were
timed outside CUDA graphs and contain the host's launches; KDA was measured with other releases than the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from partitune.costs.fitted import SYSTEMS
from partitune.costs.measured.grids import ContextMixer, Grid, StateMixer
from partitune.costs.measured.tables import Table, installed_release
from partitune.hardware.generations import Generation
from partitune.hardware.gpus import Gpu

#: Routing skew at which experts were measured: a power law, the package's own choice for traffic nobody has recorded.
_ROUTING = "power_law_1.01"
#: What tables call a number format of weights.
FORMATS = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4": "int4_wo"}
_KV, _FMHA = "KVCacheQuantMode.bfloat16", "FMHAQuantMode.bfloat16"
#: Seconds that a decode through the MLA block was measured too slow by, whatever its size: the collector ran norms
#: unfused, as no server does. B200 was measured again (the package's `collection_meta.yaml` says why); these are the
#: starts at 8, 16 and 128 heads over B200's, after the weights' reading at either bandwidth.
_UNFUSED_NORMS_S = {"h100_sxm": 45e-6, "h200_sxm": 43e-6, "gb200": 40e-6, "b300_sxm": 37e-6, "gb300": 37e-6}
_FLASHINFER_EXPERTS = frozenset({"w4a8_mxfp4_mxfp8"})
_ALL_REDUCE_RANKS = (2, 4, 8)
_EAGERLY_TIMED = frozenset({"causal_conv1d_fn_qkv3"})


class Measured(NamedTuple):
    """The tables of one engine: its folder, and the releases that were measured."""

    engine: str
    release: str
    release_ampere: str

    def on(self, gpu: Gpu) -> str:
        """The release that was measured on `gpu`."""
        return self.release_ampere if gpu.generation is Generation.AMPERE else self.release


#: SGLang timed block-scaled FP8 GEMMs inside a CUDA graph, and both engines run DeepGEMM; it alone timed FlashInfer's
#: MXFP4 experts with MXFP8 activations, which vLLM can be told to use.
SGLANG_TABLES = Measured("sglang", "0.5.14", "0.5.10")


#: Kernels of a prompt and of a decode over gated delta-net states, the same in both engines.
GDN_KERNELS = (
    ("causal_conv1d_fn", "chunk_gated_delta_rule"),
    ("causal_conv1d_update", "fused_sigmoid_gating_delta_rule_update"),
)


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """What was measured of an engine, and under which names; the engine hands it in."""

    tables: Measured
    #: Operation -> its kernels of a prompt and of a decode, whose times are summed.
    state_kernels: tuple[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]], ...]
    whole_latent_block: bool  # MLA with its projections; otherwise its kernels alone


@cache
def kernels_on(gpu: Gpu, engine: MeasuredEngine) -> Kernels | None:
    """What was measured of `engine` on `gpu`; None where nothing was, or the package is not installed."""
    system = SYSTEMS.get(gpu.name)
    return None if system is None or installed_release() is None else Kernels(system, gpu, engine)


class Kernels:
    """Measured operations of one engine on one GPU: seconds of a TP rank, or None where the shape was not measured."""

    def __init__(self, system: str, gpu: Gpu, engine: MeasuredEngine) -> None:
        self.engine, tables = engine, engine.tables
        self._own = Table(system, tables.engine, tables.on(gpu))
        self._siblings = Table(system, tables.engine, tables.on(gpu), siblings=True)
        self._sglang = Table(system, SGLANG_TABLES.engine, SGLANG_TABLES.on(gpu))
        #: System, engine and release of the tables, as `source` lines name them.
        self.name = f"{system} {self._own.engine} {self._own.release}"

    def gemm(self, outputs: int, inputs: int, dtype: str) -> Grid | None:
        """One matrix: seconds by rows."""
        if dtype not in FORMATS:
            return None
        table = self._sglang if dtype == "fp8_block" else self._own
        return table.by_rows("GEMM", outputs, inputs, _gemm(dtype))

    def experts(
        self, width: int, inner: int, experts: int, per_token: int, *, tp: int, ep: int, dtype: str, gated: bool
    ) -> Grid | None:
        """Routed experts of a rank, without router and communication: seconds by tokens of the whole group."""
        shape = (width, inner, per_token, experts, tp, ep, f"MoEQuantMode.{dtype}", _ROUTING, 1, True, gated)
        table = self._sglang if dtype in _FLASHINFER_EXPERTS else self._own
        return table.by_rows("MoE", *shape)

    def all_reduce(self, width: int, ranks: int) -> Grid | None:
        """The engine's own all-reduce inside a CUDA graph: seconds by tokens of `width` 16-bit values.

        Larger groups than the measured ones would be answered by a guess about the network between two nodes.
        """
        if ranks not in _ALL_REDUCE_RANKS:
            return None
        return self._own.by_rows("CustomAllReduce", width, ranks)

    def grouped_query(self, heads: int, kv_heads: int, width: int, window: int | None) -> ContextMixer | None:
        """Attention kernels over grouped heads, without the projections."""
        prompts = self._own.prompts("ContextAttention", heads, kv_heads, _KV, _FMHA, window or 0, width)
        decodes = self._own.decodes("GenerationAttention", heads, kv_heads, _KV, window or 0, width)
        return ContextMixer.of(prompts, decodes)

    def latent(self, heads: int, dtype: str, all_heads: int) -> ContextMixer | None:
        """MLA of DeepSeek-V3's widths: the whole block as vLLM runs it, or its kernels alone as SGLang does."""
        if not self.engine.whole_latent_block:
            prompts = self._own.prompts("ContextMLA", heads, _KV, _FMHA)
            return ContextMixer.of(prompts, self._own.decodes("GenerationMLA", heads, _KV))
        if dtype not in FORMATS:
            return None
        shape = heads, _KV, _FMHA, _gemm(dtype), all_heads
        prompts, decodes = self._own.prompts("MLAModule", True, *shape), self._own.decodes("MLAModule", False, *shape)
        decodes = decodes and decodes.less(_UNFUSED_NORMS_S.get(self._own.system, 0.0))
        return ContextMixer.of(prompts, decodes, whole_block=True)

    def sparse_module(self, heads: int, dtype: str, architecture: str) -> ContextMixer | None:
        """The whole DeepSeek sparse attention block, projections and indexer included."""
        if dtype not in FORMATS:
            return None
        prompts = self._own.prompts("ContextDSAModule", heads, _KV, _FMHA, _gemm(dtype), architecture, eager=True)
        decodes = self._own.decodes("GenerationDSAModule", heads, _KV, _gemm(dtype), architecture)
        return ContextMixer.of(prompts, decodes, whole_block=True)

    def state(self, operation: str, hidden: int, key_heads: int, value_heads: int, width: int) -> StateMixer | None:
        """State kernels (`KDAKernel`, `GDNKernel`) of heads of one `width`, convolutions 4 wide."""
        table = self._siblings if operation == "KDAKernel" else self._own
        shape = (hidden, key_heads, width, value_heads, width, 4)

        def all_of(names: tuple[str, ...], phase: str) -> Grid | None:
            prompts = phase == "context"
            return Grid.sum(
                table.by_rows(operation, name, phase, *shape, prompts=prompts, eager=name in _EAGERLY_TIMED)
                for name in names
            )

        names = dict(self.engine.state_kernels)[operation]
        prompts, decodes = all_of(names[0], "context"), all_of(names[1], "generation")
        return None if prompts is None or decodes is None else StateMixer(prompts, decodes)


def _gemm(dtype: str) -> str:
    return f"GEMMQuantMode.{FORMATS[dtype]}"

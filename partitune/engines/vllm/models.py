"""What vLLM makes of models by their class, and the kernels that were measured under it.

Decision: tables of the classes that it treats apart (copies of their ends, another default runner), read in the
source, because no flag tells and a third of a 24 GB card may hang on it (vllm issue 36861: Qwen3.5 runs on four
A10 with TP 4 and not with PP 4). Releases that were not read are taken to be like the one that was.

Source: vLLM 0.32.0 `model_executor/models/*.py` (`VocabParallelEmbedding` and `ParallelLMHead` outside `is_first_rank`
/ `is_last_rank`), `model_executor/models/interfaces.py` (_mark_tower_model; since 0.33 the V2 runner builds a tower on
the first stage only); PR 13833 for DeepSeek before 0.8; `config/vllm.py` for the default runner; aiconfigurator-core
0.12.0 for the releases and names of its tables, in which the fused decode of KDA holds the convolution and the norm.
"""

from __future__ import annotations

from partitune.costs.measured.operations import GDN_KERNELS, Measured, MeasuredEngine
from partitune.costs.memory import ReplicatedEmbeddings
from partitune.engines.architectures import Registry
from partitune.engines.known_times import KnownTimes, any_gpu, has_mxfp4_experts, is_data_centre_blackwell, is_kimi_k3
from partitune.engines.quantisations import QuantisationTable
from partitune.engines.versions import Version, VersionRange
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Architecture

_BOTH = frozenset({
    "DbrxForCausalLM", "GemmaForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM", "GptOssForCausalLM",
    "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM", "HYV3ForCausalLM", "JambaForCausalLM",
    "MiniCPMForCausalLM", "MixtralForCausalLM", "NemotronHForCausalLM", "OlmoHybridForCausalLM", "OlmoeForCausalLM",
    "PhiMoEForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM",
})  # fmt: skip
_EMBEDDING = frozenset({
    "Cohere2MoeForCausalLM", "CohereForCausalLM", "Gemma2ForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM",
    "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
})  # fmt: skip
_DEEPSEEK = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"})
_ONE_DEEPSEEK_HEAD = Version(0, 8)
_ONE_TOWER = Version(0, 33)

#: Its classes, and those with a pipeline (`SupportsPP`).
REGISTRY = Registry("vllm", "vLLM", "vLLM model_executor/models/registry.py")
QUANTISATIONS = QuantisationTable("vllm", "vLLM", "vLLM model_executor/layers/quantization/__init__.py")
#: On the V2 runner by default from 0.24 on.
V2_LISTED = frozenset({
    "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
})  # fmt: skip
#: From the oldest release of fidelity/data/whole_servers.csv to that of the kernel tables.
TIMED = VersionRange("vLLM", Version(0, 12), Version(0, 24))
#: Kernels of a prompt, and of a decode.
_KDA = (("causal_conv1d_fn_qkv3", "flashkda_fwd"), ("fused_kda_decode",))
MEASURED = MeasuredEngine(
    Measured("vllm", "0.24.0", "0.14.0"),
    (("KDAKernel", _KDA), ("GDNKernel", GDN_KERNELS)),
    whole_latent_block=True,
)


KNOWN_TIMES = (
    KnownTimes(
        Version(0, 27),
        None,
        has_mxfp4_experts,
        is_data_centre_blackwell,
        "experts are timed as Marlin, which vLLM 0.24 was measured with; vLLM from 0.27 on tries FlashInfer's kernel "
        "with 8-bit activations first (2.2 ms where Marlin takes 7.9: Kimi-K3, 2,048 tokens, TP2, B300), so that "
        "figures of moe_backend: auto are too slow, and those of flashinfer_trtllm_afp8 are its own "
        "[vLLM 0.27 to 0.33 layers/fused_moe/oracle/mxfp4.py]",
    ),
    KnownTimes(
        Version(0, 27),
        Version(0, 30),
        is_kimi_k3,
        any_gpu,
        "vLLM before 0.30 is known to be slower than is simulated here with Kimi-K3: first tokens of 8K prompts after "
        "2,263 ms under 0.27.1 and 376 under the main branch of 2026-09-13 [vLLM blog 2026-09-13]",
    ),
)


def expert_kernels(architecture: Architecture, gpu: Gpu) -> dict[str, str | None]:
    """Values of `moe_backend` of which there are times: for MXFP4 weights Marlin, and 8-bit activations on Blackwell.

    `layers/fused_moe/oracle/mxfp4.py`, map_mxfp4_backend. Of FlashInfer's kernel with 16-bit activations, which
    `flashinfer_trtllm` tries first, there are none.
    """
    kernels: dict[str, str | None] = {"auto": None}
    if has_mxfp4_experts(architecture):
        kernels["marlin"] = "w4a16_marlin"
        if is_data_centre_blackwell(gpu):
            kernels["flashinfer_trtllm_afp8"] = "w4a8_mxfp4_mxfp8"
    return kernels


def replicated_embeddings(architecture: Architecture, version: Version, *, v2: bool) -> ReplicatedEmbeddings:
    """What vLLM builds on every stage though one needs it.

    Args:
        architecture: the model, known by its class.
        version: the release.
        v2: whether it starts on the V2 model runner.
    """
    name = architecture.architecture
    both = name in _BOTH
    return ReplicatedEmbeddings(
        embedding=both or name in _EMBEDDING,
        head=both or (name in _DEEPSEEK and version < _ONE_DEEPSEEK_HEAD),
        tower=not (v2 and version >= _ONE_TOWER),
    )

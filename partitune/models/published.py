"""The models that ship with partitune: names, config files, and the size their makers publish.

Decision: the published parameter count is kept beside every config, with what it includes and where it was read, so
that a test can hold the readers to it; a reader that drifts from the makers' number by more than 2 % fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files


class Counts(StrEnum):
    """What a published parameter count includes."""

    TEXT = "text"
    DRAFTED = "text+drafter"
    SEEING = "text+vision"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One shipped model.

    Attributes:
        name: catalog name, lower case.
        repository: hub id, `moonshotai/Kimi-K3`.
        file: file in `configs/`.
        params: published parameters.
        counts: what they include.
        where: where the number was read.
        aliases: further names, matched without regard to case; the repository id is always one. One with a slash is
            a repository of the same architecture.
    """

    name: str
    repository: str
    file: str
    params: float
    counts: Counts
    where: str
    aliases: tuple[str, ...] = ()

    def config_text(self) -> str:
        """Its config.json as shipped, with `_source` and `_notes` beside the makers' keys."""
        return files("partitune.models").joinpath("configs", self.file).read_text(encoding="utf-8")

    def repository_called(self, name: str) -> str:
        """The repository of this architecture that `name` means: GLM-4.7 for `glm-4.7`, an alias of `glm-4.6`."""
        wanted = name.strip().lower()
        named = (a for a in self.aliases if "/" in a and wanted in (a.lower(), a.lower().rsplit("/", 1)[-1]))
        return next(named, self.repository)


def _model(
    repository: str, params: float, counts: Counts, where: str, *aliases: str, name: str | None = None
) -> CatalogModel:
    short = repository.split("/", 1)[1]
    file = f"{repository.replace('/', '--')}.json"
    return CatalogModel(name or short.lower(), repository, file, params, counts, where, (repository, short, *aliases))


_T, _D, _S = Counts.TEXT, Counts.DRAFTED, Counts.SEEING
_HUB = "Hugging Face safetensors count: {}"
MODELS: tuple[CatalogModel, ...] = (
    _model("moonshotai/Kimi-K3", 2.8e12, _T, "model card: 2.8T", "kimi_k3", "k3"),
    _model("moonshotai/Kimi-K2-Instruct", 1.04e12, _T, "technical report: 1.04T", name="kimi-k2"),
    _model("moonshotai/Kimi-K2.5", 1.04e12, _T, "model card: 1T, the backbone of Kimi-K2 (1.04T)"),
    _model(
        "moonshotai/Kimi-Linear-48B-A3B-Instruct", 49.1e9, _T, _HUB.format("49B; name: 48B"), name="kimi-linear-48b"
    ),
    _model("deepseek-ai/DeepSeek-V2", 236e9, _T, "model card: 236B"),
    _model("deepseek-ai/DeepSeek-V3", 671e9, _T, "README: 671B main model, 14B MTP", "deepseek-ai/DeepSeek-V3.1"),
    _model("deepseek-ai/DeepSeek-R1", 671e9, _T, "model card: 671B"),
    _model("deepseek-ai/DeepSeek-V3.2", 671e9, _T, "model card: 671B; safetensors count 685B with MTP"),
    _model("deepseek-ai/DeepSeek-V4-Flash", 284e9, _T, "model card: 284B"),
    _model("deepseek-ai/DeepSeek-V4-Pro", 1.6e12, _D, "model card: 1.6T"),
    _model("zai-org/GLM-4.5-Air", 106e9, _T, "model card: 106B; safetensors count 110B with MTP"),
    _model("zai-org/GLM-4.6", 357e9, _D, _HUB.format("357B"), "zai-org/GLM-4.7", "glm-4.7"),
    _model("zai-org/GLM-5", 744e9, _T, "technical report: 744B"),
    _model("zai-org/GLM-5.1", 754e9, _D, _HUB.format("754B")),
    _model("zai-org/GLM-5.2", 753e9, _D, _HUB.format("753B")),
    _model("zai-org/GLM-5.3", 753e9, _D, _HUB.format("753B")),
    _model("MiniMaxAI/MiniMax-M1", 456e9, _T, "model card: 456B", "MiniMaxAI/MiniMax-M1-80k"),
    _model("MiniMaxAI/MiniMax-M2.5", 229e9, _T, _HUB.format("229B")),
    _model("MiniMaxAI/MiniMax-M2.7", 229e9, _T, _HUB.format("229B")),
    _model("MiniMaxAI/MiniMax-M3", 428e9, _S, "model card: 428B with the vision tower"),
    _model("Qwen/Qwen3-8B", 8.2e9, _T, "model card: 8.2B"),
    _model("Qwen/Qwen3-32B", 32.8e9, _T, "model card: 32.8B"),
    _model("Qwen/Qwen3-30B-A3B", 30.5e9, _T, "model card: 30.5B"),
    _model("Qwen/Qwen3-235B-A22B", 235e9, _T, "model card: 235B", "qwen3-235b"),
    _model("Qwen/Qwen3-235B-A22B-FP8", 235e9, _T, "model card: 235B", "qwen3-235b-fp8"),
    _model("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480e9, _T, "model card: 480B", name="qwen3-coder-480b"),
    _model("Qwen/Qwen3-Next-80B-A3B-Instruct", 80e9, _T, "model card: 80B", name="qwen3-next-80b"),
    _model("Qwen/Qwen3.5-27B", 27e9, _T, "model card: 27B"),
    _model("Qwen/Qwen3.5-122B-A10B", 122e9, _T, "model card: 122B"),
    _model("Qwen/Qwen3.5-397B-A17B", 397e9, _T, "model card: 397B"),
    _model("Qwen/Qwen3.8-2.4T-A95B", 2.445e12, _D, "vLLM-Ascend tutorial: 4.89 TB of 16-bit weights; name: 2.4T"),
    _model("openai/gpt-oss-20b", 20.9e9, _T, "model card: 20.9B"),
    _model("openai/gpt-oss-120b", 116.8e9, _T, "model card: 116.8B"),
    _model(
        "meta-llama/Meta-Llama-3.1-8B",
        8.03e9,
        _T,
        "model card: 8B; safetensors count 8.03B",
        "llama-8b",
        name="llama-3.1-8b",
    ),
    _model("meta-llama/Meta-Llama-3.1-70B", 70.6e9, _T, _HUB.format("70.6B"), "llama-70b", name="llama-3.1-70b"),
    _model("meta-llama/Meta-Llama-3.1-405B", 406e9, _T, _HUB.format("406B"), "llama-405b", name="llama-3.1-405b"),
    _model("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 402e9, _S, _HUB.format("402B"), name="llama-4-maverick"),
    _model("mistralai/Mixtral-8x7B-v0.1", 46.7e9, _T, _HUB.format("46.7B"), name="mixtral-8x7b"),
    _model("mistralai/Mixtral-8x22B-v0.1", 141e9, _T, _HUB.format("141B"), name="mixtral-8x22b"),
    _model("mistralai/Mistral-Large-Instruct-2407", 123e9, _T, "model card: 123B", name="mistral-large-2407"),
    _model(
        "mistralai/Mistral-Large-4-1T-A52B", 1.05e12, _T, "Vercel AI gateway model page: 1.05T", name="mistral-large-4"
    ),
    _model("nvidia/Nemotron-H-56B-Base-8K", 56e9, _T, "model card: 56B", name="nemotron-h-56b"),
    _model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6e9, _T, "technical report: 31.6B", name="nemotron-3-nano"),
    _model(
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        120.6e9,
        _T,
        "technical report: 120.6B",
        name="nemotron-3-super",
    ),
    _model("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550e9, _T, "model card: 550B", name="nemotron-3-ultra"),
    _model("XiaomiMiMo/MiMo-V2-Flash", 309e9, _T, "model card: 309B"),
    _model("stepfun-ai/Step-3.7-Flash", 196e9, _T, "vLLM recipe: 196B language backbone, 1.8B vision encoder"),
    _model("ai21labs/AI21-Jamba-1.5-Mini", 51.6e9, _T, _HUB.format("51.6B; card: 52B"), name="jamba-1.5-mini"),
)

#: Every model by its name and its aliases, in lower case.
BY_ALIAS = {alias.lower(): model for model in MODELS for alias in (model.name, *model.aliases)}


def find_model(name: str) -> CatalogModel | None:
    """The catalog model of a name or alias, whatever its case."""
    return BY_ALIAS.get(name.strip().lower())


def catalog_names() -> tuple[str, ...]:
    """Names of all shipped models, sorted."""
    return tuple(sorted(model.name for model in MODELS))

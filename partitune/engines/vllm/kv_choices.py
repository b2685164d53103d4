"""What a start decides about its cache as a whole: whether windows free their blocks, and what lies outermost.

Decision: without its hybrid cache manager vLLM plans windows as full attention (their layers still compute within the
window), and that is not only what a flag says: some KV connectors switch it off silently. Planner and scheduler see the
outcome alone, layers that keep every token.

Source: vLLM 0.33.0 `config/vllm.py` (disable_hybrid_kv_cache_manager; up to 0.22 every connector switches it off),
`distributed/kv_transfer/kv_connector/v1` (SupportsHMA, get_required_kvcache_layout), `v1/core/kv_cache_planning.py`
(_promote_local_kv_cache_specs), `v1/attention/backends/utils.py` (resolve_kv_cache_layout). Of connectors only
HiSparse, which is not modelled, asks for blocks outermost; so does DeepSeek-V4's indexer, whose rows are not planned as
the engine does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import mapping
from partitune.engines.versions import Version, parse_version
from partitune.models.architecture import STATE_KINDS, Attention

LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"
#: From the outermost dimension to the innermost: layers, blocks, heads, tokens, content; and two older names.
LAYOUTS = ("LBNHC", "LBHNC", "LHBNC", "NHD", "HND", "BLHNC", "BLNHC", "BHLNC")
_FLAG = "disable_hybrid_kv_cache_manager"
_ASKS_CONNECTORS = Version(0, 23)
_WITHOUT_HYBRID = frozenset({"ExampleConnector", "LMCacheConnectorV1", "FlexKVConnectorV1", "HF3FSKVConnector"})


def blocks_outermost(flags: Mapping[str, FlagValue]) -> bool:
    """Whether every block of all layers lies in one piece."""
    return str(flags.get(LAYOUT_VARIABLE, "")).startswith("B")


def keeps_windows(deployment: Deployment) -> bool:
    """Whether layers with a window free what they no longer see, also where others keep every token."""
    return _hybrid(deployment) or "full" not in _kinds(deployment)


def cache_note(deployment: Deployment) -> str:
    """What nobody asked for: a connector that makes windows keep every token; empty where none does."""
    if keeps_windows(deployment) or deployment.flags.get(_FLAG) is True:
        return ""
    return f"windows keep every token: {_without_hybrid(deployment)} switches vLLM's hybrid cache manager off"


def cache_fault(deployment: Deployment) -> str:
    """Why the engine refuses these choices; empty where it does not."""
    layout, connector = deployment.flags.get(LAYOUT_VARIABLE), _without_hybrid(deployment)
    if layout is not None and layout not in LAYOUTS:
        return f"{LAYOUT_VARIABLE}: {layout!r} is not one of {', '.join(LAYOUTS)}"
    if connector and deployment.flags.get(_FLAG) is False:
        return f"{_FLAG}: false is refused with kv_transfer_config: {connector}; leave it out or set it to true"
    kinds = _kinds(deployment)
    if _hybrid(deployment) or len(kinds) < 2 or ("full" in kinds and "state" not in kinds):
        return ""
    reason = f"kv_transfer_config: {connector}" if connector else f"{_FLAG}: true"
    return f"{reason} is refused with {deployment.architecture.name}: its layers cannot share one block table"


def _hybrid(deployment: Deployment) -> bool:
    given = deployment.flags.get(_FLAG)
    return not given if isinstance(given, bool) else not _without_hybrid(deployment)


def _kinds(deployment: Deployment) -> set[str]:
    """What the layers keep: `full`, `state`, and every size of a window."""
    kinds = set()
    for layer in deployment.architecture.layers:
        block = layer.attention
        if block.kind is Attention.SLIDING:
            kinds.add(f"window of {block.window}")
        elif block.kind is not Attention.NONE:
            kinds.add("state" if block.kind in STATE_KINDS else "full")
    return kinds


def _without_hybrid(deployment: Deployment) -> str:
    """The connector that switches the hybrid cache manager off where no flag is set; empty: none."""
    all_of_them = parse_version(deployment.version) < _ASKS_CONNECTORS
    names = _connectors(mapping(deployment.flags.get("kv_transfer_config")))
    return next((name for name in names if all_of_them or name in _WITHOUT_HYBRID), "")


def _connectors(config: Mapping[str, object]) -> Iterator[str]:
    """The KV connectors that a transfer configuration names, those inside a MultiConnector too."""
    if isinstance(name := config.get("kv_connector"), str):
        yield name
    extra = config.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, Mapping) else None
    for each in inner if isinstance(inner, list) else ():
        if isinstance(each, Mapping):
            yield from _connectors(each)

"""What SGLang does where a cut parts layers that belong together.

Decision: read in the wheels of 0.5.10 to 0.5.23; what an earlier release does is taken to be what 0.5.10 does.
"""

from __future__ import annotations

from types import MappingProxyType

from partitune.engines.legal_cuts import CutRule, CutRules
from partitune.engines.versions import Version
from partitune.models.architecture import CutKind

_ALWAYS = Version(0, 0)
#: `pp_proxy_tensors` carry `topk_indices` from here on.
_HANDS_INDEXES_ON = Version(0, 5, 14)
_INDEX = CutRule(
    "SGLang hands the picked tokens to the next stage from 0.5.14 on only, and before that a stage begins without them",
    "SGLang 0.5.13 srt/models/deepseek_v2.py, prev_topk_indices",
)
_SHARED_KV = CutRule(
    "SGLang breaks at the first step, as the stage's pool has no such layer",
    "SGLang 0.5.23 srt/models/gemma4_causal.py, kv_shared_layer_index; mem_cache/swa_memory_pool.py, layers_mapping",
)
_VISION = CutRule(
    "SGLang refuses to start, as only the first stage has them",
    "SGLang 0.5.23 srt/models/qwen3_vl.py, start_layer >= len(deepstack_visual_indexes)",
)
CUT_RULES: CutRules = MappingProxyType(
    {
        CutKind.INDEX: ((_ALWAYS, _INDEX), (_HANDS_INDEXES_ON, None)),
        CutKind.SHARED_KV: ((_ALWAYS, _SHARED_KV),),
        CutKind.VISION: ((_ALWAYS, _VISION),),
    }
)

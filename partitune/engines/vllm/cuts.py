"""What vLLM does where a cut parts layers that belong together.

Decision: a refusal and wrong text are told apart in words, because a person who sees neither message nor figure learns
of the second from his users. Both keep a partition from being proposed.
"""

from __future__ import annotations

from types import MappingProxyType

from partitune.engines.legal_cuts import CutRule, CutRules
from partitune.engines.versions import Version
from partitune.models.architecture import CutKind

_ALWAYS = Version(0, 0)
#: `index_topk_freq` is read from here on; before, every layer has an indexer of its own.
_SHARES_INDEXES = Version(0, 21)
_INDEX = CutRule(
    "vLLM starts, and the layers behind the cut attend to tokens that no indexer of their stage picked, which is wrong "
    "text without a word",
    "vLLM 0.33 models/deepseek_v32/attention.py and 0.21 model_executor/models/deepseek_v2.py: topk_indices_buffer is "
    "each stage's own",
)
_SHARED_KV = CutRule(
    "vLLM refuses to start, as the layer that is read is not on that stage",
    "vLLM 0.33 model_executor/layers/attention/attention.py, validate_kv_sharing_target",
)
_VISION = CutRule(
    "vLLM refuses to start, as only the first stage has them",
    "vLLM 0.33 model_executor/models/qwen3_vl.py, start_layer >= len(deepstack_visual_indexes)",
)
CUT_RULES: CutRules = MappingProxyType(
    {
        CutKind.INDEX: ((_ALWAYS, None), (_SHARES_INDEXES, _INDEX)),
        CutKind.SHARED_KV: ((_ALWAYS, _SHARED_KV),),
        CutKind.VISION: ((_ALWAYS, _VISION),),
    }
)

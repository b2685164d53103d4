"""How many bytes a layer's fixed state takes under vLLM's flags about its types.

Decision: a state has two parts with a flag each. `mamba_cache_dtype` is the convolution's, and the recurrent one's
where neither `mamba_ssm_cache_dtype` nor the model says otherwise; Kimi delta attention keeps its own in float32 unless
told.

Source: vLLM 0.33.0 `model_executor/layers/mamba/mamba_utils.py` (MambaStateDtypeCalculator),
`model_executor/models/config.py` (update_mamba_ssm_cache_dtype).
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.errors import InfeasibleSpace
from partitune.models.architecture import Attention, AttentionBlock

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATE_FLAGS = ("mamba_cache_dtype", "mamba_ssm_cache_dtype")


def state_bytes(block: AttentionBlock, flags: Mapping[str, FlagValue]) -> int:
    """Bytes of one sequence's state in one layer, all tensor ranks together.

    Raises:
        InfeasibleSpace: a type that the engine refuses for such a layer.
    """
    convolution, recurrent = (_BYTES.get(str(flags.get(name, "auto"))) for name in STATE_FLAGS)
    if block.kind is Attention.LIGHTNING:
        return block.state_bytes_in(convolution, None)
    if block.kind is Attention.KDA and flags.get("mamba_ssm_cache_dtype") == "float16":
        raise InfeasibleSpace(
            "mamba_ssm_cache_dtype: Kimi delta attention takes auto, float32 and bfloat16, not float16"
        )
    sixteen_bits = block.state_bytes == 2 * (block.state_elements + block.conv_elements)
    return block.state_bytes_in(convolution if recurrent is None and sixteen_bits else recurrent, convolution)

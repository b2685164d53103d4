"""Speculative decoding: launched as the flags say, and not simulated.

Decision: how many drafted tokens are accepted depends on the text, which a simulated load does not have, so there is no
honest figure to put in. Whoever asks for it is told, in every place where simulated figures are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Flags that ask for it: vLLM 0.32 `engine/arg_utils.py`, SGLang 0.5.23 `arg_groups/speculative_hook.py`.
_FLAGS = ("speculative_config", "spec_method", "spec_model", "spec_tokens", "speculative_algorithm")


def speculation_note(flags: Mapping[str, object]) -> str:
    """What a person must know who sets one of these flags, or lets it vary; empty for everybody else."""
    asking = ", ".join(name for name in _FLAGS if flags.get(name))
    if not asking:
        return ""
    return (
        f"speculative decoding ({asking}) is launched and not simulated: neither the drafter's time, nor verifying, "
        "nor the tokens that are accepted; a real runner measures them"
    )

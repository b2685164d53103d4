"""Speculative decoding: launched as the flags say, and not simulated.

Decision: how many drafted tokens are accepted depends on the text, which a simulated load does not have, so there is no
honest figure to put in. Whoever asks for it is told, in every place where simulated figures are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.engines.launch import Launch


def speculation_note(launch: Launch, flags: Mapping[str, object]) -> str:
    """What a person must know who sets a flag that asks for it, or lets one vary; empty for everybody else."""
    asking = ", ".join(name for name in launch.drafting_flags if flags.get(name))
    if not asking:
        return ""
    return (
        f"speculative decoding ({asking}) is launched and not simulated: neither the drafter's time, nor verifying, "
        "nor the tokens that are accepted; a real runner measures them"
    )

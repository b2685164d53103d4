"""One request as the client has it.

Decision: prompts are lengths, not tokens: the only content that matters is how many tokens at the front a request
shares with others, so it names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class SharedPrefix(NamedTuple):
    """The first tokens of a prompt, the same for every request that names the group."""

    group: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client has it."""

    id: str
    arrival_s: float  # when the client wants to send it
    prompt_tokens: int
    output_tokens: int
    stops_early: bool = False  # ends on a stop token: the engine does not know beforehand that it makes so many
    priority: int = 0  # less is served earlier, with SchedulingPolicy.PRIORITY
    prefix: SharedPrefix | None = None  # None: no other prompt begins like this one

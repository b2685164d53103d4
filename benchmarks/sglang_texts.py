"""The tokens of the requests that are recorded: who begins alike, and with whose answer a prompt goes on.

Decision: written apart from the simulator's idea of a text, so that the recordings can show that idea to be wrong.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

_LEAST, _MOST = 1000, 1 << 30  # of a drawn token; a smaller one marks where a request's own text begins


def answer_token(name: str) -> int:
    """What the request with this id samples, again and again."""
    return _MOST + int(name)


def prompts(requests: Sequence[dict[str, Any]]) -> dict[str, array[int]]:
    """The prompt of every request, by its id; one that continues another stands behind it."""
    found: dict[str, array[int]] = {}
    outputs: dict[str, int] = {}
    for request in requests:
        name, before = request["id"], request.get("continues")
        ids = array("q")
        if before is not None:
            ids.extend(found[before])
            ids.extend([answer_token(before)] * outputs[before])
        beginning = ""
        for prefix in request.get("prefix", ()):
            beginning += f"{prefix['group']} from {len(ids)},"
            drawn = random.Random(beginning)
            ids.extend(drawn.randrange(_LEAST, _MOST) for _ in range(prefix["tokens"] - len(ids)))
        own = request["prompt_tokens"] - len(ids)
        drawn = random.Random(int(name))
        # Own texts differ in their first token, so no two go on alike.
        ids.extend([int(name) + 1, *(drawn.randrange(_LEAST, _MOST) for _ in range(own - 1))][:own])
        found[name], outputs[name] = ids, request["output_tokens"]
    return found

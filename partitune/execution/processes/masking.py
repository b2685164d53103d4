"""Values that no text of ours may hold, and the one function that takes them out of a text.

Decision: a text is masked where it comes in (an engine's log, a load generator's file, an answer over HTTP, an
exception), before anything cuts or quotes it, as half a secret is one too. What is secret is known here, in each
process for itself: what its environment holds under the name of a secret, and what it hands on (`keep_secret`). A
value of fewer than six characters is left: without every `1` and `true` a text says nothing any more. Passwords in
URLs, bearer tokens and those of Hugging Face show by themselves, whoever holds them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from partitune.spec.domains import secret_fault

#: Stands for a secret.
MASK = "***"
_SHORTEST = 6
_PIECE, _LONGEST = 1 << 20, 1 << 14  # bytes of a file that are looked at together, and that a secret may have
_SHOWING = tuple(
    re.compile(pattern)
    for pattern in (r"://([^\s/:@]*:[^\s/@]+)@", r"Bearer ([\w.~+/=-]{6,})", r"(hf_[A-Za-z0-9]{30,})")
)
_kept: set[str] = set()


def keep_secret(values: Iterable[str]) -> None:
    """From now on these are secrets in this process."""
    _kept.update(values)


def mask(text: str, cover: Callable[[str], str] = lambda _: MASK) -> str:
    """`text` with `cover` of each secret in its place, also of those that are quoted in JSON or in a URL."""
    own = (value for name, value in os.environ.items() if secret_fault(name))
    lines = {line.strip() for value in (*_kept, *own) for line in value.splitlines()}
    forms = {
        form
        for line in lines
        if len(line) >= _SHORTEST
        for form in (line, json.dumps(line)[1:-1], quote(line, safe=""), line.encode().decode("latin-1"))
    }
    for form in sorted(forms, key=len, reverse=True):
        if form.isdigit():  # not a part of a longer number
            text = re.sub(rf"(?<!\d){form}(?!\d)", lambda match: cover(match[0]), text)
        elif form in text:
            text = text.replace(form, cover(form))
    for pattern in _SHOWING:
        text = pattern.sub(lambda match: match[0].replace(match[1], cover(match[1])), text)
    return text


def blot_out(file: Path) -> None:
    """Overwrite secrets in `file`, byte for byte: a full disk has no room for a copy. Raises OSError."""
    with file.open("r+b") as content:
        for start in range(0, file.stat().st_size, _PIECE):
            content.seek(start)
            text = content.read(_PIECE + _LONGEST).decode("latin-1")
            blotted = mask(text, lambda secret: "*" * len(secret))
            if blotted != text:
                content.seek(start)
                content.write(blotted.encode("latin-1"))

"""A command as a list of words, some with names in braces: what is written in a runner and filled in for a trial.

Decision: a command is never a shell line. Each word of the file is one word of the program, whatever stands in the
values put into it, so that no partition, path or flag can end a quote or start another command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from partitune.spec.yaml.faults import describe, text_fault
from partitune.spec.yaml.strict_model import wrong

_FIELD = re.compile(r"\{\{|\}\}|\{([a-z_]*)\}|[{}]")


def _word(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise wrong(f"found {describe(value)}; allowed: a word, in quotes")
    if fault := text_fault(value):
        raise wrong(fault)
    return value


Words = Annotated[
    tuple[Annotated[str, BeforeValidator(_word), Field(max_length=4096)], ...], Field(strict=False, max_length=1000)
]


def fields_of_text(text: str) -> tuple[str, ...]:
    """The names in braces; a brace that stands alone counts as the name of nothing: ''."""
    return tuple(match[1] or "" for match in _FIELD.finditer(text) if match[0] not in ("{{", "}}"))


def filled(words: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words with each `{name}` replaced by its value and `{{` by a brace."""

    def value_of(field: re.Match[str]) -> str:
        return field[0][0] if field[0] in ("{{", "}}") else values[field[1]]

    return tuple(_FIELD.sub(value_of, word) for word in words)

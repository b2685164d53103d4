"""Which GPU a name means: as the table has it, as nvidia-smi and rocm-smi print it, as people write it.

Decision: a name is a set of words without those that every card has ("NVIDIA", "GeForce", "Generation"), so order,
case and punctuation do not matter, and nothing more is forgiven: a word too many ("Laptop") or too few ("A100") may be
another card, whose figures differ. Such a name is answered with the cards it may mean, and the way to state one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from partitune.errors import SpecError, nearest
from partitune.hardware.gpu_table import ROWS

_SAID_OF_ALL = frozenset(
    {"nvidia", "amd", "ati", "intel", "geforce", "tesla", "instinct", "radeon", "generation", "edition"}
    | {"gpu", "graphics", "oam", "r", "tm"}
)
_SPELLINGS = {"sxm2": "sxm", "sxm3": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm"}
_CANDIDATES = 8


def _words(name: str) -> frozenset[str]:
    written = re.split(r"[^a-z0-9]+", name.casefold())
    return frozenset(_SPELLINGS.get(word, word) for word in written if word and word not in _SAID_OF_ALL)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


@cache
def _meanings() -> tuple[Mapping[frozenset[str], str], Mapping[str, str]]:
    """Every spelling -> name of the table: by its words, and run together."""
    spelled = [(spelling, row.name) for row in ROWS for spelling in (row.name, *row.also)]
    return {_words(spelling): name for spelling, name in spelled}, {
        _plain(spelling): name for spelling, name in spelled
    }


def known_name(name: str) -> str | None:
    """The table's name of the GPU that is called `name`; None where there is none, or several."""
    by_words, by_plain = _meanings()
    return by_words.get(_words(name)) or by_plain.get(_plain(name))


def not_a_gpu(name: str) -> SpecError:
    """The error for a name that `known_name` does not know: what it may mean, and how to state a GPU of one's own."""
    by_words, by_plain = _meanings()
    words, plain = _words(name), _plain(name)
    wider = _each(known for spelling, known in by_words.items() if words and words < spelling)
    prefixed = _each(known for spelling, known in by_plain.items() if plain and spelling.startswith(plain))
    narrower = _each(known for spelling, known in by_words.items() if spelling < words)
    near = _each(by_plain[match] for match in nearest(plain, by_plain, most=3))
    if several := wider or prefixed:
        hint = f"did you mean {' or '.join(several[:_CANDIDATES])}?"
    elif narrower:
        hint = f"{' and '.join(narrower[:_CANDIDATES])} may be another card, so state it"
    elif near:
        hint = f"did you mean {' or '.join(near)}? If it is another card, state it"
    else:
        hint = f"known are {', '.join(row.name for row in ROWS)}"
    own = "{name: MINE, memory_gib: 48, bandwidth_gb_s: 864, bf16_tflops: 181, like: L40S}"
    return SpecError(f"gpu: {name!r} is not known; {hint} (a GPU of your own in YAML: {own})")


def _each(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))

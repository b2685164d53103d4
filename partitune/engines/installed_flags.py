"""The flags of the engine that is really installed, from its own help text.

Decision: our tables know the releases that were read; a site runs another one, or a fork. Its help is asked once before
the first trial, and every command line of the study is held against it, because a flag that was removed fails every
trial alike and says nothing about any partition. The words themselves are checked: what is checked is what runs.

Source: vLLM 0.32.0 `utils/argparse_utils.py` (FlexibleArgumentParser: `_` is `-`, `--name.key` sets a key of a JSON
flag, `--help=all` prints every group) and `entrypoints/cli/serve.py`; SGLang 0.5.23 `sglang/cli/serve.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from partitune.errors import SpecError, did_you_mean

_LARGEST_HELP = 4 << 20
#: Fewer than this are the help of something else; vLLM and SGLang have hundreds.
_FEWEST_FLAGS = 20
_HEADER = re.compile(r"\s{1,8}(?P<options>-[-\w].*)")
_OPTION = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]*)(?: \{(?P<choices>[^{}]*)\})?")
_NUMBER = re.compile(r"-\d")


@dataclass(frozen=True, slots=True)
class InstalledFlags:
    """What one installation takes. Options are written with dashes, as in `--max-num-seqs`."""

    source: str  # the command that printed them
    options: Mapping[str, tuple[str, ...]]  # option -> the values it is limited to; empty: any

    def check(self, commands: Iterable[Sequence[str]], engine: str) -> None:
        """Hold command lines against the installation.

        Raises:
            SpecError: one message that names every flag it does not have, with the nearest it has, and every value
                that a flag is not limited to.
        """
        faults = dict.fromkeys(fault for words in commands for fault in self._faults(words))
        if faults:
            raise SpecError(
                f"{self.source}: the {engine} installed here would refuse this study:"
                + "".join(f"\n  - {fault}" for fault in faults)
            )

    def _faults(self, words: Sequence[str]) -> Iterator[str]:
        for index, word in enumerate(words):
            if not word.startswith("-") or word == "-" or _NUMBER.match(word):
                continue
            written, equals, value = word.partition("=")
            option = written.partition(".")[0]
            if option.startswith("--"):
                option = option.replace("_", "-")
            if option not in self.options:
                yield f"it has no {written}{did_you_mean(option, self.options) or '.'}"
                continue
            choices = self.options[option]
            if not equals and index + 1 < len(words):
                value = words[index + 1]
            if choices and "." not in written and value not in choices:
                yield f"{written} takes {', '.join(choices)}; found {value or 'nothing'}{did_you_mean(value, choices)}"


def read_help(text: str, source: str) -> InstalledFlags:
    """Flags of a help text as argparse prints it; `source` is the command that printed it.

    Raises:
        SpecError: no such text, such as the traceback of an engine that does not start.
    """
    options: dict[str, tuple[str, ...]] = {}
    for line in text[:_LARGEST_HELP].splitlines():
        header = _HEADER.match(line)
        if header is None:
            continue
        for option in _OPTION.finditer(re.split(r"\s{2,}", header["options"], maxsplit=1)[0]):
            choices = tuple(choice.strip() for choice in (option["choices"] or "").split(",") if choice.strip())
            options[option["name"]] = choices or options.get(option["name"], ())
    if len(options) < _FEWEST_FLAGS:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise SpecError(
            f"{source}: looked for a help text with at least {_FEWEST_FLAGS} flags and found {len(options)}; "
            f"its last line is {last[:300]!r}"
        )
    return InstalledFlags(source, options)

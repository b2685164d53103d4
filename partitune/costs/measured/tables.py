"""Asking the tables of aiconfigurator-core (Apache-2.0, Copyright NVIDIA) for one operation, and keeping the answer.

Decision: an operation is plain data, so that its answers can be kept: opening the tables takes seconds, reading a kept
answer a millisecond, and every command would pay. Answers lie under the user's cache directory by release of the
package; a directory that cannot be written is no error. Only rows of the very engine and GPU count as measured; what
the package would compute, or borrow from another engine, is refused here and left to the fitted roofline.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from partitune.costs.measured.grids import CONTEXTS, SIZES, Grid, Surface

PACKAGE = "aiconfigurator-core"
#: Answers that are measurements; `mixed` is a measured attention kernel with a computed rotary embedding.
_MEASURED = ("silicon", "mixed")
_FORMAT = 1  # of the kept answers; raise it when the batches asked for change


@cache
def installed_release() -> str | None:
    """Release of the package; None when it is not installed."""
    return next((package.version for package in metadata.distributions(name=PACKAGE)), None)


#: An argument of an operation; `GEMMQuantMode.fp8` is that member of the package's enumeration.
Argument = int | str | bool
#: (sequences, length, past) of each question.
_Batches = Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Table:
    """Tables of one engine release on one GPU; with `siblings`, other releases of the engine fill in.

    An operation is asked for by its class in the package, and its arguments after name and count.
    """

    system: str
    engine: str
    release: str
    siblings: bool = False

    def by_rows(self, operation: str, *arguments: Argument, prompts: bool = True, eager: bool = False) -> Grid | None:
        """An operation that depends on rows only: tokens of prompts, else decoding sequences."""
        batches = [(1, rows, 0) if prompts else (rows, 1024, 0) for rows in SIZES]
        seconds = self._answers((operation, *arguments), batches, prompts=prompts)
        return Grid(seconds, eager=eager) if seconds else None

    def prompts(self, operation: str, *arguments: Argument, eager: bool = False) -> Surface | None:
        """Attention over prompts, by new tokens and mean context."""
        pairs = [(tokens, context) for tokens in SIZES for context in CONTEXTS]
        batches = [_prompts(tokens, context) for tokens, context in pairs]
        answers = self._answers(
            (operation, *arguments), [*batches, *((1, tokens, 0) for tokens in SIZES)], prompts=True
        )
        if answers is None:
            return None
        seconds, alone = answers[: len(pairs)], answers[len(pairs) :]
        scaled = [
            answer * tokens / (sequences * length)
            for answer, (tokens, _), (sequences, length, _) in zip(seconds, pairs, batches, strict=True)
        ]
        return Surface.of_prompts(scaled, alone, eager=eager)

    def decodes(self, operation: str, *arguments: Argument) -> Surface | None:
        """Attention of one new token a sequence, by sequences and mean context."""
        batches = [(sequences, context, 0) for sequences in SIZES for context in CONTEXTS]
        seconds = self._answers((operation, *arguments), batches, prompts=False)
        return Surface(seconds) if seconds else None

    def _answers(self, operation: tuple[Argument, ...], batches: _Batches, *, prompts: bool) -> list[float] | None:
        """Seconds for every batch, kept or asked for; None when one was not measured."""
        question = json.dumps([_FORMAT, *astuple(self), *operation, prompts])
        with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
            kept = json.loads(_kept_at(question).read_text("utf-8"))
            if kept["question"] == question:
                seconds: list[float] | None = kept["seconds"]
                return seconds
        answer = self._ask(operation, batches, prompts=prompts)
        with suppress(OSError, RuntimeError):
            path = _kept_at(question)
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({"question": question, "seconds": answer}), "utf-8")
            draft.replace(path)
        return answer

    def _ask(self, operation: tuple[Argument, ...], batches: _Batches, *, prompts: bool) -> list[float] | None:
        from aiconfigurator_core.sdk import common, engine, operations
        from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError

        def value(argument: Argument) -> object:
            enumeration, _, member = str(argument).partition(".")
            return getattr(common, enumeration)[member] if enumeration.endswith("QuantMode") else argument

        view, handle = _open(self)
        try:
            name, *arguments = operation
            asked = getattr(operations, str(name))("", 1, *map(value, arguments))
            if isinstance(asked, operations.ContextAttention | operations.GenerationAttention):
                # Which of several measured attention kernels an engine runs is only known to the tables.
                engine._resolve_attention_lane_orders([asked], view, None)
            text = engine.build_ops_json([asked])
            seconds = []
            for sequences, length, past in batches:
                _, milliseconds, _, source = handle.evaluate_ops_json(
                    text, is_context=prompts, batch_size=sequences, s=length, prefix=past
                )[0]
                if source not in _MEASURED:
                    return None
                seconds.append(1e-3 * milliseconds)
        except (PerfDataNotAvailableError, KeyError, ValueError):
            # Not measured, a type the package or the GPU does not have, or a size that does not divide.
            return None
        return seconds


def _prompts(tokens: int, context: int) -> tuple[int, int, int]:
    """(sequences, length, past) of a step of `tokens` whose rows see `context` tokens on average.

    Below half the tokens the step must hold several prompts.
    """
    past = context - (tokens + 1) // 2
    if past >= 0:
        return 1, tokens, past
    length = max(2 * context - 1, 1)
    return max(1, round(tokens / length)), length, 0


@cache
def _open(table: Table) -> tuple[Any, Any]:
    from aiconfigurator_core.sdk.engine import EngineHandle
    from aiconfigurator_core.sdk.perf_database import get_database_view

    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)  # it warns about what is refused anyway
    view = get_database_view(
        table.system,
        table.engine,
        table.release,
        database_mode="SILICON",
        shared_layer=table.siblings,
        allow_unlisted_version=True,
    )
    return view, EngineHandle.for_database(view)


def _kept_at(question: str) -> Path:
    """Where the answer to `question` is kept. Raises RuntimeError where nobody has a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.json"
    return base / "partitune" / "kernels" / str(installed_release()) / name

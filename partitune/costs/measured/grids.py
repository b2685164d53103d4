"""Tabulated times, how to read between the points, and what the tokens of a batch cost to mix by them.

Decision: a measured operation is asked for at fixed sizes once, when the cost model is made; a batch then reads between
them in a microsecond, and the numbers travel to a worker that has no tables. Between two sizes a kernel's time is a
straight line in rows and in context (it starts, then reads and computes in proportion), so both axes are read linearly.
Where a smaller batch was measured slower than a larger one, the larger one's time stands for both: it could be padded.
A kernel that holds a whole block (projections inside) mixes tokens like any other; that a decode beside a prompt does
not read its weights a second time is said here, once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from partitune.costs.cost_model import Batch, Floats

#: Rows (tokens of a step, or decoding sequences) at which operations are tabulated.
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
         16384, 32768)  # fmt: skip
#: Mean context of a row, in tokens.
CONTEXTS = (1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Grid:
    """Seconds by number of rows."""

    def __init__(self, seconds: Sequence[float], *, eager: bool = False) -> None:
        self._seconds = _never_dearer_when_smaller(np.array(seconds), eager=eager).tolist()

    @classmethod
    def sum(cls, grids: Iterable[Grid | None]) -> Grid | None:
        """All of them one after the other; None where one of them was not measured."""
        rows = [np.zeros(len(SIZES)).tolist()]
        for grid in grids:
            if grid is None:
                return None
            rows.append(grid._seconds)
        return cls(np.sum(rows, axis=0).tolist())

    def __call__(self, rows: float) -> float:
        """Seconds for `rows`; beyond the largest size in proportion."""
        if rows <= 0:
            return 0.0
        return _read(SIZES, self._seconds, rows)


class Surface:
    """Seconds by number of rows and mean context of a row."""

    def __init__(self, seconds: Sequence[float], *, eager: bool = False) -> None:
        """`seconds` by size, then by context."""
        table = np.array(seconds).reshape(len(SIZES), len(CONTEXTS))
        table = np.minimum.accumulate(table[:, ::-1], axis=1)[:, ::-1]
        self._rows = _never_dearer_when_smaller(table, eager=eager).tolist()

    @classmethod
    def of_prompts(cls, seconds: Sequence[float], alone: Sequence[float], *, eager: bool = False) -> Surface:
        """The same where rows are new tokens of prompts; `alone`: one prompt of that size with nothing before it.

        Tokens in front of a prompt never make it cheaper. The tables claim it of short prompts, where they scale with
        query-key pairs alone, projections and launches included.
        """
        table = np.array(seconds).reshape(len(SIZES), len(CONTEXTS))
        for line, tokens, least in zip(table, SIZES, alone, strict=True):
            first = sum(context < (tokens + 1) // 2 for context in CONTEXTS)
            line[first:] = np.maximum(np.maximum.accumulate(line[first:]), least)
        return cls(table.ravel().tolist(), eager=eager)

    def less(self, seconds: float) -> Surface:
        """The same, `seconds` shorter everywhere."""
        return Surface([max(0.0, at_context - seconds) for row in self._rows for at_context in row])

    def __call__(self, rows: float, context: float) -> float:
        """Seconds for `rows` rows with a mean context of `context` tokens."""
        if rows <= 0:
            return 0.0
        upper = _upper(SIZES, rows)
        low, high = SIZES[upper - 1], SIZES[upper]
        below, above = (_read(CONTEXTS, self._rows[i], context) for i in (upper - 1, upper))
        return max(0.0, below + (above - below) * (rows - low) / (high - low))


def _upper(axis: Sequence[int], at: float) -> int:
    return min(max(bisect_right(axis, at), 1), len(axis) - 1)


def _read(axis: Sequence[int], seconds: Sequence[float], at: float) -> float:
    upper = _upper(axis, at)
    low, high = axis[upper - 1], axis[upper]
    below, above = seconds[upper - 1], seconds[upper]
    return below + (above - below) * (max(at, axis[0]) - low) / (high - low)


def _never_dearer_when_smaller(table: Floats, *, eager: bool) -> Floats:
    """The lower envelope over the first axis.

    An operation timed eagerly carries the host's launches at small sizes; those are counted per stage (stages.py). What
    is left for the GPU is the rate it reaches at a size that keeps it busy.
    """
    scale = np.array(SIZES, dtype=np.float64).reshape(-1, *[1] * (table.ndim - 1)) if eager else 1.0
    return np.asarray(np.minimum.accumulate((table / scale)[::-1])[::-1] * scale)


#: Seconds that mixing the tokens of a batch takes, prompts and decodes one after the other.
Mixer = Callable[[Batch], float]


@dataclass(frozen=True, slots=True)
class ContextMixer:
    """Attention whose time depends on the context."""

    prompts: Surface  # by new tokens and mean context
    decodes: Surface  # by sequences and mean context
    whole_block: bool  # projections are inside

    @classmethod
    def of(cls, prompts: Surface | None, decodes: Surface | None, *, whole_block: bool = False) -> ContextMixer | None:
        """The mixer of both; None where one of them was not measured."""
        return None if prompts is None or decodes is None else cls(prompts, decodes, whole_block)

    def __call__(self, batch: Batch) -> float:
        """Seconds for `batch`; beside a prompt, decodes do not read a whole block's weights again."""
        seconds = 0.0
        if batch.prefill_tokens:
            seconds = self.prompts(batch.prefill_tokens, batch.prefill_pairs / batch.prefill_tokens)
        if batch.decode_tokens:
            rows = batch.decode_tokens + (batch.padding if self.whole_block else 0)
            seconds += self.decodes(rows, batch.decode_context / rows)
            if self.whole_block and batch.prefill_tokens:
                seconds -= self.decodes(1, 1)
        return seconds


@dataclass(frozen=True, slots=True)
class StateMixer:
    """Attention over a fixed state."""

    prompts: Grid  # by new tokens
    decodes: Grid  # by sequences

    def __call__(self, batch: Batch) -> float:
        """Seconds of the measured kernels for `batch`, prompts and decodes one after the other."""
        return self.prompts(batch.prefill_tokens) + self.decodes(batch.decode_tokens)

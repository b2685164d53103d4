"""What the tokens of a batch cost to mix, read from measured kernels: attention over a context, or over a fixed state.

Decision: a kernel that holds a whole block (projections inside) is a mixer like any other; that a decode beside a
prompt does not read its weights a second time is said here, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partitune.costs.cost_model import Batch
from partitune.costs.measured.grids import Grid, Surface

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

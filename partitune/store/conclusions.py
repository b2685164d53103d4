"""The summary of a stored study: reads what `analysis.summary` draws its conclusions from."""

from __future__ import annotations

from collections.abc import Sequence

from partitune.analysis.final import NO_FINAL, Rules
from partitune.analysis.summary import Summary, summarise
from partitune.candidate import Objective
from partitune.store import Store


def stored_summary(store: Store, study: str, objectives: Sequence[Objective], rules: Rules = NO_FINAL) -> Summary:
    """What `study` found. Stages are read only of the trials that the summary names. Raises StoreError."""
    return summarise(
        study,
        store.label,
        store.trials(study, stages=False),
        objectives,
        rules,
        runs={repeat.run: repeat.result for repeat in store.repeats(study)},
        screened=[screened.result for screened in store.screened(study)],
        set_aside=store.set_aside(study),
        with_stages=lambda trial: store.trial(study, trial.number),
    )

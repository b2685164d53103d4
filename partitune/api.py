"""The public Python API: what the commands do, as functions that return values.

Decision: each function imports what it needs when it is called, so that `import partitune` is free of numpy, Optuna and
Ray; values are those of the rooms (`Explained`, `Solved`, …) with a `to_json()` of documented keys, and whatever a
person got wrong is a `PartituneError`.

`partitune.search` and `partitune.export` are functions, and rooms of the same names. Python sets a room's name on the
package when the room is first imported, so both are imported here, before `partitune/__init__.py` binds the functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import partitune.export
import partitune.search  # noqa: F401 - see above: a later first import would replace the function by the room
from partitune.candidate import FlagValue

if TYPE_CHECKING:  # named for the type checker; imported by the call that needs them
    from partitune.analysis.explanation import Explained
    from partitune.analysis.summary import Summary
    from partitune.export.deploy import Exported
    from partitune.search.exact_front import Solved
    from partitune.search.layout_comparison import Compared
    from partitune.spec.search_space import SearchSpace

DATABASE = "results.db"


def load_search_space(name: str | Path, changes: Mapping[str, Any] | None = None) -> SearchSpace:
    """Read a search space.

    Args:
        name: of a search space (`partitune list` shows them), or the path of a YAML file.
        changes: values by key path, as `--set` takes them: `{"budget.trials": 20}`.

    Returns:
        The checked search space.

    Raises:
        SpecError: names the file, the line, the key and what is allowed.
    """
    from partitune.spec.overrides import with_settings
    from partitune.spec.search_space import SearchSpace

    return with_settings(SearchSpace.load(str(name)), changes or {}, "changes")


def explain(
    space: SearchSpace,
    partition: str | Sequence[int] | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    *,
    advice_seconds: float = 2.0,
) -> Explained:
    """Simulate one candidate and take it apart, stage by stage.

    Args:
        space: what is served where, under which load.
        partition: layers per stage, such as `[11, 11, 12]` or `"11,11,12"`; None: the engine's own split.
        flags: engine flags over those of the space.
        advice_seconds: CPU seconds for trying changes that gain; 0: none is tried.

    Returns:
        Its stages, memory, what limits it, how far it is from the limit, and what gains, as it was tried; beside it
        `same_flags` and `default`, which it is compared with. `result.outcome` says whether it can run.

    Raises:
        SpecError: a flag or partition that the engine does not take.
    """
    from partitune.analysis.explanation import candidate_of, explain_beside
    from partitune.planning.resolve import resolve
    from partitune.spec.commands import words_of

    problem = resolve(space)
    candidate = candidate_of(problem, partition, dict(flags or {}))
    return explain_beside(problem, candidate, advice_s=advice_seconds, words=words_of(space))


def solve(space: SearchSpace, flags: Mapping[str, FlagValue] | None = None) -> Solved:
    """The exact front of partitions under one setting of the flags, without a search.

    Args:
        space: what is served where, under which load.
        flags: engine flags over those of the space.

    Returns:
        The engine's split and every partition on which no other is better in slowest stage (seconds) and KV at once.

    Raises:
        SpecError: a flag that the engine does not take.
    """
    from partitune.search.exact_front import solve as solved

    return solved(space, dict(flags or {}))


def layouts(space: SearchSpace, flags: Mapping[str, FlagValue] | None = None) -> Compared:
    """Every layout (tensor, pipeline, data, expert parallel) that model, engine and GPUs admit, simulated.

    Args:
        space: what is served where; its own layout is one of them.
        flags: engine flags over those of the space.

    Returns:
        A row a layout, each with its best partition, and why the others were left out.

    Raises:
        SpecError: the search space.
    """
    from partitune.search.layout_comparison import compare_layouts

    return compare_layouts(space, dict(flags or {}))


def search(
    space: SearchSpace,
    *,
    database: str | Path = DATABASE,
    study: str | None = None,
    runner: str = "simulator",
    pool: str = "local",
    ray_address: str | None = None,
    mode: int = 0o600,
) -> Summary:
    """Search, or go on with a study of the same name, until its budget is spent.

    Args:
        space: what may vary, and for how long (`budget`).
        database: a SQLite file or a PostgreSQL URL; every finished trial is committed at once.
        study: its name in the database; None: that of the space.
        runner: how candidates are measured, by name or file.
        pool: `local`, in this process, or `ray`.
        ray_address: of a running Ray cluster, HOST:PORT; `local`: one of its own; None: as RAY_ADDRESS says, or local.
        mode: of a database that is new, and of the logs beside it.

    Returns:
        What the study found: best, default, verdict, front.

    Raises:
        SpecError: the search space. StoreError: the database, or a study that means something else. ClusterError: Ray.
    """
    from partitune.search.events import Unwatched
    from partitune.search.stored_study import explained_summary_of
    from partitune.search.study import StudyOrder, run
    from partitune.spec.runner import Runner

    order = StudyOrder(space, Runner.load(runner), str(database), study or space.name, pool, ray_address, mode)
    with run(order, Unwatched()) as (store, _):
        return explained_summary_of(store, order.study)


def export(
    output: str | Path,
    *,
    study: str | None = None,
    trial: int | None = None,
    database: str | Path = DATABASE,
    mode: int = 0o600,
) -> Exported:
    """Write one trial as an env-file with the engine's config beside it, and read both back.

    Args:
        output: the env-file, such as `deploy.env`; the config gets the same name with `.yaml`.
        study: its name; None: the study created last.
        trial: its number; None: the best one, or the engine's default where nothing beats it.
        database: a SQLite file or a PostgreSQL URL.
        mode: of files that are new; those that are replaced keep theirs.

    Returns:
        Both files, the commands that start the engine with them, what was found about the trial, and warnings.

    Raises:
        StoreError: no such database, study or trial. SpecError: a value that cannot be exported, or a file not ours.
    """
    from partitune.analysis.summary import remarks, trial_to_export
    from partitune.export.deploy import export as exported
    from partitune.planning.resolve import resolve
    from partitune.search.stored_study import spec_of, study_name, summary_of
    from partitune.store import Store

    with Store.open(str(database), read_only=True) as store:
        name = study_name(store, study)
        summary, spec = summary_of(store, name), spec_of(store, name)
    chosen = trial_to_export(summary, trial)
    return exported(resolve(spec), chosen.result.candidate, Path(output), remarks(summary, chosen), mode)


def load_study(study: str | None = None, database: str | Path = DATABASE) -> list[dict[str, Any]]:
    """Every trial of a study, one flat row each, as `pandas.DataFrame(rows)` reads them.

    Args:
        study: its name; None: the study created last.
        database: a SQLite file or a PostgreSQL URL.

    Returns:
        Rows in the order of the trials, all with the same keys: `trial`, `on_front`, `origin`, `outcome`, `reason`,
        `partition` (`"11,11,12"`), every flag that any trial has, every metric with its unit in its name; None where a
        trial has no such flag or figure.

    Raises:
        StoreError: no such database or study.
    """
    from partitune.search.stored_study import study_name, summary_of
    from partitune.store import Store

    with Store.open(str(database), read_only=True) as store:
        return summary_of(store, study_name(store, study)).rows()

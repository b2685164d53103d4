"""What a search space leaves to its engine: which release runs, and which flags vary.

Decision: a file and the form without one mean the same where both say nothing, for every engine: the newest release
whose rules were read, and the flags that the engine names. They are filled in before a study is stored, so that a later
partitune, which may know a newer release, goes on with what was begun.
"""

from __future__ import annotations

from partitune.engines.registry import engine
from partitune.spec.domains import Domains, domain_allows
from partitune.spec.search_space import SearchSpace


def completed(spec: SearchSpace) -> SearchSpace:
    """`spec` with a release and knobs, where it names none.

    A flag that the space starts at another value than its usual ones is fixed there.

    Raises:
        SpecError: an engine that nobody knows.
    """
    chosen, changes = engine(spec.engine.name), dict[str, object]()
    if spec.engine.version is None:
        changes["engine"] = spec.engine.model_copy(update={"version": str(chosen.versions_read.newest)})
    if "knobs" not in spec.model_fields_set:
        fixed = spec.engine.flags
        usual = {
            name: tuple(values)
            for name, values in chosen.default_knobs.items()
            if name not in fixed or domain_allows(tuple(values), fixed[name])
        }
        changes["knobs"] = Domains.model_validate(usual)
    return spec.model_copy(update=changes)

"""What hypothesis draws in more than one test: JSON as anybody could send it, candidates and results."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from partitune.candidate import Candidate, Measurement, Outcome, Result, StageReport


def json_values(
    text: st.SearchStrategy[str] = st.text(max_size=12),  # noqa: B008 - a strategy is a value
    *,
    keys: st.SearchStrategy[Any] = st.text(max_size=8),  # noqa: B008
    most: int = 4,
    leaves: int = 12,
) -> st.SearchStrategy[Any]:
    """Scalars, lists and mappings of each other, floats that are no JSON included.

    Args:
        text: what strings are.
        keys: what mappings have as keys.
        most: items of a list or mapping at most.
        leaves: scalars of one value at most.
    """
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | text,
        lambda inner: st.lists(inner, max_size=most) | st.dictionaries(keys, inner, max_size=most),
        max_leaves=leaves,
    )


numbers = st.floats(allow_nan=False, allow_infinity=False)
ints = st.integers(-(2**63), 2**63 - 1)
words = st.text(max_size=8)
counts = st.integers(0, 2**62)
flags = st.dictionaries(words, st.booleans() | ints | numbers | words, max_size=3)
figures = st.dictionaries(words, numbers | ints, max_size=3)
stages = st.builds(
    StageReport,
    stage=st.integers(0, 999),
    layers=st.integers(0, 999),
    kinds=st.dictionaries(words, st.integers(0, 99), max_size=2),
    compute_s=numbers,
    transfer_s=numbers,
    wait_s=numbers,
    busy_fraction=numbers,
    weights_bytes=counts,
    free_bytes=ints,
    kv_blocks=counts,
    stranded_bytes=counts,
)
measurements = st.builds(
    Measurement,
    metrics=figures,
    stages=st.lists(stages, max_size=2, unique_by=lambda one: one.stage).map(
        lambda found: tuple(sorted(found, key=lambda one: one.stage))
    ),
    regime=words,
    kv_blocks=counts,
    kv_tokens=counts,
    limiting_stage=counts,
    limiting_reason=words,
    simulated=st.booleans(),
    constraints=figures,
)
candidates = st.builds(Candidate, st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple), flags)
results = st.builds(
    Result, candidates, st.just(Outcome.OK), st.just(""), measurements, figures, st.floats(0, 1e6)
) | st.builds(
    Result,
    candidates,
    st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.OK]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.none() | measurements,
    figures,
    st.floats(0, 1e6),
)

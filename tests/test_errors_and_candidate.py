"""Values that cross process borders survive the trip."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from partitune import errors
from partitune.candidate import Candidate, Measurement, Origin, Submission
from tests.scripted import measurement

flags = st.dictionaries(
    st.text("abcdefghij_", min_size=1), st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
)


@pytest.mark.parametrize("kind", errors.RunError.__subclasses__())
def test_a_run_error_keeps_its_kind_text_and_grade_when_pickled(kind: type[errors.RunError]) -> None:
    back = pickle.loads(pickle.dumps(kind("stage 3 is short", excess=2.5)))
    assert (type(back), str(back), back.excess) == (kind, "stage 3 is short", 2.5)


def test_every_error_is_in_the_tree_that_the_docstring_draws() -> None:
    kinds = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert all(issubclass(kind, errors.PartituneError) for kind in kinds)
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in kinds)


@given(partition=st.lists(st.integers(1, 99), min_size=1), flags=flags, layout=st.none() | st.text())
def test_a_candidate_is_its_json_and_its_digest_does_not_depend_on_order(
    partition: list[int], flags: dict[str, bool | int | float | str], layout: str | None
) -> None:
    one = Candidate(tuple(partition), flags, layout)
    assert Candidate.from_json(one.to_json()) == one
    assert Candidate(tuple(partition), dict(reversed(flags.items())), layout).digest == one.digest


def test_a_layout_is_written_and_read_as_it_was_when_it_was_a_knob() -> None:
    """Databases and job messages of earlier releases hold the layout under this key, and this digest beside it."""
    written = {
        "partition": [10, 8, 8, 10],
        "knobs": {"async_scheduling": True, "layout": "tp1-pp4", "max_num_seqs": 64},
    }
    read = Candidate.from_json(written)
    assert read == Candidate((10, 8, 8, 10), {"max_num_seqs": 64, "async_scheduling": True}, "tp1-pp4")
    assert (json.dumps(read.to_json()), read.digest) == (json.dumps(written), "6aebac7b3183")
    assert Candidate((18, 18), {"max_num_seqs": 64}).digest == "8d6414b64a5a"


def test_different_candidates_have_different_digests() -> None:
    digests = {Candidate((4, 4)).digest, Candidate((4, 4), {"a": 1}).digest, Candidate((4, 4), {"a": True}).digest}
    assert len(digests) == 3


def test_a_measurement_is_its_json() -> None:
    one = measurement(12.0, ttft_p99_ms=0.5)
    assert TypeAdapter(Measurement).validate_python(one.to_json()) == one


@pytest.mark.parametrize(
    ("stored", "read"),
    [("R1", "async-v1"), ("R2", "sync-v1"), ("R3", "async-v2"), ("R4", "sync-v2"), ("slots", "slots")],
)
def test_a_stored_regime_has_its_name_of_today(stored: str, read: str) -> None:
    assert replace(measurement(1.0), regime=stored).regime == read


@pytest.mark.parametrize(
    ("stored", "origin", "plan", "promoted"),
    [
        ("exact:front-0", Origin.EXACT, "front-0", False),
        ("enumerated:seed-2 promoted", Origin.ENUMERATED, "seed-2", True),
        ("screen:front-1", Origin.SAMPLER, "front-1", True),  # of a release before the words were closed
        ("sampler:1", Origin.SAMPLER, "1", False),
        ("tomorrow:x", None, "x", False),
    ],
)
def test_what_made_a_trial_is_read_from_any_database(stored: str, origin: Origin, plan: str, promoted: bool) -> None:
    submission = Submission.labelled(Candidate((4,)), stored)
    assert (submission.origin, submission.plan, submission.promoted) == (origin, plan, promoted)
    assert Submission.labelled(Candidate((4,)), submission.label) == submission

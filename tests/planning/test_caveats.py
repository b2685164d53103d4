"""Which knobs the simulator is blind to: by every value that a search could propose, not by its ends alone."""

from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.planning.caveats import refuse_unmodelled_knobs, study_caveats, unmodelled_knobs
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace


def space(*backends: str) -> SearchSpace:
    plain = SearchSpace.load("kimi-k3-pp8-tp2-sglang").resolved()
    knobs = {"moe_runner_backend": list(backends), "chunked_prefill_size": {"low": 512, "high": 16384, "step": 512}}
    return SearchSpace.from_mapping({**plain, "knobs": knobs, "seeds": []})


@pytest.mark.parametrize(
    ("backends", "refused"),
    [
        (("flashinfer_mxfp4", "marlin"), False),  # there are times of both
        (("auto", "triton", "marlin"), True),  # of the one in the middle there are none
        (("triton",), False),  # fixed, and named
    ],
)
def test_a_knob_is_refused_for_any_value_without_times(backends: tuple[str, ...], refused: bool) -> None:
    spec = space(*backends)
    problem = resolve(spec)
    assert ("moe_runner_backend" in unmodelled_knobs(problem, spec)) == ("triton" in backends)
    assert set(study_caveats(problem, spec).not_modelled) == ({"moe_runner_backend"} if "triton" in backends else set())
    if refused:
        with pytest.raises(SpecError, match=r"knobs\.moe_runner_backend: the simulator cannot tell its values apart"):
            refuse_unmodelled_knobs(problem, spec)
    else:
        refuse_unmodelled_knobs(problem, spec)

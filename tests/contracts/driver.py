"""What every Driver promises. Subclasses give a driver, a candidate it can measure and one it cannot."""

from __future__ import annotations

import pickle

from pydantic import TypeAdapter

from partitune.candidate import Candidate, Measurement, Outcome, flaw_in
from partitune.execution.driver import Driver, run


class DriverContract:
    def driver(self) -> Driver:
        raise NotImplementedError

    def good(self) -> Candidate:
        raise NotImplementedError

    def bad(self) -> Candidate:
        raise NotImplementedError

    def test_a_measurement_is_whole_and_survives_json(self) -> None:
        candidate = self.good()
        found = self.driver().measure(candidate)
        assert [stage.stage for stage in found.stages] == list(range(len(candidate.partition)))
        assert tuple(stage.layers for stage in found.stages) == candidate.partition
        assert [sum(stage.kinds.values()) for stage in found.stages] == list(candidate.partition)
        assert 0 <= found.limiting_stage < len(found.stages)
        assert found.limiting_reason
        assert found.kv_blocks <= min(stage.kv_blocks for stage in found.stages)
        assert all(0 <= stage.busy_fraction <= 1 for stage in found.stages)
        assert flaw_in(found.to_json()) is None
        assert TypeAdapter(Measurement).validate_python(found.to_json()) == found

    def test_equal_candidates_measure_equally_in_any_process(self) -> None:
        driver = self.driver()
        copy: Driver = pickle.loads(pickle.dumps(driver))
        assert copy.measure(self.good()) == driver.measure(self.good())

    def test_what_cannot_run_is_graded_and_has_a_reason(self) -> None:
        result = run(self.driver(), self.bad())
        assert result.outcome is Outcome.INFEASIBLE
        assert result.reason
        assert result.measurement is None
        assert max(result.constraints.values()) > 0

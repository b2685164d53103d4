"""`partitune` with a simulator that takes its time and writes down what it measures: the victim of the chaos test."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import partitune.execution.choice
from partitune.candidate import Candidate, Measurement
from partitune.cli import main
from partitune.execution.simulator_driver import SimulatorDriver

JOURNAL = "PARTITUNE_CHAOS_JOURNAL"
DELAY_S = 0.4


@dataclass(frozen=True)
class SlowSimulator(SimulatorDriver):
    """Appends `DIGEST START_TIME` to the journal before every measurement."""

    def measure(self, candidate: Candidate) -> Measurement:
        line = f"{candidate.digest} {time.time()}\n".encode()
        journal = os.open(Path(os.environ[JOURNAL]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, line)
        os.close(journal)
        time.sleep(DELAY_S)
        return SimulatorDriver.measure(self, candidate)


if __name__ == "__main__":
    from tests import chaos_search  # as workers know it, not as __main__

    # What is simulated to explain a result is no measurement of the search, and stays as it is.
    vars(partitune.execution.choice)["choose_driver"] = lambda problem, *_: chaos_search.SlowSimulator(problem)
    sys.exit(main(sys.argv[1:]))

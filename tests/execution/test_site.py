"""A site's own class: from the named file only, on any worker, and with one clear message where it is wrong."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from partitune.candidate import Candidate, Outcome
from partitune.errors import SpecError
from partitune.execution.choice import choose_driver
from partitune.execution.driver import Driver, run
from partitune.planning.resolve import resolve
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.fake_setup import SPACE

CLASS = """
from dataclasses import dataclass
from partitune.candidate import Measurement

@dataclass
class Mine:
    problem: object
    runner: object
    calls: int = 0

    def measure(self, candidate):
        self.calls += 1
        metrics = {"output_throughput_tok_s": float(candidate.partition[0] * self.calls)}
        return Measurement(metrics, (), self.runner.env["SITE"], 0, 0, 0, "measured by the site", simulated=False)
"""


def made(folder: Path, driver: str) -> Driver:
    space = SearchSpace.from_mapping(SPACE, source="fake.yaml")
    settings = {"name": "r", "driver": driver, "env": {"SITE": "here"}}
    return choose_driver(resolve(space), space, Runner.from_mapping(settings, source="r.yaml", folder=folder))


def test_it_measures_here_and_on_a_worker_that_has_no_copy_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CLASS)
    driver = made(tmp_path, "mine.py:Mine")
    sent = pickle.dumps(driver)
    (tmp_path / "mine.py").unlink()
    for one in (driver, pickle.loads(sent)):
        first, second = one.measure(Candidate((20, 16))), one.measure(Candidate((20, 16)))
        assert (first.metrics, first.regime) == ({"output_throughput_tok_s": 20.0}, "here")
        assert second.metrics == {"output_throughput_tok_s": 40.0}  # made once a worker


def test_what_it_raises_ends_one_candidate_and_no_search(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CLASS.replace("self.calls += 1", "raise KeyError('site')"))
    result = run(made(tmp_path, "mine.py:Mine"), Candidate((20, 16)))
    assert result.outcome is Outcome.FAILED
    assert "KeyError: 'site' (measure, line 12)" in result.reason


@pytest.mark.parametrize(
    ("text", "driver", "message"),
    [
        (CLASS, "mine.py:Mien", "has no class Mien; it has Mine"),
        (CLASS, "other.py:Mine", "other.py, where no file is; allowed: FILE.py:Class"),
        (CLASS, "../mine.py:Mine", "allowed: a file in the folder of this runner, or below"),
        (CLASS, "/etc/mine.py:Mine", "allowed: a file in the folder of this runner, or below"),
        ("class Mine:\n  def measure(self:\n", "mine.py:Mine", "mine.py:2 cannot be run: SyntaxError"),
        ("import os\n\nos.environ['NO_SUCH_NAME']\n", "mine.py:Mine", "mine.py:3 cannot be run: KeyError"),
        ("class Mine:\n  pass\n", "mine.py:Mine", "Mine of "),
        ("Mine = 3\n", "mine.py:Mine", "has no class Mine; it has none"),
        ("#" * (1 << 20) + CLASS, "mine.py:Mine", "allowed: 1048576"),
    ],
)
def test_faults(tmp_path: Path, text: str, driver: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SpecError) as caught:
        made(tmp_path, driver)
    assert str(caught.value).startswith("r.yaml: driver: ")
    assert message in str(caught.value)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(CLASS)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").symlink_to(tmp_path / "outside.py")
    with pytest.raises(SpecError, match="allowed: a file in the folder of this runner"):
        made(tmp_path / "here", "mine.py:Mine")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not UTF-8"):
        made(tmp_path, "mine.py:Mine")

"""Twenty hard kills at random moments, over the search itself, its Ray workers and Ray's own processes.

Run with `pytest -m chaos`; takes about ten minutes. After every kill of the search the same command is started again.

With one worker the whole course is the same as that of a search nobody disturbed: same candidates, same order, same
figures. With several, what the sampler is told before it proposes depends on which finishes first, killed or not; there
the promise is about a space that is searched to its end: the same set of candidates.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from partitune.analysis.trial import Trial
from partitune.errors import StoreError
from partitune.store import Store
from tests.chaos_search import JOURNAL
from tests.ray_nodes import head, processes_with

pytestmark = pytest.mark.chaos
ROOT = Path(__file__).parent.parent
MARK = "PARTITUNE_CHAOS_MARK"
KILLS = 20
SPACE = """
kind: search_space
name: chaos
model: qwen3-8b
cluster: {nodes: 1, gpus_per_node: 2, gpu: L40S}
parallel: {tp: 1, pp: 2}
workload: {kind: random, requests: 16, prompt_tokens: 128, output_tokens: 16, concurrency: 8}
knobs:
  max_num_batched_tokens: [256, 384, 512, 768, 1024, 1536, 2048]
  max_num_seqs: [8, 16]
  async_scheduling: [true, false]
seeds:
  - 18,18
  - 19,17
"""
#: Where a victim's name stands in its command line.
VICTIMS = {"worker": "ray::", "raylet": "/raylet/raylet", "head": "gcs_server"}


@dataclass
class Search:
    """One study that is disturbed until it ends."""

    folder: Path
    workers: int
    arguments: tuple[str, ...]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None

    @property
    def database(self) -> Path:
        return self.folder / "results.db"

    def start(self) -> None:
        runner = self.folder / "runner.yaml"
        (self.folder / "chaos.yaml").write_text(SPACE)
        runner.write_text(f"kind: runner\nname: some\ndriver: simulator\nworkers: {self.workers}\n")
        command = [sys.executable, "-m", "tests.chaos_search", "search", "chaos.yaml", "--runner", str(runner)]
        command += ["--db", str(self.database), *self.arguments]
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), MARK: self.mark, JOURNAL: str(self.folder / "journal"),
        }  # fmt: skip
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=said, stderr=said)

    @property
    def over(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def stored(self) -> list[Trial]:
        if not self.database.exists():
            return []
        try:
            with Store.open(self.database, read_only=True) as store:
                return store.trials("chaos") if store.studies() else []
        except StoreError as error:
            if "has no partitune tables" not in str(error):
                raise
            return []  # they are only being made

    def said(self) -> str:
        return (self.folder / "said").read_text()[-3000:]

    def left(self) -> list[int]:
        """Processes this search started that live, itself included."""
        return [pid for pid in processes_with(f"{MARK}={self.mark}") if alive(pid)]

    def wait_until_nothing_is_left(self) -> None:
        # Ray's own agents try to reach the head they lost for a minute, and end then.
        deadline = time.monotonic() + 100
        while left := self.left():
            assert time.monotonic() < deadline, f"orphans: {[Path(f'/proc/{pid}/cmdline').read_text() for pid in left]}"
            time.sleep(0.2)

    def kill(self, victim: str, chance: random.Random) -> bool:
        """Kill one process of that kind; False when there is none now."""
        assert self.process is not None
        if victim == "driver":
            found = [self.process.pid]
        else:
            found = [pid for pid in self.left() if VICTIMS[victim] in command_of(pid)]
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)
        return True


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def course(trials: list[Trial]) -> list[tuple[int, str, str, dict[str, float]]]:
    """What a study consists of, without what differs by nature: times."""
    return [
        (
            trial.number,
            trial.origin,
            trial.result.candidate.digest,
            dict(trial.result.measurement.metrics) if trial.result.measurement else {},
        )
        for trial in trials
    ]


def undisturbed(folder: Path, arguments: tuple[str, ...]) -> list[Trial]:
    folder.mkdir()
    (folder / "chaos.yaml").write_text(SPACE)
    command = [sys.executable, "-m", "partitune", "search", "chaos.yaml", "--pool", "local", "--quiet", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=300)
    with Store.open(folder / "results.db", read_only=True) as store:
        return store.trials("chaos")


def measured_after_it_was_stored(search: Search, trials: list[Trial]) -> list[str]:
    stored_at = {trial.result.candidate.digest: trial.finished_at for trial in trials}
    lines = [line.split() for line in (search.folder / "journal").read_text().splitlines()]
    return [digest for digest, start in lines if datetime.fromtimestamp(float(start), UTC) > stored_at[digest]]


@pytest.fixture
def searches(tmp_path: Path) -> Iterator[list[Search]]:
    """Whatever a failing test leaves is ended, by its pid."""
    begun: list[Search] = []
    yield begun
    for search in begun:
        for pid in search.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def disturb(search: Search, kinds: list[str], chance: random.Random) -> int:
    """Kill until the study is finished, or `kinds` are spent and it could go on in peace. The number of kills."""
    done, before, bereft = 0, search.stored(), False
    search.start()
    deadline = time.monotonic() + 600
    while True:
        assert time.monotonic() < deadline, search.said()
        if search.over:
            # Ray ends the process it is loaded in when its node dies in the moment in which they connect.
            if not bereft or search.process is None or search.process.returncode == 0:
                return done
            search.start()
            bereft = False
        time.sleep(chance.uniform(0, 1.5))
        now = search.stored()
        assert course(now)[: len(before)] == course(before), "a finished trial changed or went"
        # Two kills that hit one candidate would, as promised, store it as lost: something has to finish in between.
        if kinds and (len(now) > len(before) or not now) and not search.over and search.kill(kinds[0], chance):
            victim = kinds.pop(0)
            done += 1
            before = now
            bereft |= victim in ("raylet", "head")
            if victim == "driver":
                bereft = False
                assert search.process is not None
                search.process.wait()
                search.start()


def test_twenty_kills_lose_nothing_repeat_nothing_and_leave_nothing(tmp_path: Path, searches: list[Search]) -> None:
    seed = int(os.environ.get("PARTITUNE_CHAOS_SEED") or time.time())
    print(f"PARTITUNE_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    kinds = ["driver"] * 8 + ["worker"] * 7 + ["raylet"] * 4 + ["head"]
    chance.shuffle(kinds)
    killed, rounds = 0, 0
    while killed < KILLS:
        alone = rounds % 2 == 0
        arguments = ("--trials", "60", "--seed", str(rounds)) if alone else ("--trials", "1000")
        folder = tmp_path / f"round-{rounds}"
        folder.mkdir()
        wanted = undisturbed(folder / "undisturbed", arguments)
        search = Search(folder, 1 if alone else 2, arguments)
        searches.append(search)
        spent = disturb(search, kinds, chance)
        killed, rounds = killed + spent, rounds + 1
        assert search.process is not None
        assert search.process.returncode == 0, search.said()
        search.wait_until_nothing_is_left()
        trials = search.stored()
        digests = [trial.result.candidate.digest for trial in trials]
        assert len(digests) == len(set(digests)), "a candidate was stored twice"
        assert measured_after_it_was_stored(search, trials) == []
        print(f"{search.workers} worker(s), {spent} kills: {len(trials)} trials")
        if alone:
            assert course(trials) == course(wanted)
        else:
            assert set(digests) == {trial.result.candidate.digest for trial in wanted}
    assert killed == KILLS


AWAY = """
import sys, time
from partitune.errors import ClusterError
from partitune.execution.pools.ray import RayPool
from partitune.candidate import Submission
from partitune.candidate import Candidate
from tests.scripted import ScriptedDriver
pool = RayPool(ScriptedDriver(), address=sys.argv[1], patience_s=3)
pool.start()
pool.submit(Submission(Candidate((1,), {"act": "ok"})))
while (result := pool.next_done(1)) is None:
    pass
print(result.outcome, flush=True)
try:
    while True:
        if pool.free_slots:
            pool.submit(Submission(Candidate((2,), {"act": "slow"})))
        result = pool.next_done(1)
        if result is not None and result.outcome == "lost":
            print(result.outcome, pool.free_slots, pool.description, flush=True)
            pool.submit(Submission(result.candidate))
except ClusterError as error:
    print("gave up:", error)
"""


def test_a_cluster_that_stays_away_is_waited_for_and_then_given_up() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        cluster = ExitStack()
        stack.callback(cluster.close)
        _, port = cluster.enter_context(head(Path(sys.executable), 1, {"PYTHONPATH": str(ROOT)}))
        address = f"127.0.0.1:{port}"
        command = [sys.executable, "-c", AWAY, address]
        search = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        )
        stack.callback(search.kill)
        assert search.stdout is not None
        assert search.stdout.readline() == "ok\n"
        cluster.close()
        said = search.stdout.read()
        assert search.wait() == 0
    assert f"lost 0 Ray at {address}: the " in said
    assert "does not answer; waiting for it" in said
    assert "and none came back in 0 minutes. Ray at " in said.partition("gave up: the ")[2]


BACK = """
import sys
from partitune.execution.pools.ray import RayPool
from partitune.candidate import Submission
from partitune.candidate import Candidate
from tests.scripted import ScriptedDriver
with RayPool(ScriptedDriver(), address=sys.argv[1], patience_s=120) as pool:
    first, second = Candidate((1,), {"act": "ok"}), Candidate((2,), {"act": "ok"})
    pool.submit(Submission(first))
    while (result := pool.next_done(1)) is None:
        pass
    print(result.outcome, flush=True)
    while pool.free_slots:
        pool.next_done(1)
    print(pool.description, flush=True)
    pool.submit(Submission(second))
    while (result := pool.next_done(1)) is None:
        pass
    print(result.outcome, result.candidate == second, pool.running, pool.description, flush=True)
"""


def test_a_named_cluster_that_returns_takes_what_waited_for_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        cluster = ExitStack()
        stack.callback(cluster.close)
        _, port = cluster.enter_context(head(Path(sys.executable), 1, {"PYTHONPATH": str(ROOT)}))
        address = f"127.0.0.1:{port}"
        command = [sys.executable, "-c", BACK, address]
        search = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        )
        stack.callback(search.kill)
        assert search.stdout is not None
        assert search.stdout.readline() == "ok\n"
        cluster.close()
        assert "does not answer; waiting for it" in search.stdout.readline()
        stack.enter_context(head(Path(sys.executable), 1, {"PYTHONPATH": str(ROOT)}, port))
        assert search.stdout.readline() == f"ok True 0 Ray at {address}\n"
        assert search.wait() == 0

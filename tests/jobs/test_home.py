"""Results on their way home: into the lines of a log, out of them, into a database."""

from __future__ import annotations

import base64
import json
import random
import string
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.analysis.final import FinalRun
from partitune.analysis.trial import Trial
from partitune.candidate import Candidate, Outcome
from partitune.errors import ClusterError, StoreError
from partitune.jobs.home import Home
from partitune.jobs.messages import KINDS, MAX_BYTES, PIECE, Decoder, EndMessage, encode
from partitune.jobs.sending import Sender
from partitune.store import Store, StudyState, StudyTerms
from tests.store_examples import SPEC, failed, filled, ok, record, record_repeat, record_screened, start
from tests.strategies import json_values

STUDY = StudyTerms("k3", SPEC, "vllm", "0.33.0", "simulator", 7, None)


def sent(database: Path) -> list[str]:
    lines: list[str] = []
    sender = Sender(database, lines.append)
    sender.send_new()
    sender.send_ends()
    return lines


def trial(number: int = 0) -> Trial:
    return Trial("k3", number, "sampler:0", datetime(2026, 11, 29, tzinfo=UTC), ok(knob=number))


def test_a_database_comes_home_whole(tmp_path: Path) -> None:
    with Store.open(filled(tmp_path / "job.db", trials=3)) as store:
        record(store, "k3", 3, failed(reason="no\nmemory \x1b[31m é"), "seed:0")
        record(store, "k3", 4, failed(Outcome.LOST, "node gone"), "sampler:1")
        record_screened(store, "k3", "exact:front-0", ok())
        for pair in (1, 2):
            record_repeat(store, "k3", FinalRun("verdict", pair, 3), ok(knob=pair))
        store.finish("k3", StudyState.FINISHED)
    with Store.open(tmp_path / "home.db") as store:
        home = Home(store)
        assert "".join(map(home.take, sent(tmp_path / "job.db"))) == ""
        home.leave()
        assert home.trials == {"k3": 5}
    with Store.open(tmp_path / "home.db", read_only=True) as there, Store.open(tmp_path / "job.db") as here:
        assert there.trials("k3") == here.trials("k3")
        assert there.screened("k3") == here.screened("k3") != []
        assert there.repeats("k3") == here.repeats("k3") != []
        assert there.study("k3").spec == here.study("k3").spec
        assert there.study("k3").state is StudyState.FINISHED
        assert there.study("k3").random_seed == 7


def test_what_is_new_is_sent_once(tmp_path: Path) -> None:
    lines: list[str] = []
    sender = Sender(tmp_path / "job.db", lines.append)
    sender.send_new()  # nothing there yet
    with Store.open(tmp_path / "job.db") as store:
        start(store)
        for number in range(4):
            record(store, "k3", number, ok(knob=number), "sampler:0")
            sender.send_new()
    decoder = Decoder()
    found = [message for line in lines if (message := decoder.feed(line)[1])]
    assert [m.number if isinstance(m, Trial) else KINDS[type(m)] for m in found] == ["study", 0, 1, 2, 3]


def test_coming_home_twice_changes_nothing_and_goes_on(tmp_path: Path) -> None:
    lines = sent(filled(tmp_path / "job.db"))
    with Store.open(tmp_path / "job.db") as store:
        record_repeat(store, "k3", FinalRun("selection", 1, 2), ok())
    lines = sent(tmp_path / "job.db")
    for part in (lines[:2], lines, lines):
        with Store.open(tmp_path / "home.db") as store:
            home = Home(store)
            for line in part:
                home.take(line)
            home.leave()
            assert store.study("k3").state is StudyState.INTERRUPTED  # a killed search never said that it ended
    with Store.open(tmp_path / "home.db") as store:
        assert [record.number for record in store.trials("k3")] == [0, 1, 2]


def test_a_study_that_means_something_else_is_not_mixed(tmp_path: Path) -> None:
    lines = sent(filled(tmp_path / "job.db"))
    with Store.open(tmp_path / "home.db") as store:
        store.create_study(StudyTerms("k3", {**SPEC, "model": "other"}, "vllm", "0", "simulator", 7, None))
        record(store, "k3", 0, ok(), "default")
        with pytest.raises(StoreError, match=r"another spec:\n  model: 'other' -> 'kimi-k3'"):
            Home(store).take(lines[0])


def test_a_trial_of_a_study_nobody_announced_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "home.db") as store, pytest.raises(ClusterError, match="before the study itself"):
        Home(store).take(encode(trial())[0])


def test_text_and_results_are_told_apart_even_on_one_line() -> None:
    home = Home()
    (line,) = encode(EndMessage("k3", StudyState.FINISHED))
    log = ["loading\n", f"trial 3: half a line{line}", "\n", "a@partitune.example wrote\n", "no line end"]
    assert "".join(map(home.take, log)) == "loading\ntrial 3: half a line\na@partitune.example wrote\nno line end"


def test_ten_megabytes_come_through_in_pieces() -> None:
    letters = random.Random(0).choices(string.ascii_letters + string.digits, k=10 * 2**20)
    message = Trial("k3", 0, "seed:0", datetime(2026, 11, 29, tzinfo=UTC), failed(reason="".join(letters)))
    lines = encode(message)
    assert max(map(len, lines)) <= PIECE + len("@partitune+ \n")
    assert sum(map(len, lines)) < 1.1 * len(letters)
    decoder = Decoder()
    found = [decoder.feed(line)[1] for line in lines]
    assert found == [None] * (len(lines) - 1) + [message]


def packed(value: object) -> str:
    return "@partitune " + base64.b64encode(zlib.compress(json.dumps(value).encode())).decode() + "\n"


TRIAL = json.loads(
    zlib.decompress(base64.b64decode("".join(line.split()[1] for line in encode(trial()))))  # as it is sent
)


def test_a_log_of_an_earlier_release_keeps_its_flags_and_its_layout() -> None:
    candidate = {"partition": [47, 46], "knobs": {"layout": "tp1-pp2", "max_num_seqs": 64}}
    sent_then = {**TRIAL, "result": {**TRIAL["result"], "candidate": candidate}}
    del sent_then["revision"]
    message = Decoder().feed(packed(sent_then))[1]
    assert isinstance(message, Trial)
    assert message.result.candidate == Candidate((47, 46), {"max_num_seqs": 64}, "tp1-pp2")
    assert replace(message, result=ok(knob=0)) == trial()


@pytest.mark.parametrize(
    "line",
    [
        "@partitune AAAA\n",
        "@partitune A\n",
        encode(trial())[0].replace(" ", " AAAA"),
        encode(trial())[0][:-80] + "\n",
        packed([]),
        packed({"kind": "shell"}),
        packed({**TRIAL, "number": "x"}),
        packed({**TRIAL, "number": 2**63}),
        packed({**TRIAL, "origin": "a\0"}),
        packed({**TRIAL, "finished_at": "0001-01-01T00:00:00Z"}),
        packed({**TRIAL, "finished_at": "2026-11-29T00:00:00"}),
        packed({**TRIAL, "result": {**TRIAL["result"], "outcome": "great"}}),
        packed({**TRIAL, "result": {**TRIAL["result"], "candidate": {"partition": "12"}}}),
        "@partitune " + base64.b64encode(zlib.compress(b"[" * (MAX_BYTES + 1))).decode() + "\n",
        packed(json.loads("[" * 500 + "]" * 500)),
    ],
)
def test_a_damaged_line_is_one_error(line: str) -> None:
    with pytest.raises(ClusterError, match="damaged message"):
        Home().take(line)


def test_a_message_without_end_does_not_fill_the_memory() -> None:
    home, piece = Home(), "@partitune+ " + "A" * (1 << 20) + "\n"
    with pytest.raises(ClusterError, match="more than 16 MiB"):
        "".join(map(home.take, [piece] * 64))


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every value in a message."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, item in inner for place in places(item, (*path, key))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with Store.open(tmp_path_factory.mktemp("home") / "home.db") as store:
        home = Home(store)
        home.take(encode(STUDY)[0])
        yield home


@given(st.sampled_from(places(TRIAL)), json_values(st.text(), keys=st.text(), most=3, leaves=5))
def test_whatever_a_cluster_answers_is_recorded_or_an_error_of_ours(
    home: Home, place: tuple[str | int, ...], value: object
) -> None:
    message = json.loads(json.dumps(TRIAL))
    *parents, last = place
    inner = message
    for key in parents:
        inner = inner[key]
    inner[last] = value
    try:
        home.take(packed(message))
    except (ClusterError, StoreError) as error:
        assert str(error)  # noqa: PT017 - either is right

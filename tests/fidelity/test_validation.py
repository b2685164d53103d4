"""`partitune validate`: what it holds the predictions against, and the tests of record."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from partitune.cli import main
from partitune.fidelity.layers import layer_points
from partitune.fidelity.pair_errors import pair_table
from partitune.fidelity.pairs import Pair, published_pairs
from partitune.fidelity.points import Errors
from partitune.fidelity.servers import Server, server_points
from partitune.fidelity.set_ups import shipped_rows
from partitune.fidelity.validation import server_tables

DATA = Path(__file__).parent.parent.parent / "partitune" / "fidelity" / "data"


def test_errors_are_shares_with_a_median_and_a_90th_percentile() -> None:
    found = Errors.of([-0.1] * 6 + [0.2] * 4 + [0.9])
    assert (found.points, found.bias) == (11, -0.1)
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.2)


def test_all_published_points_ship_and_say_where_they_come_from() -> None:
    """462 servers, counted in the source by its own `wc`; 19 set-ups of 19 steps."""
    servers, layers = list(shipped_rows("whole_servers.csv")), list(shipped_rows("layer_times.csv"))
    assert len(servers) == 462
    assert len(layers) == 361 == 19 * len({row["set_up"] for row in layers})
    for name in ("whole_servers.csv", "layer_times.csv"):
        assert "Copyright NVIDIA CORPORATION & AFFILIATES, Apache-2.0" in (DATA / name).read_text()
        assert f"partitune/fidelity/data/{name}" in (DATA.parents[2] / "NOTICE").read_text()


def test_measured_kernels_say_the_layer_times_better_than_the_roofline() -> None:
    points = list(layer_points())
    kernels, roofline = Errors.of(p.error for p in points), Errors.of(p.roofline_error for p in points)
    assert kernels.median < 0.04 < roofline.median
    llama = [p for p in points if (p.model, p.gpu) == ("meta-llama/Meta-Llama-3.1-70B", "A100-80GB")]
    assert Errors.of(p.error for p in llama).p90 < 0.06 < Errors.of(p.roofline_error for p in llama).median


def test_a_sample_of_whole_servers_keeps_the_limits_of_record(tmp_path: Path) -> None:
    """Every 44th; `partitune validate servers` runs all and takes minutes."""
    rows = list(server_points(tmp_path, 44))
    assert len([row for row in rows if isinstance(row, Server)]) > 8
    verdict = server_tables(rows)[0].verdict
    assert verdict is not None
    assert verdict.passed, verdict.text


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    return list(published_pairs(tmp_path_factory.mktemp("models")))


def test_signs_of_pairs_with_a_stated_configuration_are_right(pairs: list[Pair]) -> None:
    stated = [pair for pair in pairs if pair.stated]
    assert len(stated) >= 8
    assert not [pair.name for pair in stated if not pair.right]


def test_what_is_off_has_a_cause_and_no_cause_is_left_of_what_is_not(pairs: list[Pair]) -> None:
    known = {cause["name"] for cause in yaml.safe_load((DATA / "causes.yaml").read_text()) if cause["table"] == "pairs"}
    off = {pair.name for pair in pairs if not pair.right or (pair.error is not None and abs(pair.error) > 0.15)}
    assert off == known


def test_sizes_keep_the_limit_of_record_on_sources_that_nothing_was_fitted_to(pairs: list[Pair]) -> None:
    verdict = pair_table(pairs).verdict
    assert verdict is not None
    assert verdict.passed, verdict.text
    assert not pair_table([pair for pair in pairs if pair.part == "fit"]).verdict.passed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("better", "found", "right"),
    [
        ("b", 1.2, True),
        ("b", 0.9, False),
        ("a", 0.9, True),
        ("same", 1.01, True),
        ("same", 1.05, False),
        ("b", None, False),
    ],
)
def test_who_wins_depends_on_what_is_better(better: str, found: float | None, right: bool) -> None:
    pair = Pair("", "", "output_throughput_tok_s", better, "fit", None, found)  # type: ignore[arg-type]
    assert pair.right is right
    if better != "same" and found is not None:
        slower = Pair("", "", "ttft_mean_ms", better, "fit", None, found)  # type: ignore[arg-type]
        assert slower.right is not right


@pytest.mark.parametrize(
    ("words", "said"),
    [(["planets"], "'planets' is not a table; allowed: layers, servers, pairs"), (["--every", "0"], "1 or more")],
)
def test_bad_words_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *words]) == 2
    assert said in capsys.readouterr().err

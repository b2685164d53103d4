"""Candidates that name their layout on real starts: what runs is what was asked, on the GPUs that were asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from partitune.candidate import Candidate, Outcome
from partitune.cli import main
from partitune.engines.installed_flags import read_help
from partitune.errors import Refused, SpecError
from partitune.execution.choice import choose_driver
from partitune.execution.command import command_for
from partitune.execution.driver import RULES_CONSTRAINT, run
from partitune.execution.ray.groups import RayGroup
from partitune.execution.server.setup import Setup
from partitune.execution.server.setup_checks import all_commands, setup_for
from partitune.planning.resolve import resolve
from partitune.spec.metrics import COST
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import Store
from tests.engine_output import recorded
from tests.fake_engine import ACT, PROGRAM
from tests.fake_setup import LIMITS, SPACE, Bench
from tests.ray_nodes import processes_with

FOUR = {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S", "gpu_hour_price_usd": 2.0}
TWO_BY_TWO = {"nodes": 2, "gpus_per_node": 2, "gpu": "L40S"}
PIPELINES = {"tp": 1, "pp": 2, "layouts": [{"tp": 1, "pp": 2}, {"tp": 1, "pp": 4}]}
HOSTS = ("10.0.0.1", "10.0.0.2")
RUNNER = {
    "kind": "runner", "name": "runner", "driver": "vllm", "engine_command": list(PROGRAM), "limits_s": dict(LIMITS),
    "benchmark": {"command": list(PROGRAM), "warmup_requests": 2},
}  # fmt: skip
TWO_STAGES = Candidate((20, 16), {}, "tp1-pp2")
FOUR_STAGES = Candidate((10, 8, 8, 10), {}, "tp1-pp4")


def spec(**space: object) -> SearchSpace:
    return SearchSpace.from_mapping({**SPACE, "cluster": FOUR, "parallel": PIPELINES, **space}, source="fake.yaml")


def runner(**given: object) -> Runner:
    return Runner.from_mapping({**RUNNER, **given}, source="runner.yaml")


def setup_of(found: SearchSpace, **given: object) -> Setup:
    return setup_for(resolve(found), found, runner(**given))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    assert made.orphans() == []
    assert made.records() == []


def test_a_search_measures_every_layout_as_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    budget = {"trials": 4, "screen": 0, "finalists": 0}
    whole = {**SPACE, "cluster": FOUR, "parallel": PIPELINES, "budget": budget}
    Path("fake.yaml").write_text(yaml.safe_dump(whole))
    Path("runner.yaml").write_text(yaml.safe_dump(RUNNER))
    assert main(["search", "fake.yaml", "--runner", "runner.yaml", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["trials"]["ok"] == 4
    with Store.open("results.db", read_only=True) as store:
        results = [trial.result for trial in store.trials("fake")]
    assert {result.candidate.layout for result in results} == {"tp1-pp2", "tp1-pp4"}
    for result in results:
        assert result.measurement is not None
        # The fake engine's workers say what they hold: 0.25 GiB a layer of the partition in their environment.
        held = [round(row.weights_bytes / 2**30 / 0.25) for row in result.measurement.stages]
        assert tuple(held) == result.candidate.partition
        gpus = {"tp1-pp2": 2, "tp1-pp4": 4}[str(result.candidate.layout)]
        metrics = result.measurement.metrics
        assert metrics[COST] == pytest.approx(gpus * 2.0 * 1e6 / metrics["output_throughput_tok_s"] / 3600)
    started = {str(log).split("/")[-2].split("-")[0]: log.read_text() for log in Path("state").rglob("node0.log")}
    for result in results:
        stages = len(result.candidate.partition)
        assert f"rank {stages - 1} in world size {stages} is assigned as" in started[result.candidate.digest]
    assert processes_with(str(tmp_path / "state")) == []


def test_another_partition_than_asked_is_found_on_any_layout(bench: Bench) -> None:
    driver = bench.driver(setup_of(spec()))
    wrong = run(driver, replace(FOUR_STAGES, flags={ACT: "wrong-partition"}))
    assert wrong.outcome is Outcome.FAILED
    assert "the partition is 11,8,8,9, asked for was 10,8,8,10" in wrong.reason
    unknown = run(driver, Candidate((12, 12, 12), {}, "tp1-pp3"))
    assert (unknown.outcome, set(unknown.constraints)) == (Outcome.INFEASIBLE, {RULES_CONSTRAINT})
    assert "layout tp1-pp3 is not one of this search space: tp1-pp2, tp1-pp4" in unknown.reason


def test_nodes_follow_the_layout_and_the_slot_is_the_cluster() -> None:
    found = spec(cluster=TWO_BY_TWO)
    made = setup_of(found, nodes={"start": "ray"})
    for candidate, count in ((TWO_STAGES, 1), (FOUR_STAGES, 2)):
        own = made.on_layout_of(candidate)
        assert (own.server.groups, own.reservation.gpus, own.reservation.nodes, own.reservation.gpus) == (
            count,
            2,
            2,
            2,
        )
        plan = own.server.launch(candidate, trial="t", hosts=HOSTS[:count], port=8100, rendezvous_port=29600)
        assert plan.stage_nodes == ((0, 0) if count == 1 else (0, 0, 1, 1))
        for process in plan.processes:
            assert process.env["VLLM_PP_LAYER_PARTITION"] == ",".join(map(str, candidate.partition))
            assert process.argv[process.argv.index("--pipeline-parallel-size") + 1] == str(len(candidate.partition))
            assert ("--nnodes" in process.argv) == (count == 2)
            assert "--layout" not in process.argv
    driver = choose_driver(resolve(found), found, runner(nodes={"start": "ray"}))
    assert driver.group == RayGroup(2, 2)
    with pytest.raises(Refused, match="layout tp1-pp4 is not one of this search space: only tp1-pp2"):
        setup_of(spec(parallel={"tp": 1, "pp": 2})).on_layout_of(FOUR_STAGES)
    with pytest.raises(ValueError, match="commands for tp1-pp2 were asked about tp1-pp4"):
        made.server.check(FOUR_STAGES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nodes.start: found local, and the search space stands on 2 nodes"),
        (
            {"nodes": {"start": "ray", "hosts": ["10.0.0.1"]}},
            "found 1 addresses; allowed: 2, one a node of the cluster, as layouts vary",
        ),
    ],
)
def test_a_runner_that_cannot_hold_the_largest_layout_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        setup_of(spec(cluster=TWO_BY_TWO), **given)
    assert message in str(caught.value)


def test_data_ranks_over_nodes_are_refused_where_the_engine_would_place_them_otherwise() -> None:
    """vLLM 0.32 config/parallel.py: without --data-parallel-size-local every replica spans all of --nnodes."""
    apart = {"tp": 2, "pp": 1, "dp": 2}
    ray = {"nodes": {"start": "ray"}}
    found = spec(cluster=TWO_BY_TWO, parallel={"tp": 1, "pp": 2, "layouts": [apart]})
    candidate = Candidate((36,), {}, "tp2-pp1-dp2")
    with pytest.raises(Refused, match="data ranks of vLLM over 2 nodes are not started by partitune"):
        setup_of(found, **ray).on_layout_of(candidate).server.check(candidate)
    with pytest.raises(SpecError, match=r"parallel\.dp: data ranks of vLLM over 2 nodes"):
        setup_of(spec(cluster=TWO_BY_TWO, parallel=apart), **ray)
    together = {"tp": 1, "pp": 1, "dp": 2}
    on_one = setup_of(spec(cluster=TWO_BY_TWO, parallel={"tp": 1, "pp": 2, "layouts": [together]}), **ray)
    candidate = Candidate((36,), {}, "tp1-pp1-dp2")
    assert on_one.on_layout_of(candidate).server.check(candidate).layout.dp == 2


def test_unlike_nodes_need_their_addresses_though_the_first_layout_stands_on_one() -> None:
    unlike = {"nodes": 2, "gpus_per_node": 2, "gpu": ["L40S", "L40S", "L4", "L4"]}
    with pytest.raises(SpecError, match="in the order of the stages, as their GPUs differ"):
        setup_of(spec(cluster=unlike), nodes={"start": "ray"})
    assert setup_of(spec(cluster=unlike), nodes={"start": "ray", "hosts": list(HOSTS)}).reservation.nodes == 2


def test_the_flags_of_every_layout_are_asked_of_the_installed_engine() -> None:
    made = setup_of(spec(parallel={"tp": 1, "pp": 4, "layouts": "auto"}), engine_command=["vllm"])
    commands = list(all_commands(made))
    sizes = {words[words.index("--pipeline-parallel-size") + 1] for words in commands}
    assert {"1", "2", "3", "4"} <= sizes
    assert any("--data-parallel-size" in words for words in commands)
    read_help(recorded("serve_help.txt"), "vllm serve --help=all").check(commands, "vllm")


def test_a_command_is_told_the_size_of_the_layout(bench: Bench) -> None:
    found = spec(cluster=TWO_BY_TWO)
    settings = {
        "kind": "runner",
        "name": "r",
        "driver": "command",
        "command": ["run", "{nodes}x{gpus_per_node}", "{result}"],
    }
    made = setup_for(resolve(found), found, Runner.from_mapping(settings, source="r.yaml"))
    driver = bench.driver()
    with driver.source.nodes(1) as (node,):
        for candidate, sizes in ((TWO_STAGES, "1x2"), (FOUR_STAGES, "2x2")):
            plan, _ = command_for(made.on_layout_of(candidate).loads[0], candidate, node, "t", 1)
            assert plan.processes[0].argv[:2] == ("run", sizes)


def test_one_candidate_of_another_layout_is_launched_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fake.yaml").write_text(yaml.safe_dump({**SPACE, "cluster": FOUR}))
    Path("runner.yaml").write_text(yaml.safe_dump(RUNNER))
    words = ["launch", "fake.yaml", "--runner", "runner.yaml", "--dry-run", "--json"]
    assert main([*words, "--set", "layout=tp1-pp4", "--partition", "10,8,8,10"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (server,) = plan["processes"]
    assert server["env"]["VLLM_PP_LAYER_PARTITION"] == "10,8,8,10"
    assert server["argv"][server["argv"].index("--pipeline-parallel-size") + 1] == "4"

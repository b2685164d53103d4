"""Several loads judged together: the arithmetic by hand, everything else against the loads one by one."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest

from partitune.analysis.limits import Distance, PartDistances, distance, distances
from partitune.candidate import Candidate, Measurement, Outcome
from partitune.cli import main
from partitune.errors import OutOfMemory, SpecError
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.planner import EXACT_PLAN, Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.throughput import predicted_output_tok_s
from partitune.planning.workload_mix import Load, Mix, Over
from partitune.search.space import Space
from partitune.simulation.request import Request
from partitune.spec.metrics import COST, by_load
from partitune.spec.search_space import SearchSpace

CHAT = {"kind": "random", "requests": 24, "prompt_tokens": 64, "output_tokens": 48, "concurrency": 12}
LONG = {"kind": "random", "requests": 6, "prompt_tokens": 3000, "output_tokens": 16, "concurrency": 3}
LIMIT = "ttft_p99_ms"


def space(workload: dict[str, Any], **changes: Any) -> SearchSpace:
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S", "gpu_hour_price_usd": 2.0}
    plain = {"name": "m", "model": "qwen3-8b", "cluster": cluster, "parallel": {"tp": 1, "pp": 2}}
    return SearchSpace.from_mapping({**plain, "workload": workload, **changes}, source="m.yaml")


def mix(over: str = "mean", weight: float = 3.0, long: dict[str, Any] = LONG) -> dict[str, Any]:
    weights = {"weight": weight} if over == "mean" else {}
    return {"kind": "mix", "over": over, "parts": [{**CHAT, "name": "chat", **weights}, {**long, "name": "long"}]}


def measured(workload: dict[str, Any], partition: tuple[int, ...] = (18, 18), **changes: Any) -> Measurement:
    return SimulatorDriver(resolve(space(workload, **changes))).measure(Candidate(partition))


class TestArithmetic:
    LOADS = tuple(Load((Request("0", 0.0, 1, 1),), 1, name, weight) for name, weight in (("a", 3.0), ("b", 1.0)))
    SEEN = ({"output_throughput_tok_s": 100.0, LIMIT: 80.0, "batches": 4.0, "tpot_p50_ms": 5.0},
            {"output_throughput_tok_s": 20.0, LIMIT: 400.0, "batches": 8.0})  # fmt: skip

    def test_a_mean_is_weighted_by_time(self) -> None:
        found = Mix(self.LOADS).combined(self.SEEN)
        assert found == {"output_throughput_tok_s": 80.0, LIMIT: 160.0, "batches": 5.0, "tpot_p50_ms": 5.0}

    def test_the_worst_is_the_slowest_and_the_latest_whichever_part_has_it(self) -> None:
        found = Mix(self.LOADS[:1] * 2, Over.WORST).combined(self.SEEN)
        assert found == {"output_throughput_tok_s": 20.0, LIMIT: 400.0, "batches": 6.0, "tpot_p50_ms": 5.0}

    def test_one_load_is_left_as_it_is(self) -> None:
        assert Mix(self.LOADS[:1]).combined(self.SEEN[:1]) == self.SEEN[0]
        assert Mix(self.LOADS[:1]).by_part(self.SEEN[:1]) == {}

    def test_parts_stand_beside_the_whole_and_can_be_taken_apart(self) -> None:
        both = Mix(self.LOADS)
        whole, parts = by_load({**both.combined(self.SEEN), **both.by_part(self.SEEN)})
        assert whole == both.combined(self.SEEN)
        assert parts == {"a": self.SEEN[0], "b": self.SEEN[1]}

    def test_a_data_rank_gets_its_share_of_every_load(self) -> None:
        load = Load(tuple(Request(str(i), 0.0, 1, 1) for i in range(5)), 5, "a", 2.0).of_rank(2)
        assert [request.id for request in load.requests] == ["0", "2", "4"]
        assert (load.concurrency, load.name, load.weight) == (3, "a", 2.0)


@pytest.mark.parametrize(
    ("over", "combined"),
    [("mean", lambda name, a, b: (3 * a + b) / 4), ("worst", lambda name, a, b: (min if "tok" in name else max)(a, b))],
)  # fmt: skip
def test_a_simulated_mix_is_what_its_loads_are_one_by_one(over: str, combined: Any) -> None:
    both, chat, long = measured(mix(over)), measured(CHAT), measured({**LONG})
    whole, parts = by_load(both.metrics)
    for name in ("output_throughput_tok_s", "total_throughput_tok_s", LIMIT, "tpot_p50_ms", "e2e_mean_ms"):
        assert (parts["chat"][name], parts["long"][name]) == (chat.metrics[name], long.metrics[name])
        assert whole[name] == pytest.approx(combined(name, chat.metrics[name], long.metrics[name]), rel=1e-12)
    # 2 GPUs at 2 $ an hour, and what the mix makes in it; what a part would cost alone is its own.
    assert whole[COST] == pytest.approx(4e6 / 3600 / whole["output_throughput_tok_s"])
    assert parts["chat"][COST] == chat.metrics[COST]
    assert whole["kv_tokens"] == chat.metrics["kv_tokens"]
    for stage, one, other in zip(both.stages, chat.stages, long.stages, strict=True):
        assert stage.compute_s == pytest.approx(one.compute_s + other.compute_s)
        assert stage.wait_s == pytest.approx(one.wait_s + other.wait_s)
        assert min(one.busy_fraction, other.busy_fraction) < stage.busy_fraction
        assert stage.busy_fraction < max(one.busy_fraction, other.busy_fraction)


def test_limits_and_goodput_hold_for_the_mix_and_not_for_a_part() -> None:
    chat, long = measured(CHAT).metrics[LIMIT], measured(LONG).metrics[LIMIT]
    assert chat < long
    between = {LIMIT: 0.5 * (chat + 3 * long) / 2}  # kept by the mean of 3 to 1, missed by `long`
    assert (3 * chat + long) / 4 < between[LIMIT] < long
    candidate = Candidate((18, 18))
    mean, worst = (
        run(SimulatorDriver(resolve(space(mix(over), slo=between))), candidate) for over in ("mean", "worst")
    )
    assert mean.outcome is Outcome.OK
    assert worst.outcome is Outcome.INFEASIBLE
    assert worst.constraints[LIMIT] == pytest.approx(long / between[LIMIT] - 1)
    good = measured(mix(), goodput={"ttft_ms": (chat + long) / 2})
    whole, parts = by_load(good.metrics)
    assert parts["chat"]["goodput_req_s"] == pytest.approx(parts["chat"]["request_throughput_req_s"])
    assert parts["long"]["goodput_req_s"] < parts["long"]["request_throughput_req_s"]
    assert whole["goodput_req_s"] == pytest.approx(
        (3 * parts["chat"]["goodput_req_s"] + parts["long"]["goodput_req_s"]) / 4
    )


def test_a_load_that_cannot_run_is_named() -> None:
    tight: dict[str, Any] = {"engine": {"name": "sglang", "version": "0.5.23", "flags": {"max_total_tokens": 2048}}}
    with pytest.raises(OutOfMemory) as alone:
        measured(LONG, **tight)
    with pytest.raises(OutOfMemory, match=r"^load long: ") as both:
        measured(mix(), **tight)
    assert str(both.value) == f"load long: {alone.value}"
    assert both.value.excess == alone.value.excess


class TestPlanner:
    """Prefill is dearer in the middle and decode at the end of this chain, so the loads pull apart."""

    CLUSTER: ClassVar[dict[str, Any]] = {"nodes": 1, "gpus_per_node": 2, "gpu": ["L40S", "RTX-3090"]}

    def planner(self, workload: dict[str, Any]) -> Planner:
        posed = resolve(space(workload, cluster=self.CLUSTER))
        return Planner(posed, stage_bounds(2, 36), ())

    def slowest(self, workload: dict[str, Any], partition: tuple[int, ...]) -> float:
        return float(self.planner(workload).stage_seconds(partition, {}).max())

    def test_a_load_alone_and_a_mix_of_it_with_itself_have_one_plan(self) -> None:
        alone = self.planner(LONG)
        twice = self.planner({"kind": "mix", "parts": [{**LONG, "name": "a"}, {**LONG, "name": "b", "weight": 5}]})
        assert alone.partition(EXACT_PLAN, {}) == twice.partition(EXACT_PLAN, {})
        split = (18, 18)
        assert twice.stage_seconds(split, {}) == pytest.approx(2 * alone.stage_seconds(split, {}))
        assert twice.fluid_bound_s({}) == pytest.approx(2 * alone.fluid_bound_s({}))
        assert twice.prompt_s(split, {}) == pytest.approx(alone.prompt_s(split, {}))

    def test_the_plan_goes_from_one_loads_to_the_others_as_the_weight_grows(self) -> None:
        first = [self.planner(load).partition(EXACT_PLAN, {})[0] for load in (LONG, CHAT)]
        assert abs(first[0] - first[1]) > 1
        plans = [self.planner(mix(weight=weight)).partition(EXACT_PLAN, {})[0] for weight in (1e-6, 1, 1e6)]
        assert plans == sorted(plans, reverse=first[0] > first[1])
        assert (plans[0], plans[-1]) == tuple(first)

    def test_how_many_requests_a_load_is_written_with_does_not_change_its_weight(self) -> None:
        more = {**LONG, "requests": 600}
        assert self.planner(mix()).partition(EXACT_PLAN, {}) == self.planner(mix(long=more)).partition(EXACT_PLAN, {})

    def test_where_the_worst_counts_the_load_with_fewest_tokens_a_second_decides(self) -> None:
        made = self.planner(mix("worst"))
        best = made.partition(EXACT_PLAN, {})
        output = {"chat": 24 * 48, "long": 6 * 16}
        slowest = {split: min(output["chat"] / self.slowest(CHAT, split), output["long"] / self.slowest(LONG, split))
                   for split in ((first, 36 - first) for first in range(1, 36))}  # fmt: skip
        assert len(best) == 2
        fitting = [split for split in slowest if made.allowed({})[0, 0, split[0]] and made.allowed({})[1, split[0], 36]]
        assert slowest[best] == pytest.approx(max(slowest[split] for split in fitting))
        assert made.fluid_bound_s({}) <= float(made.stage_seconds(best, {}).max())

    def test_the_closed_form_prediction_is_the_mean_of_the_parts(self) -> None:
        posed = resolve(space(mix()))
        chat, long = (predicted_output_tok_s(part, (18, 18), {}) for part in posed.parts)
        assert predicted_output_tok_s(posed, (18, 18), {}) == pytest.approx((3 * chat + long) / 4)


def test_layouts_are_ordered_for_the_mix() -> None:
    varied = space(mix(), parallel={"tp": 1, "pp": 2, "layouts": "auto"})
    posed = resolve(varied)
    proposals = list(Space(posed, varied).first_proposals())
    assert {"tp1-pp2", "tp2-pp1", "tp1-pp1-dp2"} <= {one.candidate.layout for one in proposals}
    both = next(one.candidate for one in proposals if one.candidate.layout == "tp1-pp1-dp2")
    found = SimulatorDriver(posed).measure(both).metrics
    assert found["long/request_throughput_req_s"] > 0
    assert [len(part.on("tp1-pp1-dp2").rank_load.requests) for part in posed.parts] == [12, 3]


def test_parts_are_drawn_apart_and_travel_to_workers() -> None:
    uneven = {**CHAT, "range_ratio": 0.5}
    posed: Problem = resolve(space({"kind": "mix", "parts": [{**uneven, "name": name} for name in "abc"]}))
    drawn = [part.load.requests for part in posed.parts]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))
    assert drawn[0] == resolve(space(uneven)).load.requests
    assert [part.load.requests for part in pickle.loads(pickle.dumps(posed)).parts] == drawn
    with pytest.raises(SpecError, match="found 'caht', did you mean chat"):
        resolve(space(mix())).part("caht")
    with pytest.raises(SpecError, match="none, as the workload is one load"):
        resolve(space(CHAT)).part("chat")


def test_a_broken_trace_of_a_part_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    trace = {"kind": "trace", "file": str(tmp_path / "bad.jsonl")}
    with pytest.raises(SpecError, match=r"m\.yaml: workload\.parts\[1\]\.file: .*bad\.jsonl"):
        resolve(space({"kind": "mix", "parts": [{**CHAT, "name": "chat"}, trace]}))


def test_every_part_has_a_distance_to_a_limit_of_its_own() -> None:
    posed, candidate = resolve(space(mix())), Candidate((18, 18))
    found = distances(posed, candidate)
    assert isinstance(found, PartDistances)
    assert found.parts == {part.load.name: distance(part, candidate) for part in posed.parts}
    assert isinstance(distances(posed.part("chat"), candidate), Distance)
    assert any(line.startswith("load long: most is lost to: ") for line in found.lines())
    assert list(found.to_json()["parts"]) == ["chat", "long"]


def test_explain_shows_the_mix_and_takes_one_load_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(json.dumps(space(mix()).resolved()))
    assert main(["explain", "m.yaml", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert list(whole["distance"]["parts"]) == ["chat", "long"]
    assert main(["explain", "m.yaml", "--part", "chat", "--trace", "t.json", "--json"]) == 0
    chat = json.loads(capsys.readouterr().out)
    name = "output_throughput_tok_s"
    assert chat["metrics"][name] == whole["metrics"][f"chat/{name}"] != whole["metrics"][name]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert main(["explain", "m.yaml"]) == 0
    assert "under every load of the mix" in capsys.readouterr().out
    assert main(["explain", "m.yaml", "--trace", "t.json"]) == 2
    assert "allowed: with --part (chat, long)" in capsys.readouterr().err
    assert main(["explain", "m.yaml", "--part", "chta"]) == 2
    assert "--part: found 'chta', did you mean chat?; allowed: chat, long" in capsys.readouterr().err


def test_a_search_over_a_mix_shows_every_part_of_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = space(mix(), knobs={"max_num_batched_tokens": [512, 2048]}, objectives=[COST], budget={"trials": 4})
    (tmp_path / "m.yaml").write_text(json.dumps(plain.resolved()))
    assert main(["search", "m.yaml", "--pool", "local", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["best"]["metrics"]
    assert best["output_throughput_tok_s"] == pytest.approx(
        (3 * best["chat/output_throughput_tok_s"] + best["long/output_throughput_tok_s"]) / 4
    )
    assert set(found["distance"]["parts"]) == {"chat", "long"}
    assert main(["show", "--trial", "0"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("metric"))
    assert head.split() == ["metric", "mix", "chat", "long"]


def test_what_needs_one_load_refuses_a_mix() -> None:
    posed = resolve(space(mix()))
    for name in ("load", "rank_load"):
        with pytest.raises(ValueError, match=r"ask each of Problem\.parts"):
            getattr(posed, name)

"""What every Engine promises. Subclasses give one and a version of it whose rules were read."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from partitune.costs.roofline import RooflineCosts
from partitune.engines.default_splits import SPLIT_RULES
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.engines.memory import KvCache
from partitune.engines.registry import ENGINES
from partitune.engines.rules import FLAG_RULES, SIZE_RULES
from partitune.engines.scheduling import Simulation
from partitune.engines.versions import parse_version
from partitune.errors import InfeasibleSpace, OutOfMemory, RunError, SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place
from partitune.models.reader import load_architecture
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads, Run

GIB = 1 << 30
LAYERS, STAGES = 36, 4  # of qwen3-8b
QWEN = load_architecture("qwen3-8b")
LAYOUTS = (Layout(), Layout(pp=STAGES), Layout(tp=2, pp=2), Layout(tp=4))
REQUESTS = tuple(Request(str(number), 0.1 * number, 100 + 7 * number, 5 + 3 * number) for number in range(12))


class EngineContract:
    engine: Engine
    version: str
    later_models: ClassVar[frozenset[str]] = frozenset()  # that this release does not know yet

    def deployment(self, layout: Layout = LAYOUTS[1], model: str = "qwen3-8b") -> Deployment:
        architecture = load_architecture(model)
        resolved = self.engine.resolved_layout(layout, architecture, self.version)
        return Deployment(self.version, architecture, resolved, gpu("H200"))

    def kv_cache(self, gib: float = 20.0) -> KvCache:
        start = self.deployment()
        return self.engine.kv_cache(start, self.partition(), [int(gib * GIB)] * STAGES)

    def partition(self) -> tuple[int, ...]:
        return self.engine.default_partition(LAYERS, STAGES, self.version)

    def run(self, *requests: Request, kv_cache: KvCache | None = None, concurrency: int | None = None) -> Run:
        placement = place(Machines(1, 8, [gpu("H200")]), Layout(tp=1, pp=STAGES))
        costs = RooflineCosts(QWEN, placement).stage_costs(self.partition())
        return self.engine.run(
            Simulation(requests or REQUESTS, self.deployment(), kv_cache or self.kv_cache(), costs, concurrency)
        )

    # what it is called
    def test_it_is_registered_under_its_name_and_goes_to_any_worker(self) -> None:
        assert ENGINES[self.engine.name] is self.engine
        assert pickle.loads(pickle.dumps(self.engine)).name == self.engine.name

    # rules
    def test_every_flag_takes_its_own_default(self) -> None:
        for name, flag in self.engine.launch.flags.items():
            assert flag.name == name
            assert name == name.lower()
            assert flag.default is None or not flag.fault(flag.default), name

    def test_default_flags_are_what_the_engine_takes(self) -> None:
        for layout in LAYOUTS:
            defaults = self.engine.default_flags(self.deployment(layout))
            for name, value in defaults.items():
                known = self.engine.launch.flags.get(name)
                assert known is None or not known.fault(value), name
            given = {name: value for name, value in defaults.items() if name in self.engine.launch.flags}
            same = replace(self.deployment(layout), flags=given)
            assert {**self.engine.effective_flags(same), **given} == self.engine.effective_flags(same)

    @pytest.mark.parametrize("rule", [None, *SPLIT_RULES])
    def test_a_default_split_gives_every_layer_to_a_stage(self, rule: str | None) -> None:
        for layers in range(1, 40):
            for stages in range(1, layers + 1):
                split = self.engine.default_partition(layers, stages, self.version, rule)
                assert (len(split), sum(split), min(split) >= 1) == (stages, layers, True)
        assert sum(self.engine.default_partition(9, 4, "0.0", rule)) == 9
        with pytest.raises(InfeasibleSpace):
            self.engine.default_partition(3, 4, self.version, rule)

    def test_versions_are_read_or_said_to_be_assumed(self) -> None:
        assert self.engine.versions_read.notes(parse_version(self.version)) == ()
        assert self.engine.notes("99.0.0")
        with pytest.raises(SpecError):
            self.engine.notes("latest")

    @pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-v3", "kimi-k3"])
    def test_it_takes_its_own_defaults(self, model: str) -> None:
        layouts = LAYOUTS if model == "qwen3-8b" else (Layout(tp=8, pp=4), Layout(tp=8, pp=2))
        for layout in layouts:
            start = self.deployment(layout, model)
            split = self.engine.default_partition(len(start.architecture.layers), layout.pp, self.version)
            lacking = ["architecture-missing"] if model in self.later_models else []
            for each in (start, replace(start, partition=split)):
                assert [violation.rule for violation in self.engine.check(each)] == lacking

    def test_what_it_refuses_has_a_rule_a_reason_and_a_source(self) -> None:
        flags = self.engine.launch.flags
        misspelt = max(flags, key=len)[:-1]
        wrong = (
            (replace(self.deployment(), flags={misspelt: 1}), FLAG_RULES),
            (self.deployment(Layout(tp=7)), SIZE_RULES),
            (self.deployment(Layout(pp=LAYERS + 1)), SIZE_RULES),
            (replace(self.deployment(), partition=(LAYERS,)), {"partition"}),
        )
        for start, rules in wrong:
            broken = self.engine.check(start)
            assert {one.rule for one in broken} & rules
            assert all(one.rule and one.message and one.source for one in broken)

    def test_a_layout_is_resolved_once(self) -> None:
        for model in ("qwen3-8b", "deepseek-v3"):
            architecture = load_architecture(model)
            for layout in (*LAYOUTS, Layout(tp=2, dp=4, expert_ranks=8)):
                resolved = self.engine.resolved_layout(layout, architecture, self.version)
                assert self.engine.resolved_layout(resolved, architecture, self.version) == resolved
                assert (resolved.name, resolved.gpus) == (layout.name, layout.gpus)

    # memory
    def test_memory_settings_are_sizes(self) -> None:
        for layout in LAYOUTS:
            settings = self.engine.memory_settings(self.deployment(layout))
            assert settings.max_num_batched_tokens >= 1
            assert settings.max_num_seqs >= 1
            assert 0 < settings.gpu_memory_utilization <= 1
            assert settings.graph_sizes >= 1

    def test_more_free_memory_is_never_less_cache(self) -> None:
        caches = [self.kv_cache(gib) for gib in (8, 8.5, 9, 12, 20, 40, 80)]
        assert [cache.tokens for cache in caches] == sorted(cache.tokens for cache in caches)
        for cache in caches:
            assert cache.num_blocks <= min(cache.stage_blocks)
            assert cache.limiting_stage in range(STAGES)
            assert all(size > 0 for size in cache.stage_block_bytes)
            assert all(left >= 0 for left in cache.stranded_bytes)

    def test_the_tightest_stage_decides(self) -> None:
        start, free = self.deployment(), [20 * GIB, 20 * GIB, 10 * GIB, 20 * GIB]
        tight = self.engine.kv_cache(start, self.partition(), free)
        assert tight.num_blocks == self.engine.kv_cache(start, self.partition(), [10 * GIB] * STAGES).num_blocks

    def test_the_solver_is_told_what_the_cache_will_hold(self) -> None:
        free = np.full((STAGES, LAYERS + 1, LAYERS + 1), 20.0 * GIB)
        blocks = self.engine.kv_blocks(self.deployment(), free)
        ends = np.cumsum(self.partition())
        alone = blocks[np.arange(STAGES), ends - self.partition(), ends]
        assert int(alone.min()) == self.kv_cache().num_blocks

    def test_no_memory_is_refused_and_says_how_far(self) -> None:
        assert self.engine.fewest_kv_blocks(self.deployment()) >= 1
        with pytest.raises(OutOfMemory) as caught:
            self.kv_cache(1e-6)
        assert caught.value.excess is not None
        assert caught.value.excess > 0

    # scheduling
    def test_a_flow_has_sizes_and_a_name(self) -> None:
        for layout in LAYOUTS:
            flow = self.engine.flow(self.deployment(layout))
            assert flow.name
            assert min(flow.cohorts, flow.step_tokens, flow.max_requests, flow.cohort_requests) >= 1

    def test_levers_are_flags_with_values_that_the_start_does_not_have(self) -> None:
        start = self.deployment()
        own, levers = self.engine.effective_flags(start), self.engine.levers(start, 16, 256)
        assert levers
        for name, values in levers.items():
            assert values
            assert own.get(name) not in values
            unknown = [
                rule for rule in self.engine.check(replace(start, flags={name: values[0]})) if rule.rule in FLAG_RULES
            ]
            assert not unknown

    def test_other_starts_pipeline_in_another_way(self) -> None:
        start = self.deployment()
        for other in self.engine.other_starts(start):
            moved = replace(start, version=other.version, runner=other.runner)
            assert self.engine.flow(moved).name != self.engine.flow(start).name

    def test_a_load_runs_and_no_token_is_lost(self) -> None:
        run = self.run()
        assert [times.id for times in run.requests] == [request.id for request in REQUESTS]
        assert sum(uses * batch.prefill_tokens for batch, uses in run.work) == sum(r.prompt_tokens for r in REQUESTS)
        assert sum(uses * batch.decode_tokens for batch, uses in run.work) == run.decode_tokens
        wanted = sum(request.output_tokens - 1 for request in REQUESTS)
        assert len(run.inter_token_s) == wanted
        assert run.decode_tokens >= wanted  # it may schedule a request once more before it knows that it ended
        assert run.preemptions == 0
        for request, times in zip(REQUESTS, run.requests, strict=True):
            assert request.arrival_s <= times.sent_s < times.first_token_s < times.finish_s
        assert len(run.compute_s) == len(run.transfer_s) == STAGES
        assert max(run.compute_s) <= run.makespan_s

    def test_the_same_load_runs_the_same_way(self) -> None:
        first, again = self.run(), self.run()
        assert (first.requests, first.makespan_s, first.work) == (again.requests, again.makespan_s, again.work)

    def test_one_request_at_a_time_takes_longer(self) -> None:
        burst = [replace(request, arrival_s=0.0) for request in REQUESTS]
        assert self.run(*burst, concurrency=1).makespan_s > self.run(*burst, concurrency=4).makespan_s

    def test_a_host_that_takes_no_time_is_never_slower(self) -> None:
        placement = place(Machines(1, 8, [gpu("H200")]), Layout(tp=1, pp=STAGES))
        costs = RooflineCosts(QWEN, placement).stage_costs(self.partition())
        free = self.engine.run(Simulation(REQUESTS, self.deployment(), self.kv_cache(), costs, overheads=Overheads()))
        assert free.makespan_s <= self.run().makespan_s

    def test_a_request_that_can_never_fit_is_a_graded_failure(self) -> None:
        with pytest.raises(RunError) as caught:
            self.run(Request("long", 0.0, 30_000, 9_000), kv_cache=replace(self.kv_cache(), num_blocks=20, tokens=20))
        assert getattr(caught.value, "excess", None)

    # recordings
    def test_what_is_no_recording_is_refused_by_name(self, tmp_path: Path) -> None:
        file = tmp_path / "some.json"
        file.write_text("{}")
        for record in self.engine.recordings.values():
            with pytest.raises(SpecError, match=r"some\.json"):
                record.verify(file)

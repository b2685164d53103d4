"""What every engine promises of its launch, its readout and its load generator. Subclasses give one and a version."""

from __future__ import annotations

import re
from dataclasses import replace

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.engines.launch import LoadRun, Start, Target
from partitune.engines.readout import Counters, FailureKind, LogReading, Phase
from partitune.execution.readout.bench_results import read_bench
from partitune.execution.readout.engine_readout import read_logs, read_metrics
from partitune.execution.readout.failure_causes import find_cause
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture
from partitune.spec.workload import RandomWorkload

HOSTS = ("10.0.0.1", "10.0.0.2")


class LaunchContract:
    engine: Engine
    version: str

    def deployed(self, **flags: FlagValue) -> Deployment:
        architecture, layout = load_architecture("qwen3-8b"), Layout(pp=4)
        resolved = self.engine.resolved_layout(layout, architecture, self.version)
        return Deployment(self.version, architecture, resolved, gpu("H200"), flags)

    def start(self, hosts: tuple[str, ...]) -> Start:
        return Start("partitune-t", hosts, 8123, 29777, 4, {}, patience_s=60.0)

    # launch
    def test_the_partition_is_in_the_environment_and_only_where_one_was_chosen(self) -> None:
        launch, deployment = self.engine.launch, self.deployed()
        assert launch.partition_env not in launch.environment(deployment)
        chosen = launch.environment(replace(deployment, partition=(12, 8, 8, 8)))
        assert chosen[launch.partition_env] == "12,8,8,8"
        assert launch.partition_env in launch.removed  # nobody's stale one may win
        assert launch.partition_env in self.engine.written_by_partitune

    def test_a_server_is_started_by_its_program_with_the_model_and_the_stages(self) -> None:
        launch = self.engine.launch
        words = launch.serve_arguments("some/model", self.deployed())
        assert words[: len(launch.program)] == launch.program
        assert "some/model" in words
        assert "4" in words

    def test_the_first_node_serves_and_every_node_of_several_knows_where_they_meet(self) -> None:
        launch = self.engine.launch
        for hosts in (HOSTS[:1], HOSTS):
            words = [launch.node_words(self.start(hosts), node) for node in range(len(hosts))]
            assert {"partitune-t", "8123", "127.0.0.1"} <= set(words[0])  # the load generator stands beside it
            assert all(any("29777" in word for word in of_node) == (len(hosts) > 1) for of_node in words)
            assert len(set(words)) == len(hosts)
            written = {word[2:].replace("-", "_") for of_node in words for word in of_node if word.startswith("--")}
            assert not written & (launch.flags.keys() - launch.own_flags - launch.placing_flags)

    def test_what_the_launcher_writes_is_no_key_of_a_search_space(self) -> None:
        launch = self.engine.launch
        assert not launch.own_flags & launch.scheduling_flags
        assert launch.scheduling_flags <= launch.flags.keys()

    def test_a_config_file_gives_back_every_flag(self) -> None:
        launch = self.engine.launch
        names = [name for name in sorted(launch.scheduling_flags) if launch.flags[name].default is not None]
        flags = {name: value for name in names if (value := launch.flags[name].default) is not None}
        taken = launch.read_config(launch.config_yaml(self.deployed(**flags)))
        assert {name: taken[name] for name in names if flags[name] is not False} == {
            name: value for name, value in flags.items() if value is not False
        }
        assert len(launch.config_commands("c.yaml", self.deployed(), 1)) == 1

    # load generator
    def test_its_load_generator_sends_the_load_that_is_asked_for(self) -> None:
        tool = self.engine.launch.load_generator
        load = RandomWorkload(requests=24, prompt_tokens=160, output_tokens=20, concurrency=8)
        target = Target("http://10.0.0.1:8123", self.engine.name, "some/model", "partitune-t", {})
        words = tuple(tool.words(load, target, LoadRun(24, 77, "/r/w.json")))
        assert {"http://10.0.0.1:8123", "some/model", "partitune-t", "160", "20", "8", "24", "77"} <= set(words)
        assert any("w.json" in word for word in words)

    def test_the_least_result_of_it_is_read(self) -> None:
        form = self.engine.launch.load_generator.format
        least = {"completed": 4, "input_tokens": 40, "output_tokens": 20, "duration_s": 2}
        text = "{" + ", ".join(f'"{form.keys[name][0]}": {value}' for name, value in least.items()) + "}"
        result = read_bench(form, text)
        assert (result.completed, result.metrics["output_throughput_tok_s"]) == (4, 10.0)

    # readout
    def test_every_pattern_is_one_and_every_phase_is_seen(self) -> None:
        words = self.engine.readout.logs
        amounts = (*words.missing_memory, words.memory_left, words.weights, words.stage, words.no_such_model)
        own = [sign for signs in words.failures.values() for sign in signs]
        for pattern in (*amounts, *own, *(sign for _, _, sign in words.facts), *(sign for _, sign in words.phases)):
            re.compile(pattern)
        assert {phase for phase, _ in words.phases} == set(Phase) - {Phase.SPAWN}
        assert set(words.failures) <= set(FailureKind)
        assert {name for name, _, _ in words.facts} <= set(LogReading.__dataclass_fields__)

    def test_what_is_no_log_says_nothing(self) -> None:
        for log in ("", "hello\n", "\x1b[31m\r\r"):
            assert find_cause([log], self.engine.readout) is None
            assert read_logs([log], self.engine.readout) == LogReading({}, {}, None, None, None, None)

    def test_its_counters_are_counters(self) -> None:
        page = self.engine.readout.metrics
        names = {*page.counters, *page.info_labels}
        assert names <= set(Counters.__dataclass_fields__)
        assert {"generation_tokens", "prompt_tokens", "running", "kv_blocks"} <= names
        assert all(metric.startswith(page.prefix) for metric in page.counters.values())
        text = "".join(f"{metric} 3\n" for metric in dict.fromkeys(page.counters.values()))
        assert read_metrics(text, page).generation_tokens == 3

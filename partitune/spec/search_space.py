"""A search space: which model, where, under which load, and what may vary.

Decision: the file says what a person knows; what follows from it (the model's layers, the stages' places, the engine's
defaults) is worked out by the rooms that know. So model, GPU, engine and flag names are checked for their form here and
for their meaning there, and the messages there name this file's lines through `error`. The partition of a seed is ASCII
digits and commas, stricter than any engine: vLLM's `int()` reads `1_0`, `+10` and ` 10`, where a shell or an env-file
reads otherwise; its count and sum need the model's layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from partitune.errors import SpecError, did_you_mean
from partitune.spec.catalog import NAME, Kind, find
from partitune.spec.domains import (
    MAX_LAYERS,
    MAX_STAGES,
    CheckedFlagValue,
    Domain,
    Domains,
    EnvValues,
    FlagValues,
    PartitionDomain,
    domain_allows,
    domain_words,
    flag_name_fault,
)
from partitune.spec.metrics import NEEDS
from partitune.spec.names import STUDY_NAME, study_name_fault
from partitune.spec.objectives import Goodput, Limit, Metric, Objective
from partitune.spec.serving import Cluster, Engine, Parallel, Sizes
from partitune.spec.workload import RandomWorkload, TraceWorkload, Workload, single_loads
from partitune.spec.yaml.document import Plain, read_yaml
from partitune.spec.yaml.faults import Fault, KeyPath, describe, text_fault
from partitune.spec.yaml.strict_model import Reading, SpecFile, StrictModel, allowed, number, refusing, whole, wrong

#: Keys of `parallel` that make a layout, as they are where it is left open.
_OPEN: Mapping[str, Any] = {"tp": None, "pp": None, "dp": 1, "pcp": 1, "dcp": 1, "expert_parallel": False}
_PARTITION = r"^[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*$"
_LAYERS_PER_STAGE = "layers per stage in digits joined by commas, each at least 1, such as 10,11,12"


def _layers(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not re.fullmatch(_PARTITION, value, re.ASCII):
        raise wrong(f"found {describe(value)}; allowed: {_LAYERS_PER_STAGE}")
    return tuple(int(layers) for layers in value.split(","))


class Seed(StrictModel):
    """One candidate: a partition, and flag values where they differ from the engine's defaults."""

    partition: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...],
        allowed(_LAYERS_PER_STAGE, strict=False, min_length=1, max_length=MAX_STAGES),
        BeforeValidator(_layers),
    ]
    knobs: Annotated[FlagValues, allowed("a mapping of knobs to one value each")] = Field(default_factory=dict)
    env: Annotated[EnvValues, allowed("a mapping of environment knobs to one text each")] = Field(default_factory=dict)

    @classmethod
    def long_form(cls, value: Any) -> Any:
        """A vector alone is a mapping with nothing but the partition."""
        return {"partition": value} if isinstance(value, str | list | tuple) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Either form, and a partition as text or as a list."""
        long_form = handler.resolve_ref_schema(handler(schema))
        text = {"type": "string", "pattern": _PARTITION}
        as_list = long_form["properties"]["partition"]
        properties = {**long_form["properties"], "partition": {"anyOf": [text, as_list]}}
        return {"anyOf": [text, as_list, {**long_form, "properties": properties}]}


class Budget(StrictModel):
    """When a search ends, whichever comes first."""

    trials: Annotated[int, whole(1, 1_000_000, "candidates measured")] = 60
    hours: Annotated[float | None, number(0, 8760, "wall-clock hours", above=True)] = None
    gpu_hours: Annotated[
        float | None, number(0, 1e9, "GPU-hours: GPUs × duration of trials; simulated ones use none", above=True)
    ] = None
    screen: Annotated[
        int, whole(0, 1_000_000, "candidates simulated before a runner launches any; 0: launch without")
    ] = 200
    finalists: Annotated[
        int, whole(0, 1000, "best trials started afresh before anything is claimed; 0: claim on single runs")
    ] = 4
    pairs: Annotated[int, whole(2, 1000, "runs of the last finalist and of the default, each, in turns")] = 5


def _no_metric_twice(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    names = [objective.metric for objective in objectives]
    if twice := [name for name in names if names.count(name) > 1]:
        raise wrong(f"found {twice[0]} twice; allowed: every metric once")
    return objectives


def _no_seed_twice(seeds: tuple[Seed, ...]) -> tuple[Seed, ...]:
    for index, seed in enumerate(seeds):
        if seed in seeds[:index]:
            first = seeds.index(seed)
            raise wrong(f"found one candidate twice, as [{first}] and [{index}]; allowed: every candidate once")
    return seeds


class SearchSpace(SpecFile):
    """One search space, as written; `resolved()` is what is stored with a study."""

    file_kind: ClassVar[Kind] = Kind.SEARCH_SPACE

    kind: Annotated[Literal["search_space"], allowed("search_space")]
    name: Annotated[str, allowed(STUDY_NAME), AfterValidator(refusing(study_name_fault))]
    model: Annotated[
        str,
        Field(min_length=1, max_length=4096),
        AfterValidator(refusing(lambda text: text_fault(text.replace("\n", "\0").replace("\t", "\0")))),
        allowed("a model of the catalog such as kimi-k3, or the path of a config.json or of its folder"),
    ]
    config: Annotated[
        dict[str, JsonValue],
        allowed("a mapping of keys of the model's config.json to what stands in their place, and weight_bits"),
    ] = Field(default_factory=dict)
    cluster: Annotated[Cluster, allowed("a mapping with nodes, gpus_per_node, gpu")]
    engine: Annotated[Engine, allowed("a mapping with name, version, runner, split_rule, flags, env")] = Engine()
    parallel: Annotated[Parallel, allowed("a mapping with tp, pp, and where used dp, expert_parallel, pcp, dcp")]
    workload: Annotated[
        Workload, allowed("a mapping with kind: random or trace, or mix for several, and the keys of that kind")
    ] = RandomWorkload(concurrency=32)
    knobs: Annotated[
        Domains,
        allowed(
            "a mapping of partition, env and engine flags to what they may be; if left out, the engine's usual flags "
            "vary, and {} varies none"
        ),
    ] = Domains()
    objectives: Annotated[
        tuple[Objective, ...],
        allowed("a list of metrics, such as [output_throughput_tok_s]", strict=False, min_length=1),
        AfterValidator(_no_metric_twice),
    ] = (Objective(metric="output_throughput_tok_s"),)
    slo: Annotated[dict[Metric, Limit], allowed("a mapping of metrics to the worst value accepted, above 0")] = Field(
        default_factory=dict
    )
    goodput: Annotated[Goodput, allowed("a mapping with ttft_ms, tpot_ms, e2e_ms: the limits of a single request")] = (
        Goodput()
    )
    seeds: Annotated[
        tuple[Seed, ...],
        Field(strict=False, max_length=1000),
        AfterValidator(_no_seed_twice),
        allowed("a list of partitions such as 10,11,12, or of mappings with partition, knobs, env"),
    ] = ()
    budget: Annotated[Budget, allowed(f"a mapping with {', '.join(Budget.model_fields)}")] = Budget()
    indifference_zone: Annotated[
        float, number(0, 1, "share by which two figures may differ and count as equal; 0.01 is 1 %", below=True)
    ] = 0.01
    random_seed: Annotated[int, whole(0, 2**32 - 1, "equal seeds, equal searches")] = 0

    @property
    def model_path(self) -> Path | None:
        """Where the model's config lies when `model` is a path; None when it is a name of the catalog."""
        return None if NAME.fullmatch(self.model) and not self.model.endswith(".json") else self.absolute(self.model)

    @property
    def trial_gpus(self) -> int:
        """GPUs that a launched trial takes: those of the layout, or all the cluster's where the layout varies."""
        all_gpus = self.cluster.nodes * self.cluster.gpus_per_node
        start = self.parallel.start
        return all_gpus if start is None or self.parallel.layouts is not None else start.gpus

    @property
    def trace_paths(self) -> tuple[Path, ...]:
        """Where the traces of the workload lie."""
        loads = single_loads(self.workload)
        return tuple(self.absolute(load.file) for load in loads if isinstance(load, TraceWorkload))

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults included, as plain JSON; `from_mapping` reads it back. Paths are absolute."""
        plain = super().resolved()
        if self.model_path is not None:
            plain["model"] = str(self.model_path)
        # Only where it says something, so that studies from before it are the same; null in it takes a key out.
        plain.pop("config", None)
        if "knobs" not in self.model_fields_set:  # what then varies is the engine's to say
            plain.pop("knobs")
        if self.config:
            plain["config"] = dict(self.config)
        for load in plain["workload"].get("parts", [plain["workload"]]):
            if "file" in load:
                load["file"] = str(self.absolute(load["file"]))
        return plain

    @classmethod
    def load_for_layouts(cls, name: str) -> SearchSpace:
        """Read a file whose own layout need not be legal, as others are asked for: it is then left open.

        Raises:
            SpecError: not found, or every fault of the file where there are others.
        """
        try:
            return cls.load(name)
        except SpecError:
            text = find(cls.file_kind, name)
            document = read_yaml(text.content, text.source)
            parallel = document.value.get("parallel")
            if not isinstance(parallel, dict):
                raise
            kept = {key: value for key, value in parallel.items() if key not in _OPEN}
            document.value["parallel"] = {**kept, "layouts": kept.get("layouts") or "auto"}
            with suppress(SpecError):
                return cls._read(document, text.folder)
            raise

    def with_open_layout(self) -> SearchSpace:
        """The same space without a layout of its own, unless a list with an entry a stage needs one."""
        cluster = self.cluster
        total = cluster.nodes * cluster.gpus_per_node
        lists = [entry for entry in (cluster.gpu, cluster.reserved_gib) if isinstance(entry, tuple)]
        if any(len(entry) != total for entry in lists):
            return self
        return self.model_copy(update={"parallel": self.parallel.model_copy(update=_OPEN)})

    @classmethod
    def cross_faults(cls, reading: Reading) -> Iterator[Fault]:
        """Sizes that do not fit together, flags and seeds outside their domains."""
        written = reading.document.value
        domains, seeds = written.get("knobs"), written.get("seeds")
        cluster = reading.sound(Cluster, written.get("cluster"))
        engine = reading.sound(Engine, written.get("engine"))
        parallel = reading.sound(Parallel, written.get("parallel"))
        knobs = reading.sound(Domains, domains) if "knobs" in written else Domains()
        if isinstance(domains, dict):
            yield from _domain_name_faults(domains)
        if parallel:
            yield from _open_faults(parallel)
        if cluster and parallel and (start := parallel.start):
            yield from _size_faults(cluster, start)
        if knobs and parallel and parallel.pp is not None:
            for stage in knobs.partition.pinned:
                if not 0 <= stage < parallel.pp:
                    text = f"there is no stage {stage}; allowed: 0 to {parallel.pp - 1} (parallel.pp is {parallel.pp})"
                    yield Fault(("knobs", "partition", "pinned", stage), text)
        if knobs and engine:
            yield from _start_faults("flags", engine.flags, knobs.flags)
            yield from _start_faults("env", engine.env, knobs.env)
        yield from _need_faults(reading, cluster)
        for index, seed in enumerate(seeds if isinstance(seeds, list) else ()):
            if knobs and (sound := reading.sound(Seed, seed)):
                yield from _seed_faults(index, sound, knobs)


def _domain_name_faults(knobs: Mapping[str | int, Plain]) -> Iterator[Fault]:
    for name, value in knobs.items():
        if name in Domains.model_fields:
            continue
        if isinstance(value, dict) and not value.keys().isdisjoint(PartitionDomain.model_fields):
            yield Fault(("knobs", name), "holds bounds of the partition, did you mean partition?; allowed: partition")
        elif text := flag_name_fault(name):
            yield Fault(("knobs", name), text)


def _need_faults(reading: Reading, cluster: Cluster | None) -> Iterator[Fault]:
    """Metrics that are asked for without what they are computed from."""
    written = reading.document.value
    goodput = reading.sound(Goodput, written.get("goodput"))
    given = {"goodput": bool(goodput.limits) if goodput else "goodput" in written}
    if cluster:
        given["cluster.gpu_hour_price_usd"] = cluster.gpu_hour_price_usd is not None
        given["cluster.gpu_power_w"] = cluster.gpu_power_w is not None
    slo, objectives = written.get("slo"), written.get("objectives")
    asked: dict[KeyPath, Plain] = {("slo", name): name for name in slo} if isinstance(slo, dict) else {}
    for index, objective in enumerate(objectives if isinstance(objectives, list) else ()):
        asked["objectives", index] = objective.get("metric") if isinstance(objective, dict) else objective
    for path, name in asked.items():
        if isinstance(name, str) and name in NEEDS and not given.get(NEEDS[name], True):
            yield Fault(path, f"{name} needs {NEEDS[name]}, which is not given; allowed: with it, or another metric")


def _open_faults(parallel: Parallel) -> Iterator[Fault]:
    """Both of tp and pp, or where layouts vary neither, and then nothing beside them."""
    sizes = {"tp": parallel.tp, "pp": parallel.pp}
    missing = [name for name, size in sizes.items() if size is None]
    if missing and (len(missing) == 1 or parallel.layouts is None):
        for name in missing:
            text = "missing; allowed: a whole number from 1 to 1024, or neither tp nor pp with layouts: auto"
            yield Fault(("parallel", name), text)
    elif missing and (extra := [name for name in ("dp", "pcp", "dcp") if getattr(parallel, name) > 1]):
        yield Fault(("parallel", extra[0]), f"found without tp and pp; allowed: all of tp, pp, {extra[0]}, or none")


def _size_faults(cluster: Cluster, parallel: Sizes) -> Iterator[Fault]:
    tp, pp, per_node = parallel.tp, parallel.pp, cluster.gpus_per_node
    width, have, need = tp * parallel.pcp, cluster.nodes * per_node, parallel.gpus
    key_of_width = ("parallel", "pcp" if parallel.pcp > 1 else "tp")
    wide = f"found {parallel.pcp}, so that tp × pcp is {width}" if parallel.pcp > 1 else f"found {tp}"
    for key, value in (("gpu", cluster.gpu), ("reserved_gib", cluster.reserved_gib)):
        if isinstance(value, tuple) and len(value) not in (pp, have):
            lists = f"a list of {pp} (parallel.pp stages) or of {have} (GPUs of the cluster)"
            yield Fault(("cluster", key), f"found a list of {len(value)}; allowed: one for all, {lists}")
    if width > per_node and (parallel.pcp > 1 or parallel.dcp > 1 or width % per_node):
        text = f"{wide}; allowed: at most {per_node} (cluster.gpus_per_node), or without pcp and dcp a multiple of it"
        yield Fault(key_of_width, text)
    elif need > have:
        sizes = {"tp": tp, "pp": pp, "dp": parallel.dp, "pcp": parallel.pcp}
        product = " × ".join(f"{key} {size}" for key, size in sizes.items() if size > 1 or key in ("tp", "pp"))
        text = f"{product} needs {need} GPUs; allowed: at most {have} (nodes × gpus_per_node)"
        yield Fault(("parallel", "pp") if need == tp * pp else ("parallel",), text)
    elif width <= per_node < need and per_node % width:
        text = f"{wide}, which puts a stage on two nodes; allowed: a divisor of cluster.gpus_per_node ({per_node})"
        yield Fault(key_of_width, text)


def _start_faults(section: str, fixed: Mapping[str, CheckedFlagValue], varied: Mapping[str, Domain]) -> Iterator[Fault]:
    """A flag that varies starts at a value of its domain."""
    for name, value in fixed.items():
        if name in varied and not domain_allows(varied[name], value):
            text = f"found {describe(value)}, where its knob starts; allowed: {domain_words(varied[name])} (knobs)"
            yield Fault(("engine", section, name), text)


def _seed_faults(index: int, seed: Seed, knobs: Domains) -> Iterator[Fault]:
    for section, values, varied in (("knobs", seed.knobs, knobs.flags), ("env", seed.env, knobs.env)):
        for name, value in values.items():
            path = ("seeds", index, section, name)
            if name not in varied:
                names = ", ".join(varied) or "none, as none varies"
                yield Fault(path, f"not a knob of this space{did_you_mean(name, varied)}; allowed: {names}")
            elif not domain_allows(varied[name], value):
                words = domain_words(varied[name])
                yield Fault(path, f"found {describe(value)}, which the search cannot propose; allowed: {words}")

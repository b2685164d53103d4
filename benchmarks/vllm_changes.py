"""What changed between two releases of vLLM, as text, and where the simulator is not what the newer one is.

Decision: a schedule that differs is named by its first step; which setting it hangs on is worked out from all of them:
the setting whose scenarios differ most often comes first, its scenarios are set aside, and so on, so that one changed
rule is one line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from benchmarks.vllm_facts import Facts
from partitune.engines.recordings import Agreement
from partitune.engines.vllm.kv_recording import KvRecord
from partitune.engines.vllm.scheduler.recording import Recording
from partitune.errors import SpecError

#: Settings that say nothing where they have this value.
_USUAL = {
    "scheduling_policy": "fcfs",
    "prefill_schedule_interval": 1,
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
    "enable_prefix_caching": False,
    "full_groups": 1,
    "enable_chunked_prefill": True,
    "reserve_full_isl": True,
}
#: Beyond these, what is only set on purpose.
_SETTINGS = {
    *_USUAL,
    "adaptive",
    "align_chunks",
    "answers_shared",
    "data_parallel_size",
    "internal_checkpoints",
    "max_num_active_seqs",
    "max_num_scheduled_tokens",
    "retention",
    "windows",
}
_NEAR_S = 1e-3  # the oldest recordings have four digits
_FIGURES = ("num_blocks", "max_group_layers_per_stage", "num_groups", "capacity")


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first step that differs between two records of one scenario, in words; None: none does."""
    for number, (was, now) in enumerate(zip(before["steps"], after["steps"], strict=False)):
        if was["tokens"] != now["tokens"]:
            return f"step {number}: tokens were {was['tokens']}, are {now['tokens']}"
        for key in ("dispatch", "start", "end"):
            if (was[key] is None) != (now[key] is None) or abs((was[key] or 0.0) - (now[key] or 0.0)) > _NEAR_S:
                return f"step {number}: {key} was {was[key]}, is {now[key]}"
    if len(before["steps"]) != len(after["steps"]):
        return f"there were {len(before['steps'])} steps, there are {len(after['steps'])}"
    return None


def settings_of(record: Mapping[str, Any]) -> set[str]:
    """What is set in a scenario that usually is not."""
    values = {**record, **record.get("ext", {})}
    return {key for key, value in values.items() if key in _SETTINGS and value != _USUAL.get(key, False)}


def by_setting(
    records: Mapping[str, Mapping[str, Any]], differences: Mapping[str, str]
) -> Iterator[tuple[str, int, int, str]]:
    """Settings that differences hang on: the name, how many scenarios with it differ and are there, and one of them.

    `differences` are those of `records`, under the same names. What hangs on no setting comes last, as "any".
    """
    left, rest = dict(differences), dict(records)
    while left:
        settings = {name: settings_of(record) for name, record in rest.items()}
        there = Counter(setting for each in settings.values() for setting in each)
        differing = Counter(setting for name in left for setting in settings[name])
        if not differing:
            name = next(iter(left))
            yield "any", len(left), len(rest), name
            return
        best = max(sorted(differing), key=lambda setting: (differing[setting] / there[setting], differing[setting]))
        yield best, differing[best], there[best], next(name for name in left if best in settings[name])
        rest = {name: record for name, record in rest.items() if best not in settings[name]}
        left = {name: difference for name, difference in left.items() if name in rest}


def _where(record: Mapping[str, Any]) -> str:
    return f"{record['name']} ({record['regime']}, pp {record['pp']})"


def _schedule_lines(records: Mapping[str, dict[str, Any]], differences: Mapping[str, str]) -> Iterator[str]:
    for setting, differing, there, name in by_setting(records, differences):
        yield f"  {setting}: {differing} of {there} differ; {_where(records[name])}, {differences[name]}"


def schedule_changes(before: Facts, after: Facts) -> Iterator[str]:
    """What is scheduled otherwise."""
    common = {name: record for name, record in after.schedules.items() if name in before.schedules}
    found = {name: first_difference(before.schedules[name], record) for name, record in common.items()}
    differences = {name: difference for name, difference in found.items() if difference}
    yield f"schedules: {len(differences)} of {len(common)} differ"
    yield from _schedule_lines(common, differences)


def plan_changes(before: Facts, after: Facts) -> Iterator[str]:
    """What is planned otherwise."""
    found = [
        f"  {name}: {figure} was {before.plans[name][figure]}, is {plan[figure]}"
        for name, plan in after.plans.items()
        for figure in _FIGURES
        if before.plans[name][figure] != plan[figure]
    ]
    yield f"KV plans: {len({line.partition(':')[0] for line in found})} of {len(after.plans)} differ"
    yield from found


def name_changes(noun: str, before: Iterable[str], after: Iterable[str]) -> Iterator[str]:
    """Names that came and went."""
    new, gone = sorted(set(after) - set(before)), sorted(set(before) - set(after))
    yield f"{noun}: {len(new)} new, {len(gone)} gone"
    yield from (f"  new: {name}" for name in new)
    yield from (f"  gone: {name}" for name in gone)


def pipeline_changes(before: Facts, after: Facts) -> Iterator[str]:
    """Architectures that came and went, and those that came by a pipeline or lost it."""
    yield from name_changes("architectures", before.architectures, after.architectures)
    for name, pipeline in sorted(after.architectures.items()):
        if before.architectures.get(name, pipeline) != pipeline:
            yield f"  {name}: {'has a pipeline now' if pipeline else 'has no pipeline any more'}"


def _agreement(kind: type[Recording | KvRecord], record: dict[str, Any]) -> Agreement:
    try:
        return kind.model_validate_json(json.dumps(record)).agreement()
    except SpecError as error:
        return Agreement("", f"not simulated: {error}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return Agreement("", f"not simulated: {'.'.join(map(str, first['loc']))}: {first['msg']}")


def simulator_differences(after: Facts) -> Iterator[str]:
    """Where the simulator and the planner are not what the release is."""
    found = {name: _agreement(Recording, record).difference for name, record in after.schedules.items()}
    differences = {name: difference for name, difference in found.items() if difference}
    yield f"simulator: {len(differences)} of {len(found)} schedules differ"
    yield from _schedule_lines(after.schedules, differences)
    plans = {name: _agreement(KvRecord, plan).difference for name, plan in after.plans.items()}
    wrong = {name: difference for name, difference in plans.items() if difference}
    yield f"planner: {len(wrong)} of {len(plans)} KV plans differ"
    yield from (f"  {name}: {difference}" for name, difference in wrong.items())


def report(before: Facts, after: Facts) -> list[str]:
    """All of it; lines that are indented say what changed or differs, the others count."""
    lines = [f"{before.source} -> {after.source}"]
    lines += schedule_changes(before, after)
    lines += plan_changes(before, after)
    lines += name_changes("flags", before.flags, after.flags)
    lines += pipeline_changes(before, after)
    return [*lines, f"{after.source} and what is simulated here", *simulator_differences(after)]

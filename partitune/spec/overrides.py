"""`--set` on the command line: change one value of a search space without writing a file.

Decision: a bare name is an engine flag (or, in upper case, an environment variable) of the candidate at hand; a
dotted name, and the bare name of a key, is a key of the search space (`engine.version`, `workload.concurrency`,
`model`). Values are YAML, so `true`, `16` and `0.9`, and of a key of the search space lists and mappings, mean on the
command line what they mean in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from partitune.candidate import FlagValue, flaw_in
from partitune.errors import SpecError
from partitune.spec.domains import secret_fault
from partitune.spec.search_space import SearchSpace
from partitune.spec.yaml.document import Plain, read_yaml
from partitune.spec.yaml.faults import complaint, shown

#: Parts of a search space whose values the engine reads: lists and JSON reach it as text.
_OF_THE_ENGINE = ("engine.flags.", "engine.env.")


def parse_settings(texts: Sequence[str]) -> tuple[dict[str, FlagValue], dict[str, Plain]]:
    """Split `--set` values into flags of the candidate and keys of the search space.

    Raises:
        SpecError: not `name=value`, a name twice, or a value that cannot be read.
    """
    flags: dict[str, FlagValue] = {}
    keys: dict[str, Plain] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals or not name or not written:
            raise SpecError(f"--set {text!r}: allowed: name=value, such as max_num_seqs=64 or engine.version=0.30.0")
        if fault := secret_fault(name.rpartition(".")[2]):
            raise SpecError(f"--set {name}: {fault}")
        if name in flags or name in keys:
            raise SpecError(f"--set {name}: given twice; allowed: once")
        if "." not in name and name not in SearchSpace.model_fields:
            flags[name] = _scalar(name, written)
        elif written.startswith(("[", "{")) and not name.startswith(_OF_THE_ENGINE):
            keys[name] = _section(name, written)
        else:
            keys[name] = _scalar(name, written)
    return flags, keys


def with_settings(spec: SearchSpace, keys: Mapping[str, Any], source: str = "--set") -> SearchSpace:
    """The search space with dotted `keys` changed, checked as a whole again. Messages call the change `source`.

    Raises:
        SpecError: a key that does not exist, or what the change makes wrong.
    """
    if not keys:
        return spec
    plain = spec.resolved()
    # A kind first: the keys that the kind before it had mean nothing beside it.
    for name, value in sorted(keys.items(), key=lambda setting: not setting[0].endswith(".kind")):
        *parents, last = name.split(".")
        section: Any = plain
        for parent in parents:
            section = section.setdefault(parent, {}) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            allowed = "a key of the search space, such as engine.version"
            raise SpecError(f"{source} {name}: there is no such key; allowed: {allowed}")
        if last == "kind" and value != section.get(last):
            section.clear()
        # A version looks like a number to YAML, and the file wants it in quotes.
        section[last] = str(value) if name == "engine.version" else value
    changed = SearchSpace.from_mapping(plain, source=source)
    return changed.changed_from(spec, [tuple(name.split(".")) for name in keys], source)


def from_flags(given: Mapping[str, Any]) -> SearchSpace:
    """The search space of the form without YAML: model, GPU and sizes, everything else by default.

    Args:
        given: `model`, `gpu`, `nodes`, `gpus_per_node`, and where wanted `tp` with `pp` (else every layout is tried),
            `engine` and `engine_version`.

    Raises:
        SpecError: one is missing or wrong.
    """
    names = ("model", "gpu", "nodes", "gpus_per_node")
    options = {name: f"--{name.replace('_', '-')}" for name in (*names, "tp", "pp")}
    needed = options if "tp" in given or "pp" in given else {name: options[name] for name in names}
    if missing := ", ".join(option for name, option in needed.items() if name not in given):
        every = ", ".join(options[name] for name in names)
        allowed = f"a search space by name or path (partitune list), or {every}, and both of --tp and --pp or neither"
        raise SpecError(f"{missing}: missing; allowed: {allowed}")
    model = str(given["model"])
    label = re.sub("[^a-z0-9._-]+", "-", Path(model.rstrip("/").removesuffix("/config.json")).name.lower()).strip("-._")
    sizes = {name: given[name] for name in ("tp", "pp") if name in given}
    layout = "-".join(f"{name}{size}" for name, size in reversed(sizes.items())) or "layouts"
    engine = {key: given[name] for name, key in (("engine", "name"), ("engine_version", "version")) if name in given}
    return SearchSpace.from_mapping(
        {
            "name": f"{(label or 'model')[: 63 - len(layout)]}-{layout}",
            "model": model,
            "cluster": {name: given[name] for name in ("nodes", "gpus_per_node", "gpu")},
            **({"engine": engine} if engine else {}),
            "parallel": sizes or {"layouts": "auto"},
            "objectives": ["output_throughput_tok_s", "kv_tokens"],
        }
    )


def _section(name: str, written: str) -> Plain:
    if "\n" in written:  # after which the next key would begin
        raise SpecError(f"--set {name}={shown(written)!r}: allowed: one value in one line")
    try:
        document = read_yaml(f"{json.dumps(name)}: {written}".encode(errors="replace"), "--set")
    except SpecError as error:  # the only line is none to look for
        raise SpecError(str(error).replace("--set:1:", f"--set: {name}:", 1)) from error
    if document.faults:
        raise complaint("--set", {}, [replace(fault, line=None) for fault in document.faults])
    return document.value[name]


def _scalar(name: str, written: str) -> FlagValue:
    if name == "engine.version":
        return written
    try:
        value = yaml.safe_load(written)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"--set {name}={written!r}: allowed: one value, such as 64, 0.9, true or text") from error
    if isinstance(value, bool | int | float | str):
        if flaw := flaw_in(value, f"--set {name}"):
            raise SpecError(f"{flaw}; allowed: one value, such as 64, 0.9, true or text")
        return value
    return written  # JSON and lists go to the engine as text, as its own command line takes them

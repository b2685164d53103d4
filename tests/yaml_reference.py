"""Every key of both kinds of YAML file, as docs/search-space.md and docs/runner.md show them.

Decision: made from the JSON Schema, which is made from the models that read the files; `make docs` writes the pages and
a test compares, so a key without a row cannot land.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partitune.spec.catalog import Kind
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.spec.yaml.strict_model import SpecFile

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {Kind.SEARCH_SPACE: DOCS / "search-space.md", Kind.RUNNER: DOCS / "runner.md"}
FILES: dict[Kind, type[SpecFile]] = {Kind.SEARCH_SPACE: SearchSpace, Kind.RUNNER: Runner}
_OPENINGS = {
    Kind.SEARCH_SPACE: """# Every key of a search space

A search space says which model is served where, under which load, and what may vary. `partitune list` names those that
ship; copy one into `search_spaces/` and change it. A wrong key is refused with its line and the nearest right one.
""",
    Kind.RUNNER: """# Every key of a runner

A runner says how a candidate is measured at a site: how the engine is started there, on which nodes, with which load
generator, and when to give up. `partitune list` names those that ship; `partitune launch SPACE --runner FILE --dry-run`
prints what one would start.
""",
}
_NOTES = {
    Kind.SEARCH_SPACE: """
## What prompts share

A random load has a system prompt (`prefix_tokens`, or several of them: `prefixes`) before the tokens of each prompt, as
`vllm bench serve` has with `--random-prefix-len` and `--dataset-name prefix_repetition`, and conversations (`turns`).
A turn is sent once the answer before it has come; of a closed load as many conversations are in flight as requests. No
load generator here sends `turns`: they are simulated only.

A line of a trace may say it of every request, in JSON:

```json
{"id": "a", "timestamp_s": 0, "prompt_tokens": 900, "output_tokens": 50, "prefix": [{"group": "system", "tokens": 512}]}
{"id": "b", "timestamp_s": 9.5, "prompt_tokens": 1200, "output_tokens": 80, "continues": "a"}
```

- `prefix`: the first so many tokens are those of every prompt that names the `group` behind the same beginning. Several
  ones lie behind one another: a system prompt, then a document under it; `tokens` counts from the prompt's beginning.
- `continues`: the `id` of a line before (its number where it has none), with whose prompt and answer the prompt begins;
  it is sent at its time, or later, when that answer has come.
- Mooncake's `hash_ids` (512 tokens a block, `timestamp` in milliseconds) and Bailian's (`chat_id`; 16 tokens, seconds)
  are read as such prefixes, and Bailian's `parent_chat_id` as `continues` where the lengths and ids admit it.
  Mooncake's traces do not say whose answer a prompt repeats: that part is simulated as new.

Each data rank has a cache of its own, and requests are dealt to them in turn: one whose earlier request went to another
rank finds nothing of its answer there.
""",
    Kind.RUNNER: "",
}
_FOOT = "\nMade by `make docs` from the models that read the files; a test holds this page to them.\n"


def rows(schema: dict[str, Any], at: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Key path, what is allowed, default of every key under `at`, in the order of the file."""
    required = at.get("required", [])
    for key, field in at.get("properties", {}).items():
        here = f"{path}{key}"
        default = "required" if key in required else shown_default(field)
        yield here, field.get("description", ""), default
        for mark, inner in members(schema, field):
            yield from rows(schema, inner, f"{here}{mark}.")


def members(schema: dict[str, Any], field: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings a field may hold, each with what tells it from its siblings: `[]` of a list, `(kind)` of a union."""
    if "$ref" in field:
        yield "", schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
    if isinstance(field.get("items"), dict):
        yield from (("[]" + mark, inner) for mark, inner in members(schema, field["items"]))
    options = [inner for option in field.get("anyOf", ()) for inner in members(schema, option)]
    for mark, inner in options:
        kind = inner.get("properties", {}).get("kind", {}).get("const")
        yield (f"({kind}){mark}" if kind else mark), inner


def shown_default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if value is None or value in ({}, []) or isinstance(value, dict):
        return ""
    return f"`{json.dumps(value)}`"


def page(kind: Kind) -> str:
    """The whole page."""
    schema = FILES[kind].json_schema()
    table = ["| key | allowed | default |", "|---|---|---|"]
    for path, allowed, default in rows(schema, schema):
        table.append(f"| `{path}` | {allowed.replace('|', chr(92) + '|')} | {default} |")
    return _OPENINGS[kind] + "\n" + "\n".join(table) + "\n" + _NOTES[kind] + _FOOT


def write() -> None:
    """Write both pages."""
    for kind, path in PAGES.items():
        path.write_text(page(kind))

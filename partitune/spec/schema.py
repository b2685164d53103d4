"""JSON Schema of both kinds of file, for editors that complete and check YAML while it is typed.

Decision: the schema is made from the models that read the files, so it cannot promise what they refuse by name or type;
rules between keys (a range's ends, sizes that fit together) are only checked on reading.
"""

from __future__ import annotations

from typing import Any

from partitune.spec.catalog import Kind
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.spec.yaml.strict_model import SpecFile


def json_schema(kind: Kind) -> dict[str, Any]:
    """The schema (draft 2020-12) of one kind of file."""
    models: dict[Kind, type[SpecFile]] = {Kind.SEARCH_SPACE: SearchSpace, Kind.RUNNER: Runner}
    schema = models[kind].model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **{key: _any(part) for key, part in schema.items()},
    }


def _any(schema: Any) -> Any:
    """A range of whole numbers is one of real numbers as well, which `oneOf` would refuse."""
    if isinstance(schema, dict):
        return {"anyOf" if key == "oneOf" else key: _any(part) for key, part in schema.items()}
    return [_any(part) for part in schema] if isinstance(schema, list) else schema

"""Candidates a person wants tried first.

Decision: a partition is ASCII digits and commas, stricter than any engine: vLLM's `int()` reads `1_0`, `+10` and ` 10`,
where a shell or an env-file reads otherwise. Count and sum are not checked here: they need the model's layers.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from partitune.spec.domains import MAX_LAYERS, MAX_STAGES, CheckedFlagValue, EnvName, EnvValue, FlagName
from partitune.spec.yaml.faults import describe
from partitune.spec.yaml.strict_model import StrictModel, allowed, wrong

PARTITION = r"^[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*$"
_ALLOWED = "layers per stage in digits joined by commas, each at least 1, such as 10,11,12"


def _layers(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not re.fullmatch(PARTITION, value, re.ASCII) or value.endswith("\n"):
        raise wrong(f"found {describe(value)}; allowed: {_ALLOWED}")
    return tuple(int(layers) for layers in value.split(","))


class Seed(StrictModel):
    """One candidate: a partition, and flag values where they differ from the engine's defaults."""

    partition: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...],
        Field(strict=False, min_length=1, max_length=MAX_STAGES),
        BeforeValidator(_layers),
        allowed(_ALLOWED),
    ]
    knobs: Annotated[dict[FlagName, CheckedFlagValue], allowed("a mapping of knobs to one value each")] = Field(
        default_factory=dict
    )
    env: Annotated[dict[EnvName, EnvValue], allowed("a mapping of environment knobs to one text each")] = Field(
        default_factory=dict
    )

    @classmethod
    def long_form(cls, value: Any) -> Any:
        """A vector alone is a mapping with nothing but the partition."""
        return {"partition": value} if isinstance(value, str | list | tuple) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Either form, and a partition as text or as a list."""
        long_form = handler.resolve_ref_schema(handler(schema))
        text = {"type": "string", "pattern": PARTITION}
        as_list = long_form["properties"]["partition"]
        properties = {**long_form["properties"], "partition": {"anyOf": [text, as_list]}}
        return {"anyOf": [text, as_list, {**long_form, "properties": properties}]}

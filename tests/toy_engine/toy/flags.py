"""Toy's flags, with default and range. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

from collections.abc import Mapping

from partitune.engines.flags import Flag, FlagType, flag_table

TOY_FLAGS: Mapping[str, Flag] = flag_table(
    (
        Flag("stages", FlagType.INTEGER, 1, low=1),
        Flag("tensor_ranks", FlagType.INTEGER, 1, low=1),
        Flag("batch_tokens", FlagType.INTEGER, 4096, low=1),
        Flag("running_requests", FlagType.INTEGER, 128, low=1),
        Flag("page_tokens", FlagType.INTEGER, 16, low=1),
        Flag("memory_share", FlagType.NUMBER, 0.9, low=0, high=1, above_low=True),
    )
)

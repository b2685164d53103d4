"""Adding up the matrices of one block: parameters, stored bytes, FLOPs.

Decision: every reader writes a block down as the list of its matrices, by the names of the checkpoint, and nothing
else counts parameters. The same list then gives bytes (the quantisation is asked by name) and FLOPs (two a parameter
of a matrix and token), so the three can not disagree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypedDict

from partitune.models.architecture import Matrix
from partitune.models.quantisation import BF16, Quantisation

_BLOCKED = "_block"  # behind a format whose scales serve a block of rows: other kernels multiply it


class Totals(TypedDict):
    """What a block of either kind takes from its counter."""

    params: int
    weight_bytes: float
    dtype: str
    flops_per_token: float
    replicated_bytes: float
    matrices: tuple[Matrix, ...]


@dataclass(slots=True)
class WeightCounter:
    """Running sum over the matrices of one module.

    Attributes:
        quantisation: asked for the format of each matrix.
        module: path of the module, `model.layers.3.self_attn`.
        params: parameters, biases and vectors included.
        weight_bytes: stored bytes, scales included.
        replicated_bytes: the part of them that every TP rank holds whole.
        matrices: every matrix, in the order it was added.
    """

    quantisation: Quantisation
    module: str
    params: int = 0
    weight_bytes: float = 0.0
    replicated_bytes: float = 0.0
    matrices: list[Matrix] = field(default_factory=list)

    def inside(self, name: str) -> WeightCounter:
        """An empty counter for the part called `name` of this module."""
        return WeightCounter(self.quantisation, f"{self.module}.{name}")

    def matrix(
        self, name: str, outputs: int, inputs: int, *, bias: bool = False, plain: bool = False, whole: bool = False
    ) -> None:
        """Add an outputs x inputs matrix; `plain`: 16-bit whatever the config says, `whole`: not split under TP."""
        stored = BF16 if plain else self.quantisation.format_of(f"{self.module}.{name}")
        self.params += outputs * inputs
        self._store(stored.matrix_bytes(outputs, inputs), whole=whole)
        dtype = stored.name + (_BLOCKED if stored.scale_rows > 1 else "")
        self.matrices.append(Matrix(name, outputs, inputs, dtype, whole))
        if bias:
            self.vector(outputs, whole=whole)

    def vector(self, size: int, *, bytes_each: int = 2, whole: bool = False) -> None:
        """Add parameters that no token is multiplied with: norms, biases, convolutions, tables."""
        self.params += size
        self._store(size * bytes_each, whole=whole)

    def _store(self, stored_bytes: float, *, whole: bool) -> None:
        self.weight_bytes += stored_bytes
        if whole:
            self.replicated_bytes += stored_bytes

    def totals(self) -> Totals:
        """All sums, as the fields of a block; its dtype is the format that holds most of the parameters."""
        sizes: Counter[str] = Counter()
        for matrix in self.matrices:
            sizes[matrix.dtype.removesuffix(_BLOCKED)] += matrix.outputs * matrix.inputs
        return Totals(
            params=self.params,
            weight_bytes=self.weight_bytes,
            dtype=sizes.most_common(1)[0][0],
            flops_per_token=2.0 * sizes.total(),
            replicated_bytes=self.replicated_bytes,
            matrices=tuple(self.matrices),
        )

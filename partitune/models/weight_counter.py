"""Adding up the matrices of one block: parameters, stored bytes, FLOPs.

Decision: every reader writes a block down as the list of its matrices, by the names of the checkpoint, and nothing
else counts parameters. The same list then gives bytes (the quantisation is asked by name) and FLOPs (two a parameter
of a matrix and token), so the three can not disagree.
"""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from partitune.models.architecture import Matrix
from partitune.models.quantisation import BF16, Quantisation, WeightFormat


class Totals(TypedDict):
    """What a block of either kind takes from its counter."""

    params: int
    weight_bytes: float
    dtype: str
    flops_per_token: float
    replicated_bytes: float
    matrices: tuple[Matrix, ...]


class WeightCounter:
    """Running sum over the matrices of one module.

    Attributes:
        params: parameters, biases and vectors included.
        weight_bytes: stored bytes, scales included.
        replicated_bytes: the part of them that every TP rank holds whole.
        flops_per_token: 2 x parameters of the matrices.
    """

    __slots__ = (
        "_by_format",
        "_matrices",
        "_module",
        "_quantisation",
        "flops_per_token",
        "params",
        "replicated_bytes",
        "weight_bytes",
    )

    def __init__(self, quantisation: Quantisation, module: str) -> None:
        self._quantisation = quantisation
        self._module = module
        self._by_format: Counter[str] = Counter()
        self._matrices: list[Matrix] = []
        self.params = 0
        self.weight_bytes = 0.0
        self.replicated_bytes = 0.0
        self.flops_per_token = 0.0

    def matrix(
        self,
        name: str,
        outputs: int,
        inputs: int,
        *,
        bias: bool = False,
        plain: bool = False,
        whole: bool = False,
        stored: WeightFormat | None = None,
    ) -> None:
        """Add an outputs x inputs matrix; `plain`: 16-bit whatever the config says, `whole`: not split under TP."""
        found = stored or (BF16 if plain else self._quantisation.format_of(f"{self._module}.{name}"))
        self.params += outputs * inputs
        self._store(found.matrix_bytes(outputs, inputs), whole=whole)
        self.flops_per_token += 2.0 * outputs * inputs
        self._by_format[found.name] += outputs * inputs
        blocks = "_block" if found.scale_rows > 1 else ""
        self._matrices.append(Matrix(name, outputs, inputs, found.name + blocks, whole))
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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix, in the order it was added."""
        return tuple(self._matrices)

    @property
    def dtype(self) -> str:
        """Name of the format that holds most of the parameters."""
        return self._by_format.most_common(1)[0][0] if self._by_format else BF16.name

    def totals(self) -> Totals:
        """All sums, as the fields of a block."""
        return Totals(
            params=self.params,
            weight_bytes=self.weight_bytes,
            dtype=self.dtype,
            flops_per_token=self.flops_per_token,
            replicated_bytes=self.replicated_bytes,
            matrices=self.matrices,
        )

"""Adding up the matrices of one block: parameters, stored bytes, FLOPs.

Decision: every reader writes a block down as the list of its matrices, by the names of the checkpoint, and nothing
else counts parameters. The same list then gives bytes (the quantisation is asked by name) and FLOPs (two a parameter
of a matrix and token), so the three can not disagree.
"""

from __future__ import annotations

from collections import Counter

from partitune.model.quantisation import BF16, Quantisation, WeightFormat


class Tally:
    """Running sum over the matrices of one module.

    Attributes:
        params: parameters, biases and vectors included.
        weight_bytes: stored bytes, scales included.
        flops_per_token: 2 x parameters of the matrices.
    """

    __slots__ = ("_by_format", "_module", "_quantisation", "flops_per_token", "params", "weight_bytes")

    def __init__(self, quantisation: Quantisation, module: str) -> None:
        self._quantisation = quantisation
        self._module = module
        self._by_format: Counter[str] = Counter()
        self.params = 0
        self.weight_bytes = 0.0
        self.flops_per_token = 0.0

    def matrix(
        self,
        name: str,
        outputs: int,
        inputs: int,
        *,
        bias: bool = False,
        plain: bool = False,
        stored: WeightFormat | None = None,
    ) -> None:
        """Add an outputs x inputs matrix; `plain` keeps it 16-bit whatever the config says."""
        found = stored or (BF16 if plain else self._quantisation.format_of(f"{self._module}.{name}"))
        self.params += outputs * inputs
        self.weight_bytes += found.matrix_bytes(outputs, inputs)
        self.flops_per_token += 2.0 * outputs * inputs
        self._by_format[found.name] += outputs * inputs
        if bias:
            self.vector(outputs)

    def vector(self, size: int, *, bytes_each: int = 2) -> None:
        """Add parameters that no token is multiplied with: norms, biases, convolutions, tables."""
        self.params += size
        self.weight_bytes += size * bytes_each

    @property
    def dtype(self) -> str:
        """Name of the format that holds most of the parameters."""
        return self._by_format.most_common(1)[0][0] if self._by_format else BF16.name

"""Which tables count as neighbours, and how far one person can move a value under each."""

import dataclasses
import math
from typing import Literal, get_args

from dpflows.errors import InputError

Neighbours = Literal["zero-out", "add-remove", "replace-one"]
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The largest change one person can cause, by neighbour relation.

    ``zero_out``: a row is replaced by a null row that contributes nothing, the
    number of rows is public. ``add_remove``: a row is added or removed.
    ``replace_one``: a row becomes any other row.

    Example:
        >>> Sensitivity.of_sum(1.0).under("replace-one")
        2.0
    """

    zero_out: float
    add_remove: float
    replace_one: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{field.name} must be finite and not negative, got {value}")

    @classmethod
    def uniformly(cls, bound: float) -> "Sensitivity":
        """The same bound whatever the neighbour relation.

        Example:
            >>> Sensitivity.uniformly(0.5).under("add-remove")
            0.5
        """
        return cls(bound, bound, bound)

    @classmethod
    def of_sum(cls, bound: float) -> "Sensitivity":
        """A sum over rows, each contributing at most ``bound`` in any direction."""
        return cls(bound, bound, 2 * bound)

    def under(self, neighbours: Neighbours) -> float:
        """The sensitivity that holds for one neighbour relation."""
        return float(getattr(self, neighbours.replace("-", "_")))

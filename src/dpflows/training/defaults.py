"""The public rule: settings from the budget and the table's shape.

Derived by measurement; ``docs/defaults.md`` has the figures behind each line. The
rule reads no row, so following it costs no privacy.
"""

from typing import NamedTuple, TypeAlias

from dpflows.flows.architectures import Architecture
from dpflows.flows.cells import CellShape
from dpflows.privacy.guarantee import Budget

#: Up to so many columns, shapes are worth more weights than noise on them costs.
MOST_FEW = 3
_FEW_COLUMNS = Architecture("nsf", width=64, depth=2, blocks=3, knots=8, transformer="spline")
_MANY_COLUMNS = Architecture("nsf", width=64, depth=1, blocks=3, knots=6)


#: The shape of what a run trains.
Shape: TypeAlias = Architecture | CellShape


class CellDefaults(NamedTuple):
    """Settings of a network of cells that need no tuning."""

    shape: CellShape
    batch_size: int
    steps: int
    learning_rate: float


class Defaults(NamedTuple):
    """Settings that need no tuning."""

    architecture: Architecture
    batch_size: int
    steps: int
    learning_rate: float


def defaults_for(budget: Budget, *, rows: int, columns: int) -> Defaults:
    """The settings for a table of this shape at this budget.

    Example:
        >>> defaults_for(Budget(1.0, 1e-5), rows=24_000, columns=10).batch_size
        1024
    """
    few = columns <= MOST_FEW
    return Defaults(
        architecture=_FEW_COLUMNS if few else _MANY_COLUMNS,
        batch_size=min(max(rows // 4, 1), 1024),
        steps=2000,
        learning_rate=5e-3 if few else 3e-3,
    )


def cell_defaults(budget: Budget, *, rows: int) -> CellDefaults:
    """The settings for a mixed table at this budget.

    Example:
        >>> cell_defaults(Budget(1.0, 1e-5), rows=32_561).batch_size
        2048
    """
    return CellDefaults(
        shape=CellShape(),
        batch_size=min(max(rows // 4, 1), 2048),
        steps=500 if budget.epsilon < 2 else 1000,
        learning_rate=2e-2,
    )


def expected_seconds(shape: Shape, *, columns: int, slots: int, steps: int) -> float:
    """About how long a run takes on two cores, compilation included."""
    return 10 + steps * (3e-4 + slots * 4e-10 * shape.weights(columns))


def expected_megabytes(shape: Shape, *, columns: int, slots: int) -> float:
    """About how much memory a run needs beyond the rows."""
    return (16 * shape.weights(columns) + 4 * 3 * slots * shape.activations(columns)) / 2**20

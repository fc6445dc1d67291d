"""The public rule: settings from the budget and the table's shape.

Derived by measurement; ``docs/defaults.md`` has the figures behind each line. The
rule reads no row, so following it costs no privacy.
"""

import math
from typing import NamedTuple

from dpflows.flows.architectures import Architecture
from dpflows.privacy.guarantee import Budget

#: Up to so many columns, shapes are worth more weights than noise on them costs.
MOST_FEW = 3
_FEW_COLUMNS = Architecture("nsf", width=64, depth=2, blocks=3, knots=8, transformer="spline")
_MANY_COLUMNS = Architecture("nsf", width=64, depth=1, blocks=3, knots=6)


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


def expected_seconds(architecture: Architecture, *, columns: int, slots: int, steps: int) -> float:
    """About how long a run takes on two cores, compilation included."""
    per_row = 4e-10 * _weights(architecture, columns)
    return 10 + steps * (3e-4 + slots * per_row)


def expected_megabytes(architecture: Architecture, *, columns: int, slots: int) -> float:
    """About how much memory a run needs beyond the rows."""
    activations = architecture.blocks * (
        2 * architecture.width * architecture.depth + columns * (6 * architecture.knots + 8)
    )
    return (16 * _weights(architecture, columns) + 4 * 3 * slots * activations) / 2**20


def _weights(architecture: Architecture, columns: int) -> int:
    """Trained weights of an autoregressive flow of this shape, give or take."""
    width, outputs = architecture.width, columns * (3 * architecture.knots + 3)
    hidden = (architecture.depth - 1) * width * width
    return architecture.blocks * math.ceil(width * columns + hidden + width * outputs)

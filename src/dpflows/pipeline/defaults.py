"""The public rule: default settings from the budget and the shape of the table.

The defaults were found by measurement; ``docs/defaults.md`` has the figures behind each of
them. The rule reads no row, so following it costs no privacy.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from dpflows.models.architectures import Architecture
from dpflows.models.autoregressive import CellShape
from dpflows.privacy.accounting import strength
from dpflows.privacy.guarantee import Budget
from dpflows.training.fisher import MOST_EXACT

#: Up to so many columns, shapes are worth more weights than noise on them costs.
MOST_FEW = 3
_FEW_COLUMNS = Architecture("nsf", width=64, depth=2, blocks=3, knots=8, transformer="spline")
_MANY_COLUMNS = Architecture("nsf", width=64, depth=1, blocks=3, knots=6)


#: The shape of what a run trains.
Shape: TypeAlias = Architecture | CellShape


class CellDefaults(NamedTuple):
    """Default settings of an autoregressive network."""

    shape: CellShape
    batch_size: int
    steps: int
    learning_rate: float


class Defaults(NamedTuple):
    """Default settings of a flow; natural gradient has no learning rate."""

    architecture: Architecture
    batch_size: int
    steps: int
    learning_rate: float | None


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


#: Steps of natural-gradient training for so many rows, each counted as much as mu; they grow
#: with a power of the number of rows, within limits.
_STEPS, _STEPS_ROWS, _STEPS_POWER = 60, 6_500, 0.4
_FEWEST_STEPS, _MOST_STEPS = 60, 100
#: Steps of networks of at most so many weights, which take little time.
_CHEAP_STEPS, _CHEAP_WEIGHTS = 100, 5_000
#: Rows per step, within limits: so many that chance is a small part of the noise.
_CHANCE = 0.06
_FEWEST_DRAWN, _MOST_DRAWN = 2048, 8192
#: Samples of the model per step, for small batches and for batches of more than so many rows.
_FEWEST_SAMPLES, _MOST_SAMPLES, _MANY_DRAWN = 2048, 4096, 6000
#: The noise per step over the clipping norm at which small batches hardly cost privacy, and the
#: least where batches would otherwise be larger than the limit.
_QUIET_NOISE, _LEAST_NOISE = 3.5, 2.5
#: Hidden units that a column's network may have.
_WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Weights that are worth their noise, per unit of mu times the number of rows.
_WEIGHTS = 1.0
#: Budgets beyond this mu, and no budget at all, are treated alike.
_STRONGEST = 10.0
#: Weights that the rows can tell even without noise, per row.
_WEIGHTS_PER_ROW = 1.0


def natural_defaults(budget: Budget, *, rows: int, columns: int) -> Defaults:
    """The settings of natural-gradient training.

    The excess loss due to noise grows with the square of the number of weights over mu times the
    number of rows, and that due to sampling with the number of weights over the number of rows: the
    network is the widest that keeps both small and whose Fisher information is computed exactly.

    Example:
        >>> natural_defaults(Budget(1.0, 1e-5), rows=24_000, columns=10).architecture.width
        8
    """
    strong = min(strength(budget), _STRONGEST) * rows
    architecture = _affordable(min(_WEIGHTS * strong, _WEIGHTS_PER_ROW * rows), columns)
    weights = architecture.weights(columns)
    fewest = _CHEAP_STEPS if weights <= _CHEAP_WEIGHTS else _FEWEST_STEPS
    wanted = _STEPS * (strong / _STEPS_ROWS) ** _STEPS_POWER
    steps = round(min(max(wanted, fewest), _MOST_STEPS))
    drawn = strong**2 / (_CHANCE * weights * steps)
    quiet = strong / math.sqrt(steps)
    drawn = min(max(drawn, _FEWEST_DRAWN, _QUIET_NOISE * quiet), _MOST_DRAWN)
    return Defaults(
        architecture=architecture,
        batch_size=min(rows, math.ceil(max(drawn, _LEAST_NOISE * quiet))),
        steps=steps,
        learning_rate=None,
    )


def natural_samples(batch_size: int) -> int:
    """The number of model samples per step for batches of this size."""
    return _MOST_SAMPLES if batch_size > _MANY_DRAWN else _FEWEST_SAMPLES


def _affordable(weights: float, columns: int) -> Architecture:
    """The widest network with at most this many weights, or the narrowest."""
    shapes = [Architecture("columnwise", width=w, depth=1, blocks=3, knots=4) for w in _WIDTHS]
    fitting = [
        s for s in shapes if s.weights(columns) <= weights and _network(s, columns) <= MOST_EXACT
    ]
    return fitting[-1] if fitting else shapes[0]


def _network(shape: Architecture, columns: int) -> int:
    """The weights of one column's network."""
    return (columns + 1) * shape.width + (shape.width + 1) * shape.scalar_map().size


def rule_for(optimizer: str) -> "Callable[..., Defaults]":
    """The public rule of an optimizer."""
    return natural_defaults if optimizer == "natural" else defaults_for


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
    """Estimated seconds of a run on two cores, including compilation."""
    return 10 + steps * (3e-4 + slots * 4e-10 * shape.weights(columns))


def natural_seconds(
    shape: Architecture, *, columns: int, slots: int, samples: int, steps: int
) -> float:
    """Estimated seconds of a natural-gradient run on two cores."""
    networks, weights = shape.blocks * columns, _network(shape, columns)
    if weights > MOST_EXACT:  # Kronecker factors
        each = networks * (1 + shape.width / 64) * (3e-7 * slots + 1e-6 * samples)
    else:
        each = 0.05 + 2.4e-11 * networks * weights**2 * (2 * samples + slots)
    return 10 + steps * each


def natural_megabytes(shape: Architecture, *, columns: int, samples: int) -> float:
    """Estimated megabytes of a natural-gradient run, beyond the rows."""
    networks, weights = shape.blocks * columns, _network(shape, columns)
    parts = 3 * samples * (columns + 2 * shape.width + shape.scalar_map().size)
    exact = 4 * weights**2 + 3 * 1024 * weights if weights <= MOST_EXACT else 0
    return (16 * shape.weights(columns) + 4 * networks * (parts + exact)) / 2**20


def expected_megabytes(shape: Shape, *, columns: int, slots: int) -> float:
    """Estimated megabytes of a run, beyond the rows."""
    return (16 * shape.weights(columns) + 4 * 3 * slots * shape.activations(columns)) / 2**20

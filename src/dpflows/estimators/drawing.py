"""Rows of a mixed model under conditions and constraints."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.random as jr
import numpy as np

from dpflows.errors import InputError
from dpflows.flows.mixed import CHUNK, MixedDensity
from dpflows.table.mixing import MixedEncoding

#: The most draws for one row that is kept, beside those of the first look.
MOST_TRIES = 200
#: Draws of the first look, where conditions make rows weigh differently.
FIRST_LOOK = CHUNK


@final
@dataclasses.dataclass(frozen=True)
class Rows:
    """What was drawn.

    Attributes:
        columns: Cells by column.
        acceptance: The share of the draws that was kept.
    """

    columns: dict[str, np.ndarray]
    acceptance: float


def draw_rows(
    density: MixedDensity,
    encoding: MixedEncoding,
    n: Any,
    conditions: Mapping[str, Any],
    key: jax.Array,
) -> Rows:
    """Rows that have the wanted values and keep the schema's constraints.

    Wanted values are put in place, and a row is kept with a chance in proportion to how
    likely the model finds them there: all rows, where the wanted columns come first in the
    model's order. Chances are measured by the largest weight seen so far, and rows kept by a
    smaller one are looked at again. Rows that are likely under the condition but that fewer
    than one draw in thousands shows may still be missed.

    Args:
        density: The fitted model.
        encoding: Its columns.
        n: How many rows.
        conditions: Wanted values by column.
        key: For the draws.

    Raises:
        InputError: A condition names no declared value, or too few draws could be kept.

    Guarantee:
        Reads the released model alone: post-processing.
    """
    n = _count(n)
    wanted = encoding.read_conditions(conditions)
    source = _Source(density, encoding, wanted)
    kept, tries = source.draw(key, _first(n, source)), _first(n, source)
    while len(kept) < n:
        if tries >= MOST_TRIES * n + 4 * FIRST_LOOK:
            raise InputError(
                f"conditions and constraints kept {len(kept)} of {tries} draws; loosen them, or "
                "fit a model that knows of such rows"
            )
        size = int(min(1.1 * (n - len(kept)) * tries / max(len(kept), 1) + 16, 8 * CHUNK))
        kept, tries = kept.joined(source.draw(jr.fold_in(key, tries), size)), tries + size
    return Rows({name: cells[:n] for name, cells in kept.columns.items()}, len(kept) / tries)


@final
@dataclasses.dataclass(frozen=True)
class _Kept:
    """Rows, each with the largest weight in the logarithm that would let it stay."""

    columns: dict[str, np.ndarray]
    stays_to: np.ndarray
    bound: float

    def __len__(self) -> int:
        return len(self.stays_to)

    def joined(self, other: "_Kept") -> "_Kept":
        """Both, measured by the larger bound."""
        names, bound = self.columns, max(self.bound, other.bound)
        columns = {
            name: np.concatenate([self.columns[name], other.columns[name]]) for name in names
        }
        stays_to = np.concatenate([self.stays_to, other.stays_to])
        return _Kept(columns, stays_to, bound).thinned()

    def thinned(self) -> "_Kept":
        """Without the rows that the bound does not let stay."""
        stays = self.stays_to >= self.bound
        columns = {name: cells[stays] for name, cells in self.columns.items()}
        return _Kept(columns, self.stays_to[stays], self.bound)


@final
@dataclasses.dataclass(frozen=True)
class _Source:
    """Where rows under a condition come from."""

    density: MixedDensity
    encoding: MixedEncoding
    wanted: Mapping[str, np.ndarray]

    @property
    def is_even(self) -> bool:
        """Whether all rows weigh the same: the wanted columns come first in the order."""
        names = [self.encoding.schema.names[at] for at in self.density.order]
        return set(names[: len(self.wanted)]) == set(self.wanted)

    def draw(self, key: jax.Array, size: int) -> _Kept:
        """Of so many draws those that keep the constraints and may stay."""
        first, second = jr.split(key)
        given = np.tile(self.encoding.given(self.wanted), (size, 1))
        points, logs = self.density.sample_given(first, given)
        logs = np.zeros(size) if self.is_even else logs
        columns = _put(self.encoding.decode(points), self.wanted)
        allowed = _allowed(columns, self.encoding)
        columns = {name: cells[allowed] for name, cells in columns.items()}
        bound = float(logs.max(initial=-np.inf))
        return _Kept(columns, (logs + _patience(second, size))[allowed], bound).thinned()


def _patience(key: jax.Array, size: int) -> np.ndarray:
    """By how much a bound may exceed a row's weight: more than x with a chance of exp(-x)."""
    return np.asarray(jr.exponential(key, (size,)), dtype=float)


def _count(n: Any) -> int:
    try:
        n = operator.index(n)
    except TypeError:
        raise InputError("n_samples must be a whole number") from None
    if n < 1:
        raise InputError(f"n_samples must be at least 1, got {n}")
    return n


def _first(n: int, source: _Source) -> int:
    return max(n, 256) if source.is_even else max(n, FIRST_LOOK)


def _put(columns: dict[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    put = {name: np.repeat(value, len(columns[name])) for name, value in wanted.items()}
    return columns | put


def _allowed(columns: dict[str, np.ndarray], encoding: MixedEncoding) -> np.ndarray:
    rows = len(next(iter(columns.values())))
    allowed = np.ones(rows, dtype=bool)
    for constraint in encoding.schema.constraints:
        allowed &= constraint.holds(columns, encoding.schema)
    return allowed

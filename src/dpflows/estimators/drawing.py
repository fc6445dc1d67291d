"""Rows of a mixed model under conditions and constraints."""

import dataclasses
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.random as jr
import numpy as np

from dpflows.errors import InputError
from dpflows.flows.mixed import CHUNK, MixedDensity
from dpflows.table.mixing import MixedEncoding

#: The most draws for one row that is kept.
MOST_TRIES = 200
#: Weights below the largest by this factor are as good as equal.
_EQUAL = 1e-4


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
    n: int,
    conditions: Mapping[str, Any],
    key: jax.Array,
) -> Rows:
    """Rows that have the wanted values and keep the schema's constraints.

    Wanted values are put in place, and a row is kept with a chance in proportion to how
    likely the model finds them there: all rows, where the wanted columns come first in the
    model's order. The largest weight of the first draws bounds that chance, so that in other
    orders the conditional distribution is met up to that bound.

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
    if n < 1:
        raise InputError(f"n_samples must be at least 1, got {n}")
    wanted = encoding.read_conditions(conditions)
    point, kept, held, tries, bound = encoding.given(wanted), [], 0, 0, None
    while held < n:
        if tries >= MOST_TRIES * max(n, CHUNK):
            raise InputError(
                f"conditions and constraints kept {held} of {tries} draws; loosen them, or fit a "
                "model that knows of such rows"
            )
        size = _size(n - held, held, tries)
        first, second, key = jr.split(key, 3)
        points, logs = density.sample_given(first, np.tile(point, (size, 1)))
        bound = float(logs.max()) if bound is None else bound
        columns = _put(encoding.decode(points), wanted)
        keep = _by_weight(logs - bound, second) & _allowed(columns, encoding)
        kept.append({name: cells[keep] for name, cells in columns.items()})
        held, tries = held + int(keep.sum()), tries + size
    joined = {name: np.concatenate([part[name] for part in kept])[:n] for name in kept[0]}
    return Rows(joined, held / tries)


def _size(missing: int, held: int, tries: int) -> int:
    """How many draws should fill what is missing, by the share kept so far."""
    if tries == 0:
        return max(missing, 256)
    return int(min(1.1 * missing * tries / max(held, 1) + 16, 8 * CHUNK))


def _by_weight(logs: np.ndarray, key: jax.Array) -> np.ndarray:
    uniform = np.asarray(jr.uniform(key, logs.shape), dtype=float)
    return np.log(np.maximum(uniform, 1e-12)) < logs + _EQUAL


def _put(columns: dict[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    put = {name: np.repeat(value, len(columns[name])) for name, value in wanted.items()}
    return columns | put


def _allowed(columns: dict[str, np.ndarray], encoding: MixedEncoding) -> np.ndarray:
    rows = len(next(iter(columns.values())))
    allowed = np.ones(rows, dtype=bool)
    for constraint in encoding.schema.constraints:
        allowed &= constraint.holds(columns, encoding.schema)
    return allowed

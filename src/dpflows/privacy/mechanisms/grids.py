"""Counts of rows in the cells of a grid over a box, with two-sided geometric noise."""

import numpy as np
from jaxtyping import Int64

from dpflows.errors import InputError
from dpflows.privacy.events import DiscreteLaplaceEvent, check_at_least, check_positive
from dpflows.privacy.mechanisms.counting import COUNTING
from dpflows.privacy.mechanisms.moments import Matrix, Vector, check_box
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

#: More cells than this would take longer than they can be worth.
MOST_CELLS = 1 << 20


def grid_counts(
    rows: Matrix, lower: Vector, upper: Vector, *, bins: int
) -> Int64[np.ndarray, "..."]:
    """Rows per cell, ``bins`` cells along each column; a row with NaN is counted nowhere.

    A row outside the box counts in the cell nearest to it.
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    half = upper / 2 - lower / 2
    place = (np.clip(whole, lower, upper) / 2 - lower / 2) / half
    index = np.clip((place * bins).astype(np.int64), 0, bins - 1)
    shape = (bins,) * rows.shape[1]
    flat = np.ravel_multi_index(tuple(index.T), shape)
    return np.bincount(flat, minlength=bins ** rows.shape[1]).astype(np.int64).reshape(shape)


def noisy_grid(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    bins: int,
    scale: float,
    entropy: Entropy,
    purpose: str = "grid",
) -> Release[Int64[np.ndarray, "..."]]:
    """How many rows lie in each cell of a public grid.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        bins: Cells along each column.
        scale: Of the noise; epsilon is the sensitivity over it.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A row is in one cell, so the L1 sensitivity is 1 (zero-out, add-remove) or 2
        (replace-one), whatever the number of columns and cells; the noise is integer.

    Example:
        >>> rows = np.array([[0.1, 0.1], [0.9, 0.2]])
        >>> release = noisy_grid(
        ...     rows, np.zeros(2), np.ones(2), bins=2, scale=1.0, entropy=Entropy.from_os()
        ... )
        >>> release.value.shape
        (2, 2)
    """
    check_positive("scale", scale)
    check_at_least("bins", bins, 1)
    check_box(rows, lower, upper)
    if bins ** rows.shape[1] > MOST_CELLS:
        raise InputError(f"bins must give at most {MOST_CELLS:,} cells in all, got {bins} per axis")
    counts = grid_counts(rows, lower, upper, bins=bins)
    noisy = sampler_for(entropy, purpose).discrete_laplace(counts.ravel().tolist(), scale)
    event = DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
    return Release(np.array(noisy, dtype=np.int64).reshape(counts.shape), event, entropy.stamp)

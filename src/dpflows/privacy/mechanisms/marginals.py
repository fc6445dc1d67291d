"""Counts of rows in the cells of several tables at once, with Gaussian noise."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.errors import InputError
from dpflows.privacy.events import GaussianEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

_LATTICE = 2.0**-20

Places = Int64[np.ndarray, "rows tables"]
Counts = Float64[np.ndarray, " cells"]


def marginals_sensitivity(tables: int) -> Sensitivity:
    """A row is in at most one cell of each table; a replaced row moves two of each."""
    return Sensitivity(math.sqrt(tables), math.sqrt(tables), math.sqrt(2 * tables))


def table_counts(places: Places, sizes: Sequence[int]) -> list[Counts]:
    """How many rows are in each cell, table by table; a place of -1 is counted nowhere."""
    pairs = zip(places.T, sizes, strict=True)
    return [np.bincount(at[at >= 0], minlength=size).astype(float) for at, size in pairs]


def noisy_marginals(
    places: Places,
    sizes: Sequence[int],
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "marginals",
) -> Release[tuple[Counts, ...]]:
    """How many rows are in each cell of each of several tables.

    Args:
        places: For every row, its cell in each table; -1 if it is in none.
        sizes: The public number of cells of each table.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``marginals_sensitivity``, whatever
        the number of cells. Places must be computed row by row.

    Example:
        >>> places = np.array([[0, 1], [0, 2], [1, -1]])
        >>> release = noisy_marginals(places, (2, 3), noise=0.01, entropy=Entropy.from_os())
        >>> [[round(count) for count in counts] for counts in release.value]
        [[2, 1], [0, 1, 1]]
    """
    check_positive("noise", noise)
    if places.shape[1] != len(sizes) or (places >= np.asarray(sizes)).any():
        raise InputError("places must lie below the sizes, one of them for each table")
    counts = table_counts(places, sizes)
    flat = np.concatenate([np.empty(0), *counts])
    noisy = np.array(sampler_for(entropy, purpose).gaussian(flat.tolist(), noise, lattice=_LATTICE))
    event = GaussianEvent(
        noise=noise, sensitivity=marginals_sensitivity(len(sizes)), purpose=purpose
    )
    parts = np.split(noisy, np.cumsum(sizes)[:-1])
    return Release(tuple(parts), event, entropy.stamp)

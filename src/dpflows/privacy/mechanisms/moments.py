"""Means and standard deviations of clipped columns from one vector of noisy sums."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.privacy.events import GaussianEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

Matrix = Float64[np.ndarray, "rows columns"]
Vector = Float64[np.ndarray, " columns"]

_LATTICE = 2.0**-30


@dataclasses.dataclass(frozen=True)
class Moments:
    """Noisy location and spread of each column, in the column's own units.

    Example:
        >>> Moments(np.zeros(1), np.ones(1), 10.0).count
        10.0
    """

    mean: np.ndarray
    deviation: np.ndarray
    count: float


def moments_sensitivity(columns: int) -> Sensitivity:
    """The L2 sensitivity of (1, x, x^2) summed over rows, x in the cube [-1, 1]^columns.

    A row that comes or goes adds a vector of norm at most sqrt(1 + 2 columns). Replacing
    x by y moves each pair (x, x^2) by |x - y| sqrt(1 + (x + y)^2) <= 2; a row may also
    turn null. The last digit allows for rounding to the lattice.
    """
    present = math.sqrt(1 + 2 * columns)
    return Sensitivity(present, present, max(present, 2 * math.sqrt(columns) * (1 + 1e-8)))


def unit_sums(rows: Matrix, lower: Vector, upper: Vector) -> Float64[np.ndarray, " sums"]:
    """The sums of (1, x, x^2) over rows scaled to the cube; a row with NaN contributes nothing.

    Contributions are rounded to a lattice and summed as integers, so that the order of
    the rows and the rounding of large sums cannot add to the sensitivity.
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    cube = np.clip((np.clip(whole, lower, upper) - middle) / half, -1.0, 1.0)
    parts = np.concatenate([np.ones((len(cube), 1)), cube, cube**2], axis=1)
    return np.rint(parts / _LATTICE).astype(np.int64).sum(axis=0) * _LATTICE


def clipped_moments(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "moments",
) -> Release[Moments]:
    """The mean and standard deviation of each column, clipped to public bounds.

    One Gaussian release of the count, the sums and the sums of squares of all columns.
    The deviation is formed from noisy sums: released directly it would have a
    sensitivity of the order of 1/sqrt(rows), not 1/rows.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        noise: Standard deviation of the noise on each sum, in rows.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``moments_sensitivity``.

    Example:
        >>> import numpy as np
        >>> rows = np.linspace(0, 1, 2001)[:, None]
        >>> release = clipped_moments(
        ...     rows, np.array([-2.0]), np.array([2.0]), noise=3.0, entropy=Entropy.insecure(1)
        ... )
        >>> bool(abs(release.value.mean[0] - 0.5) < 0.05)
        True
    """
    check_positive("noise", noise)
    check_box(rows, lower, upper)
    sums = unit_sums(rows, lower, upper).tolist()
    noisy = np.array(sampler_for(entropy, purpose).gaussian(sums, noise, lattice=_LATTICE))
    sensitivity = moments_sensitivity(rows.shape[1])
    event = GaussianEvent(noise=noise, sensitivity=sensitivity, purpose=purpose)
    return Release(_moments(noisy, lower, upper), event, entropy.stamp)


def _moments(noisy: Float64[np.ndarray, " sums"], lower: Vector, upper: Vector) -> Moments:
    count = max(float(noisy[0]), 1.0)
    mean, square = np.split(noisy[1:] / count, 2)
    mean = np.clip(mean, -1.0, 1.0)
    deviation = np.sqrt(np.clip(square - mean**2, 1e-8, 1.0))
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    return Moments(middle + mean * half, deviation * half, count)


def check_box(rows: Matrix, lower: Vector, upper: Vector) -> None:
    """Refuse bounds that do not enclose a box with a side for each column."""
    if not len(lower) == len(upper) == rows.shape[1]:
        raise InputError("lower and upper must give one bound for each column")
    finite = np.isfinite(lower).all() and np.isfinite(upper).all()
    if not (finite and (upper / 2 - lower / 2 > 0).all()):
        raise InputError("lower must be below upper in every column, both finite")

"""Mean and covariance of all columns from one vector of noisy sums."""

import dataclasses
import math
from typing import final

import numpy as np
from jaxtyping import Float64

from dpflows.privacy.events import GaussianEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.moments import Matrix
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

_LATTICE = 2.0**-30
#: Keeps computed lengths below one whatever the rounding of the computation.
_ROOM = 1 - 1e-12
_FAR = 1e100


@final
@dataclasses.dataclass(frozen=True)
class Weights:
    """How strongly the count and the sums are released beside the second moments.

    In units of the radius a row is u with |u| <= 1 and contributes
    (count, mean u, u u'), so its squared norm is at most count^2 + mean^2 + 1. Noise on
    the three parts costs a Gaussian fit, in nats, in the proportion d/4 : d r^2/2 :
    d(d+1) r^4/8, for columns of unit variance; the weights minimise the total.

    Example:
        >>> Weights.best(radius=4.0, columns=3).mean
        0.5
    """

    count: float
    mean: float

    @classmethod
    def best(cls, *, radius: float, columns: int) -> "Weights":
        """The weights that leave the fit with the least noise."""
        root = math.sqrt(columns + 1)
        return cls(math.sqrt(math.sqrt(2) / (radius**2 * root)), math.sqrt(2 / (radius * root)))

    @property
    def sensitivity(self) -> Sensitivity:
        """The exact L2 sensitivity of the weighted sums.

        Replacing u by v moves the squared norm by mean^2 |u - v|^2 + |uu' - vv'|^2. That
        grows with |u| and |v|, so both are one; with c = u.v it is
        2 mean^2 (1 - c) + 2 (1 - c^2), largest at c = -mean^2 / 2, or at c = -1 where
        the mean weighs more. A row may also turn null. The last digits allow for the
        lattice; in one column, where c is 1 or -1, the bound is not attained.
        """
        present = math.sqrt(self.count**2 + self.mean**2 + 1)
        moved = (2 + self.mean**2) / math.sqrt(2) if self.mean**2 <= 2 else 2 * self.mean
        return Sensitivity(present, present, max(present, moved * (1 + 1e-6)))


@final
@dataclasses.dataclass(frozen=True)
class SecondMoments:
    """Noisy mean and covariance.

    Attributes:
        mean: Of each column.
        covariance: Symmetric; the noise may have made it indefinite.
        count: Noisy number of rows, at least one.
        doubt: Standard deviation of the noise in a variance; a covariance has less by
            the square root of two.
    """

    mean: np.ndarray
    covariance: np.ndarray
    count: float
    doubt: float


def weighted_sums(rows: Matrix, *, radius: float) -> Float64[np.ndarray, " sums"]:
    """The sums of (1, u, uu'), weighted, over rows shortened to the ball of that radius.

    The upper triangle of uu' stands for all of it, so what is off the diagonal counts
    with the square root of two. Contributions are cut off to a lattice towards zero, which
    lengthens none, and are summed as integers. A row with NaN contributes nothing.
    """
    tame = np.clip(rows[~np.isnan(rows).any(axis=1)], -_FAR, _FAR)
    length = np.maximum(np.linalg.norm(tame, axis=1), radius)
    unit = tame * (_ROOM / length)[:, None]
    weights = Weights.best(radius=radius, columns=rows.shape[1])
    ones = np.full((len(unit), 1), weights.count * _ROOM)
    parts = np.concatenate([ones, weights.mean * unit, _upper_triangles(unit)], axis=1)
    return np.trunc(parts / _LATTICE).astype(np.int64).sum(axis=0) * _LATTICE


def noisy_covariance(
    rows: Matrix, *, radius: float, noise: float, entropy: Entropy, purpose: str = "covariance"
) -> Release[SecondMoments]:
    """The mean and covariance of rows shortened to a public ball around zero.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        radius: Public; longer rows are shortened to it.
        noise: Standard deviation of the noise on each weighted sum.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``Weights.sensitivity``.

    Example:
        >>> rows = np.random.default_rng().normal(size=(5000, 2))
        >>> found = noisy_covariance(rows, radius=5.0, noise=2.0, entropy=Entropy.from_os())
        >>> bool(np.abs(found.value.covariance - np.eye(2)).max() < 0.2)
        True
    """
    check_positive("noise", noise)
    check_positive("radius", radius)
    sums = weighted_sums(rows, radius=radius).tolist()
    noisy = np.array(sampler_for(entropy, purpose).gaussian(sums, noise, lattice=_LATTICE))
    weights = Weights.best(radius=radius, columns=rows.shape[1])
    event = GaussianEvent(noise=noise, sensitivity=weights.sensitivity, purpose=purpose)
    return Release(_read(noisy, weights, rows.shape[1], radius, noise), event, entropy.stamp)


def _read(
    noisy: Float64[np.ndarray, " sums"], weights: Weights, columns: int, radius: float, noise: float
) -> SecondMoments:
    count = max(float(noisy[0]) / weights.count, 1.0)
    mean = radius * noisy[1 : 1 + columns] / (weights.mean * count)
    square = radius**2 * _symmetric(noisy[1 + columns :], columns) / count
    return SecondMoments(mean, square - np.outer(mean, mean), count, radius**2 * noise / count)


def _upper_triangles(unit: Matrix) -> Float64[np.ndarray, "rows pairs"]:
    first, second = np.triu_indices(unit.shape[1])
    return unit[:, first] * unit[:, second] * np.where(first == second, 1.0, math.sqrt(2))


def _symmetric(
    triangle: Float64[np.ndarray, " pairs"], columns: int
) -> Float64[np.ndarray, "columns columns"]:
    first, second = np.triu_indices(columns)
    matrix = np.zeros((columns, columns))
    matrix[first, second] = triangle / np.where(first == second, 1.0, math.sqrt(2))
    return np.triu(matrix) + np.triu(matrix, 1).T

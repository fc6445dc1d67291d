"""A sum of Gaussian kernels released as a function, with Gaussian-process noise.

The mechanism of Hall, Rinaldo and Wasserman (2013). A row x adds the kernel k(., x), a
function of norm sqrt(k(x, x)) = 1 in the kernel's reproducing Hilbert space. At grid
points with Gram matrix K, a function f of that space has Mahalanobis length
f' K^-1 f <= |f|^2: the left side is the squared norm of f's projection onto the span of the
kernels at the grid points. So one row moves the values at the grid by at most 1 in the
metric of K, and noise with covariance s^2 K, a path of the Gaussian process with that
kernel, is a Gaussian mechanism of noise s and sensitivity 1. A finer grid costs nothing.
Replacing x by y moves the function by sqrt(2 - 2 k(x, y)) <= sqrt(2).
"""

import functools
import math
from typing import final

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.privacy.events import GaussianEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.moments import Matrix, Vector, check_box
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

#: The most columns; the number of coefficients grows with their power.
MOST_COLUMNS = 2
MOST_POINTS = 256
#: Of the coordinates along one column; products of two lie on its square.
_LATTICE = 2.0**-15
_ROOM = 1 - 1e-9
_FAINTEST = 1e-10
_CHUNK = 8192

#: The last digits of a replaced row allow for the lattice: at most 2^-15 in each of at
#: most 256 coordinates, for two rows and two columns.
KERNEL = Sensitivity(1.0, 1.0, math.sqrt(2) * 1.002)


@final
class KernelAxis:
    """One column's kernels in orthonormal coordinates.

    With K = Q D Q' at the points, a kernel k(., x) has the coordinates
    D^(-1/2) Q' k(points, x), of length at most one, and Q D^(1/2) turns coordinates back
    into values. Noise s on every coordinate is noise s^2 K on the values. Directions whose
    eigenvalue is below 1e-10 of the largest are left out, which shortens coordinates.

    Example:
        >>> axis = KernelAxis(points=32, bandwidth=0.1)
        >>> bool(np.linalg.norm(axis.coordinates(np.array([0.3]))) <= 1)
        True
    """

    def __init__(self, *, points: int, bandwidth: float) -> None:
        check_positive("bandwidth", bandwidth)
        if not 2 <= points <= MOST_POINTS:
            raise InputError(f"points must be from 2 to {MOST_POINTS}, got {points}")
        self.points = (np.arange(points) + 0.5) / points
        self.bandwidth = bandwidth

    @functools.cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(self._kernel(self.points))
        kept = values > _FAINTEST * values.max()
        return values[kept], vectors[:, kept]

    @property
    def values(self) -> Float64[np.ndarray, "points rank"]:
        """Turns coordinates into values at the points."""
        strengths, vectors = self._spectrum
        return vectors * np.sqrt(strengths)

    def coordinates(self, x: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, "rows rank"]:
        """The kernel of each row, cut off to the lattice towards zero: no longer than one."""
        strengths, vectors = self._spectrum
        exact = self._kernel(x) @ (vectors / np.sqrt(strengths))
        length = np.linalg.norm(exact, axis=1, keepdims=True)
        return np.trunc(exact * _ROOM / np.maximum(length, 1.0) / _LATTICE) * _LATTICE

    def _kernel(self, x: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, "rows points"]:
        return np.exp(-(((x[:, None] - self.points) / self.bandwidth) ** 2) / 2)


def kernel_sums(
    rows: Matrix, lower: Vector, upper: Vector, axis: KernelAxis
) -> Float64[np.ndarray, "first second"]:
    """The coordinates of the sum of all rows' kernels; a row with NaN contributes nothing.

    In two columns a kernel is a product, so its coordinates are products too. All are
    integers in units of the lattice, and small enough to be summed without rounding.
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    place = (np.clip(whole, lower, upper) / 2 - lower / 2) / (upper / 2 - lower / 2)
    starts = range(0, max(len(place), 1), _CHUNK)
    return np.sum([_chunk_sum(place[i : i + _CHUNK], axis) for i in starts], axis=0)


def _chunk_sum(place: Matrix, axis: KernelAxis) -> Float64[np.ndarray, "first second"]:
    first = axis.coordinates(place[:, 0])
    second = axis.coordinates(place[:, 1]) if place.shape[1] == 2 else np.ones((len(place), 1))
    return first.T @ second


def noisy_kernel_sum(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    axis: KernelAxis,
    noise: float,
    entropy: Entropy,
    purpose: str = "kernels",
) -> Release[Float64[np.ndarray, "..."]]:
    """The sum of the rows' kernels at the points of a grid over a box of one or two columns.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        axis: Points and bandwidth along each column, as shares of the box's side.
        noise: Standard deviation of the noise at each point; a kernel has height one.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A Gaussian mechanism with sensitivity 1 (zero-out, add-remove) or the square root
        of two (replace-one) in orthonormal coordinates, where the noise is added on a
        lattice; the values at the grid are computed from noisy coordinates.

    Example:
        >>> rows = np.full((100, 1), 0.5)
        >>> release = noisy_kernel_sum(
        ...     rows, np.zeros(1), np.ones(1), axis=KernelAxis(points=9, bandwidth=0.1),
        ...     noise=1.0, entropy=Entropy.from_os(),
        ... )
        >>> release.value.shape, bool(abs(release.value[4] - 100) < 10)
        ((9,), True)
    """
    check_positive("noise", noise)
    check_box(rows, lower, upper)
    if rows.shape[1] > MOST_COLUMNS:
        raise InputError(f"rows must have at most {MOST_COLUMNS} columns, got {rows.shape[1]}")
    sums = kernel_sums(rows, lower, upper, axis)
    drawn = sampler_for(entropy, purpose).gaussian(
        sums.ravel().tolist(), noise, lattice=_LATTICE**2
    )
    noisy = axis.values @ np.array(drawn).reshape(sums.shape)
    event = GaussianEvent(noise=noise, sensitivity=KERNEL, purpose=purpose)
    flat = noisy[:, 0] if rows.shape[1] == 1 else noisy @ axis.values.T
    return Release(flat, event, entropy.stamp)

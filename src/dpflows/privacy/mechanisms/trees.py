"""The distribution of every column at once, from noisy counts in nested bins."""

import math

import numpy as np
from jaxtyping import Float64

from dpflows.privacy.events import GaussianEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.moments import Matrix, Vector, check_box
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

#: Every bin is cut into so many, so often: 4,096 bins in the end.
BRANCHES, LEVELS = 16, 3
BINS = BRANCHES**LEVELS
#: The largest standard deviation of a cumulative count, in units of the noise on a bin.
RANK_ERROR = 4.7
_LATTICE = 2.0**-20

Counts = Float64[np.ndarray, "columns _"]
Cumulative = Float64[np.ndarray, "columns edges"]


def trees_sensitivity(columns: int) -> Sensitivity:
    """A row is in one bin of each level of each column; a replaced row moves two of each."""
    nodes = LEVELS * columns
    return Sensitivity(math.sqrt(nodes), math.sqrt(nodes), math.sqrt(2 * nodes))


def noisy_distributions(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "distributions",
) -> Release[Cumulative]:
    """How many rows lie below each of 4,097 equally spaced edges, column by column.

    Noise is put on counts in nested bins, and the counts of all levels are reconciled by
    least squares (Hay et al., 2010), so that a cumulative count sums a few noisy numbers
    instead of thousands.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column; what lies below counts as on it.
        upper: Public upper bound of each column.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``trees_sensitivity``; the rest is
        computed from its noisy counts. The result increases from zero.

    Example:
        >>> rows = np.linspace(0, 1, 4000)[:, None]
        >>> release = noisy_distributions(
        ...     rows, np.array([0.0]), np.array([2.0]), noise=3.0, entropy=Entropy.insecure(1)
        ... )
        >>> release.value.shape, bool(abs(release.value[0, 1024] - 2000) < 50)
        ((1, 4097), True)
    """
    check_positive("noise", noise)
    check_box(rows, lower, upper)
    levels = nested_counts(rows, lower, upper)
    sampler = sampler_for(entropy, purpose)
    flat = np.concatenate([counts.ravel() for counts in levels])
    noisy = np.array(sampler.gaussian(flat.tolist(), noise, lattice=_LATTICE))
    cuts = np.cumsum([counts.size for counts in levels])[:-1]
    parts = zip(np.split(noisy, cuts), levels, strict=True)
    leaves = reconciled([part.reshape(counts.shape) for part, counts in parts])
    event = GaussianEvent(
        noise=noise, sensitivity=trees_sensitivity(rows.shape[1]), purpose=purpose
    )
    return Release(_cumulative(leaves), event, entropy.stamp)


def nested_counts(rows: Matrix, lower: Vector, upper: Vector) -> list[Counts]:
    """Counts per column at every level, coarse to fine; a row with NaN is counted nowhere."""
    whole = rows[~np.isnan(rows).any(axis=1)]
    half = upper / 2 - lower / 2
    place = (np.clip(whole, lower, upper) / 2 - lower / 2) / half
    leaf = np.clip((place * BINS).astype(np.int64), 0, BINS - 1)
    columns = rows.shape[1]
    fine = np.bincount((leaf + BINS * np.arange(columns)).ravel(), minlength=BINS * columns)
    counts = [fine.reshape(columns, BINS).astype(np.float64)]
    for _ in range(LEVELS - 1):
        counts.insert(0, _parents(counts[0]))
    return counts


def reconciled(levels: list[Counts]) -> Counts:
    """The finest counts that agree best with the noisy counts of all levels."""
    best = [levels[-1]]
    for height, noisy in enumerate(reversed(levels[:-1]), start=2):
        own = (BRANCHES**height - BRANCHES ** (height - 1)) / (BRANCHES**height - 1)
        best.insert(0, own * noisy + (1 - own) * _parents(best[0]))
    agreed = best[0]
    for finer in best[1:]:
        agreed = finer + np.repeat((agreed - _parents(finer)) / BRANCHES, BRANCHES, axis=1)
    return agreed


def _parents(counts: Counts) -> Counts:
    return counts.reshape(len(counts), -1, BRANCHES).sum(axis=2)


def _cumulative(leaves: Counts) -> Cumulative:
    below = np.concatenate([np.zeros((len(leaves), 1)), leaves.cumsum(axis=1)], axis=1)
    return np.maximum.accumulate(np.maximum(below, 0.0), axis=1)

"""Noisy counts: in bins, on a grid, of several tables, in nested bins, and of categories.

Counts in bins and on a grid get two-sided geometric noise; marginal tables and the nested
bins of all columns get Gaussian noise; ``discover_categories`` releases those categories of a
column whose noisy count passes a threshold.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.errors import InputError
from dpflows.privacy.events import (
    ApproximateEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    Sensitivity,
    check_at_least,
    check_positive,
)
from dpflows.privacy.mechanisms.noise import sampler_for
from dpflows.privacy.mechanisms.release import Column, Release, check_edges, check_fraction
from dpflows.privacy.mechanisms.statistics import Matrix, Vector, check_box
from dpflows.privacy.randomness import Entropy

#: One row is in one bin or in none; replacing it may change two bins.
COUNTING = Sensitivity(zero_out=1.0, add_remove=1.0, replace_one=2.0)


def bin_counts(values: Column, edges: Float64[np.ndarray, " edges"]) -> Int64[np.ndarray, " bins"]:
    """How many values lie in each bin; values outside, or NaN, are in none.

    Bins are closed on the left; the last one is closed on both sides.
    """
    inside = values[(values >= edges[0]) & (values <= edges[-1])]
    return np.histogram(inside, edges)[0].astype(np.int64)


def noisy_histogram(
    values: Column,
    edges: Float64[np.ndarray, " edges"],
    *,
    scale: float,
    entropy: Entropy,
    purpose: str = "histogram",
) -> Release[Int64[np.ndarray, " bins"]]:
    """The number of values in each of the bins given by public ``edges``.

    Args:
        values: One number per row; NaN and values outside are not counted.
        edges: Public, strictly increasing.
        scale: Scale of the noise; epsilon is the sensitivity over it.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        L1 sensitivity 1 (zero-out, add-remove) or 2 (replace-one), integer noise.

    Example:
        >>> import numpy as np
        >>> edges = np.array([0.0, 0.5, 1.0])
        >>> release = noisy_histogram(
        ...     np.array([0.2, 0.7, 0.9]), edges, scale=2.0, entropy=Entropy.insecure(1)
        ... )
        >>> release.value.shape, release.event.sensitivity.under("replace-one")
        ((2,), 2.0)
    """
    check_edges(edges)
    check_positive("scale", scale)
    counts = bin_counts(values, edges).tolist()
    noisy = sampler_for(entropy, purpose).discrete_laplace(counts, scale)
    event = DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
    return Release(np.array(noisy, dtype=np.int64), event, entropy.stamp)


def noisy_count(
    present: Column, *, scale: float, entropy: Entropy, purpose: str = "count"
) -> Release[int]:
    """The number of rows whose value is a number.

    Guarantee:
        Sensitivity 1 under every neighbour relation.

    Example:
        >>> import numpy as np
        >>> release = noisy_count(np.ones(5), scale=1.0, entropy=Entropy.insecure(1))
        >>> release.event.sensitivity.under("replace-one")
        1.0
    """
    check_positive("scale", scale)
    count = int(np.count_nonzero(~np.isnan(present)))
    noisy = sampler_for(entropy, purpose).discrete_laplace([count], scale)[0]
    event = DiscreteLaplaceEvent(
        scale=scale, sensitivity=Sensitivity.uniformly(1.0), purpose=purpose
    )
    return Release(noisy, event, entropy.stamp)


#: More cells than this would take longer than they can be worth.
MOST_CELLS = 1 << 20


def grid_counts(
    rows: Matrix, lower: Vector, upper: Vector, *, bins: int
) -> Int64[np.ndarray, "..."]:
    """Rows per cell, ``bins`` cells along each column; a row with NaN is not counted.

    A row outside the box is counted in the nearest cell.
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
    """Noisy number of rows in each cell of a public grid.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        bins: Cells along each column.
        scale: Scale of the noise; epsilon is the sensitivity over it.
        entropy: Source of randomness.
        purpose: Label of the event.

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


_LATTICE = 2.0**-20

Places = Int64[np.ndarray, "rows tables"]
Counts = Float64[np.ndarray, " cells"]


def marginals_sensitivity(tables: int) -> Sensitivity:
    """A row is in at most one cell of each table; a replaced row moves two of each."""
    return Sensitivity(math.sqrt(tables), math.sqrt(tables), math.sqrt(2 * tables))


def table_counts(places: Places, sizes: Sequence[int]) -> list[Counts]:
    """The number of rows in each cell, table by table; a place of -1 is not counted."""
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
    """Noisy number of rows in each cell of each of several tables.

    Args:
        places: For every row, its cell in each table; -1 if it is in none.
        sizes: The public number of cells of each table.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

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
        raise InputError("places must have one column for each table and lie below its size")
    counts = table_counts(places, sizes)
    flat = np.concatenate([np.empty(0), *counts])
    noisy = np.array(sampler_for(entropy, purpose).gaussian(flat.tolist(), noise, lattice=_LATTICE))
    event = GaussianEvent(
        noise=noise, sensitivity=marginals_sensitivity(len(sizes)), purpose=purpose
    )
    parts = np.split(noisy, np.cumsum(sizes)[:-1])
    return Release(tuple(parts), event, entropy.stamp)


#: Every bin is cut into so many, so often: 4,096 bins in the end.
BRANCHES, LEVELS = 16, 3
BINS = BRANCHES**LEVELS
#: The largest standard deviation of a cumulative count, in units of the noise on a bin.
RANK_ERROR = 4.7


LevelCounts = Float64[np.ndarray, "columns _"]
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
        lower: Public lower bound of each column; values below are clipped to it.
        upper: Public upper bound of each column.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

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


def nested_counts(rows: Matrix, lower: Vector, upper: Vector) -> list[LevelCounts]:
    """LevelCounts per column at every level, coarse to fine; a row with NaN is not counted."""
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


def reconciled(levels: list[LevelCounts]) -> LevelCounts:
    """The finest counts that fit the noisy counts of all levels best."""
    best = [levels[-1]]
    for height, noisy in enumerate(reversed(levels[:-1]), start=2):
        own = (BRANCHES**height - BRANCHES ** (height - 1)) / (BRANCHES**height - 1)
        best.insert(0, own * noisy + (1 - own) * _parents(best[0]))
    agreed = best[0]
    for finer in best[1:]:
        agreed = finer + np.repeat((agreed - _parents(finer)) / BRANCHES, BRANCHES, axis=1)
    return agreed


def _parents(counts: LevelCounts) -> LevelCounts:
    return counts.reshape(len(counts), -1, BRANCHES).sum(axis=2)


def _cumulative(leaves: LevelCounts) -> Cumulative:
    below = np.concatenate([np.zeros((len(leaves), 1)), leaves.cumsum(axis=1)], axis=1)
    return np.maximum.accumulate(np.maximum(below, 0.0), axis=1)


def discovery_threshold(scale: float, delta: float) -> int:
    """The noisy count that a category with a single row reaches with probability delta.

    The noise is k >= 1 or more with probability exp(-k / scale) / (1 + exp(-1 / scale)).
    """
    return 1 + max(1, math.ceil(-scale * math.log(delta * (1 + math.exp(-1 / scale)))))


def discover_categories(
    values: Sequence[str | None],
    *,
    scale: float,
    delta: float,
    entropy: Entropy,
    purpose: str = "categories",
) -> Release[dict[str, int]]:
    """The categories that enough rows have, with noisy counts, in alphabetical order.

    Args:
        values: One category per row; ``None`` is not counted.
        scale: Scale of the noise on each count.
        delta: The probability that a category of a single row is released.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        (1/scale, delta) when a row is added, removed or zeroed out, (2/scale, delta) when it is
        replaced: apart from releasing its own category, a row changes one count by one.

    Example:
        >>> values = ["a"] * 500 + ["b"] * 500 + ["secret"]
        >>> found = discover_categories(
        ...     values, scale=1.0, delta=1e-9, entropy=Entropy.from_os()
        ... )
        >>> sorted(found.value)
        ['a', 'b']
    """
    check_positive("scale", scale)
    check_fraction("delta", delta)
    counts = Counter(value for value in values if value is not None)
    names = sorted(counts)
    noisy = sampler_for(entropy, purpose).discrete_laplace([counts[n] for n in names], scale)
    threshold = discovery_threshold(scale, delta)
    shown = {name: count for name, count in zip(names, noisy, strict=True) if count >= threshold}
    epsilon = Sensitivity(1 / scale, 1 / scale, 2 / scale)
    event = ApproximateEvent(epsilon=epsilon, delta=delta, purpose=purpose)
    return Release(shown, event, entropy.stamp)

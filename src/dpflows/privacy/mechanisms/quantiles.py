"""Private quantiles, and bounds for a column whose range nobody declared."""

import math

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.privacy.events import DiscreteLaplaceEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.checks import Column, check_edges, check_fraction
from dpflows.privacy.mechanisms.choosing import exponential_mechanism
from dpflows.privacy.mechanisms.counting import COUNTING, bin_counts
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

_SMALLEST_POWER, _LARGEST_POWER = -30, 60
_MAGNITUDES = 2.0 ** np.arange(_SMALLEST_POWER, _LARGEST_POWER + 1)
#: Public bins that double in width on both sides of zero.
_DOUBLING_EDGES = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES])


def quantile_sensitivity(fraction: float) -> Sensitivity:
    """How far one row moves any quantile score: the larger side, or both when replaced."""
    return Sensitivity(max(fraction, 1 - fraction), max(fraction, 1 - fraction), 1.0)


def quantile_scores(
    values: Column, candidates: Float64[np.ndarray, " candidates"], fraction: float
) -> Float64[np.ndarray, " candidates"]:
    """Minus the imbalance |(1 - fraction) #below - fraction #above| of each candidate."""
    numbers = np.sort(values[~np.isnan(values)])
    below = np.searchsorted(numbers, candidates, side="left")
    above = len(numbers) - np.searchsorted(numbers, candidates, side="right")
    return -np.abs((1 - fraction) * below - fraction * above)


def private_quantile(
    values: Column,
    candidates: Float64[np.ndarray, " candidates"],
    *,
    fraction: float,
    scale: float,
    entropy: Entropy,
    purpose: str = "quantile",
) -> Release[float]:
    """A public candidate near the given quantile of a column.

    Args:
        values: One number per row; NaN counts on neither side.
        candidates: Public, strictly increasing; the answer is one of them.
        fraction: Which quantile, 0.5 for the median.
        scale: Of the noise on the imbalance of each candidate, in rows.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        An exponential mechanism whose scores move by max(fraction, 1 - fraction)
        when a row comes, goes or is blanked, and by 1 when it is replaced.

    Example:
        >>> import numpy as np
        >>> release = private_quantile(
        ...     np.linspace(0, 1, 999), np.linspace(0, 1, 11), fraction=0.5, scale=1.0,
        ...     entropy=Entropy.from_os(),
        ... )
        >>> release.value
        0.5
    """
    check_edges(candidates)
    check_fraction("fraction", fraction)
    chosen = exponential_mechanism(
        quantile_scores(values, candidates, fraction),
        sensitivity=quantile_sensitivity(fraction),
        scale=scale,
        entropy=entropy,
        purpose=purpose,
    )
    return Release(float(candidates[chosen.value]), chosen.event, chosen.stamp)


def private_bounds(
    values: Column,
    *,
    scale: float,
    entropy: Entropy,
    miss: float = 1e-6,
    purpose: str = "bounds",
) -> Release[tuple[float, float] | None]:
    """Powers of two that enclose nearly all of a column; ``None`` if no count stands out.

    A noisy histogram over bins that double in width; the outermost bins that are
    surely not empty give the bounds, so a few outliers are left out.

    Args:
        values: One number per row; NaN and infinite values are counted nowhere.
        scale: Of the noise; epsilon is the sensitivity over it.
        entropy: Where the noise comes from.
        miss: The chance that an empty bin is taken for a filled one.
        purpose: For the record.

    Guarantee:
        One noisy histogram (L1 sensitivity 1, replace-one 2); the rest is computed
        from its noisy counts.

    Example:
        >>> import numpy as np
        >>> private_bounds(np.full(500, 3.0), scale=1.0, entropy=Entropy.from_os()).value
        (2.0, 4.0)
    """
    check_positive("scale", scale)
    check_fraction("miss", miss)
    counts = bin_counts(values, _DOUBLING_EDGES).tolist()
    noisy = np.array(sampler_for(entropy, purpose).discrete_laplace(counts, scale), dtype=np.int64)
    event = DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
    return Release(_enclosing(noisy, scale * math.log(len(counts) / miss)), event, entropy.stamp)


def _enclosing(noisy: Int64[np.ndarray, " bins"], threshold: float) -> tuple[float, float] | None:
    filled = np.flatnonzero(noisy > threshold)
    if len(filled) == 0:
        return None
    return float(_DOUBLING_EDGES[filled[0]]), float(_DOUBLING_EDGES[filled[-1] + 1])

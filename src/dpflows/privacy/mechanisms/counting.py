"""Counts in fixed bins, with two-sided geometric noise."""

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.privacy.events import DiscreteLaplaceEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.checks import Column, check_edges
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

#: One row is in one bin or in none; replacing it may change two bins.
COUNTING = Sensitivity(zero_out=1.0, add_remove=1.0, replace_one=2.0)


def bin_counts(values: Column, edges: Float64[np.ndarray, " edges"]) -> Int64[np.ndarray, " bins"]:
    """How many values lie in each bin; those outside, or not numbers, are in none.

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
        values: One number per row; NaN and values outside are counted nowhere.
        edges: Public, strictly increasing.
        scale: Of the noise; epsilon is the sensitivity over it.
        entropy: Where the noise comes from.
        purpose: For the record.

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
        Sensitivity 1 under every relation: a row counts or does not.

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

"""Private discovery of the categories of a column."""

import math
from collections import Counter
from collections.abc import Sequence

from dpflows.privacy.events import ApproximateEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.checks import check_fraction
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy


def discovery_threshold(scale: float, delta: float) -> int:
    """The noisy count a category needs, so that one with a single row passes with chance delta.

    The noise is k >= 1 or more with chance exp(-k / scale) / (1 + exp(-1 / scale)).
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
    """The categories that enough rows share, with noisy counts, in alphabetical order.

    Args:
        values: One category per row; ``None`` is counted nowhere.
        scale: Of the noise on each count.
        delta: The chance that a category of one single row shows.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        (1/scale, delta) when a row comes, goes or is blanked, (2/scale, delta) when it
        is replaced: apart from showing its own category, a row moves one count by one.

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

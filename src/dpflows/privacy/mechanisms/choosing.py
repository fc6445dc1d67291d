"""Choosing the best of public candidates by scores that depend on private rows."""

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.privacy.events import BoundedRangeEvent, PureEvent, Sensitivity, check_positive
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

Scores = Float64[np.ndarray, " candidates"]

#: Scores are held inside this range, so that one row cannot turn a comparison into NaN.
_LARGEST_SCORE = 1e15


def exponential_mechanism(
    scores: Scores,
    *,
    sensitivity: Sensitivity,
    scale: float,
    entropy: Entropy,
    monotone: bool = False,
    purpose: str = "choice",
) -> Release[int]:
    """The index of a candidate, drawn with chance proportional to exp(score / scale).

    Args:
        scores: One per public candidate; NaN counts as the worst.
        sensitivity: How far one person can move any score.
        scale: Of the noise.
        entropy: Where the noise comes from.
        monotone: Whether adding a row never lowers a score, or never raises one.
        purpose: For the record.

    Guarantee:
        Bounded range: the log odds of two candidates move by at most twice the
        sensitivity over ``scale`` (once, if monotone and no row is replaced).

    Example:
        >>> import numpy as np
        >>> release = exponential_mechanism(
        ...     np.array([1.0, 90.0]), sensitivity=Sensitivity.uniformly(1.0), scale=2.0,
        ...     entropy=Entropy.from_os(),
        ... )
        >>> release.value, release.event.epsilon.under("zero-out")
        (1, 1.0)
    """
    check_positive("scale", scale)
    chosen = sampler_for(entropy, purpose).noisy_max(_tamed(scores), scale, "gumbel")
    width = _width(sensitivity, scale, monotone)
    return Release(chosen, BoundedRangeEvent(epsilon=width, purpose=purpose), entropy.stamp)


def report_noisy_max(
    scores: Scores,
    *,
    sensitivity: Sensitivity,
    scale: float,
    entropy: Entropy,
    monotone: bool = False,
    purpose: str = "choice",
) -> Release[int]:
    """The index of the best candidate after one-sided exponential noise on each score.

    Equal in law to permute-and-flip: it errs less often than the exponential mechanism
    at the same epsilon, but composes as a pure release only.

    Guarantee:
        Pure: twice the sensitivity over ``scale`` (once, if monotone and no row is
        replaced).

    Example:
        >>> import numpy as np
        >>> release = report_noisy_max(
        ...     np.array([1.0, 90.0]), sensitivity=Sensitivity.uniformly(1.0), scale=2.0,
        ...     entropy=Entropy.from_os(),
        ... )
        >>> release.value, release.event.epsilon.under("zero-out")
        (1, 1.0)
    """
    check_positive("scale", scale)
    chosen = sampler_for(entropy, purpose).noisy_max(_tamed(scores), scale, "exponential")
    width = _width(sensitivity, scale, monotone)
    return Release(chosen, PureEvent(epsilon=width, purpose=purpose), entropy.stamp)


def _tamed(scores: Scores) -> list[float]:
    if len(scores) == 0:
        raise InputError("scores must hold at least one candidate")
    worst_for_nan = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    held: list[float] = np.clip(worst_for_nan, -_LARGEST_SCORE, _LARGEST_SCORE).tolist()
    return held


def _width(sensitivity: Sensitivity, scale: float, monotone: bool) -> Sensitivity:
    factor = (1 if monotone else 2) / scale
    return Sensitivity(
        zero_out=factor * sensitivity.zero_out,
        add_remove=factor * sensitivity.add_remove,
        replace_one=2 * sensitivity.replace_one / scale,
    )

"""Choosing the best of several private runs, with a random number of runs.

Trying many settings and keeping the best costs more than one run, but far less than
the sum of all, if the number of runs is random and stays secret (Papernot and Steinke
2022). Only the selected run is revealed.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float64
from scipy.optimize import brentq

from dpflows.errors import InputError
from dpflows.privacy.events import (
    Event,
    GaussianEvent,
    SelectionEvent,
    Sensitivity,
    check_at_least,
    check_positive,
)
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

Result = TypeVar("Result")

#: A mean score: each row moves the sum by one half-width of its range at most.
SCORING = Sensitivity.of_sum(1.0)
_LATTICE = 2.0**-30
#: The number of runs is cut here; the chance of more is below one in 2^53.
_TAIL = 2.0**-53


def select_best(
    run: Callable[[int], tuple[Result, float]],
    candidates: int,
    *,
    run_events: Sequence[Event],
    mean: float,
    entropy: Entropy,
    shape: float | None = 1.0,
    purpose: str = "selection",
    candidate_events: Sequence[Sequence[Event]] = (),
) -> Release[Result | None]:
    """The best result of a random number of runs with random candidates.

    Args:
        run: Makes one private run with a candidate's index and returns the result and
            its score. The score must be paid for by ``run_events`` too.
        candidates: How many there are; each run draws one at random.
        run_events: What one run costs, whichever candidate it uses.
        mean: The mean number of runs.
        entropy: Where the number of runs and the candidates come from.
        shape: 1 for a geometric law, 0 for a logarithmic one, ``None`` for Poisson.
        purpose: For the record.
        candidate_events: What a run costs besides, by candidate, where they differ.

    Guarantee:
        Covers the selected result alone. The number of runs, the other results and
        their scores must stay secret. With a Poisson law there may be no run at all.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> paid = [GaussianEvent(noise=30.0, sensitivity=Sensitivity.of_sum(1.0))]
        >>> release = select_best(
        ...     lambda index: (f"candidate {index}", float(index)), 3, run_events=paid,
        ...     mean=5.0, entropy=Entropy.from_os(),
        ... )
        >>> release.event.kind
        'selection'
    """
    check_at_least("candidates", candidates, 1)
    event = selection_event(run_events, candidate_events, mean=mean, shape=shape, purpose=purpose)
    runs = draw_runs(mean, shape, entropy=entropy)
    drawn = entropy.uniforms("mechanisms", step=1, count=max(runs, 1))[:runs]
    results = [run(int(candidates * share)) for share in drawn]
    best = max(results, key=lambda result: _score(result[1]), default=(None, 0.0))[0]
    return Release(best, event, entropy.stamp)


def selection_event(
    run_events: Sequence[Event],
    candidate_events: Sequence[Sequence[Event]] = (),
    *,
    mean: float,
    shape: float | None,
    purpose: str = "selection",
) -> SelectionEvent:
    """What ``select_best`` costs with these arguments, before anything is run.

    Example:
        >>> selection_event((), mean=4.0, shape=1.0).mean
        4.0
    """
    candidates = tuple(tuple(events) for events in candidate_events)
    return SelectionEvent(
        run=tuple(run_events), mean=mean, shape=shape, candidates=candidates, purpose=purpose
    )


def noisy_mean_score(
    scores: Float64[np.ndarray, " rows"],
    low: float,
    high: float,
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "score",
) -> Release[float]:
    """The mean of scores that are clipped to a public range.

    Args:
        scores: One per row; one that is not a number counts as ``low``.
        low: The lowest score that counts.
        high: The highest.
        noise: Standard deviation of the noise on the sum, in half-widths of the range.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        A Gaussian mechanism: one row moves the sum by half the range at most. The number of
        rows is public. Scores are rounded to a lattice and summed as integers.

    Example:
        >>> found = noisy_mean_score(
        ...     np.full(5000, 0.5), 0.0, 1.0, noise=3.0, entropy=Entropy.insecure(1)
        ... )
        >>> bool(abs(found.value - 0.5) < 0.01)
        True
    """
    check_positive("noise", noise)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError("the range of scores must be finite, with its low end below its high end")
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    kept = np.nan_to_num(np.asarray(scores, np.float64), nan=low, posinf=high, neginf=low)
    units = np.clip((np.clip(kept, low, high) - middle) / half, -1.0, 1.0)
    total = float(np.rint(units / _LATTICE).astype(np.int64).sum() * _LATTICE)
    noisy = sampler_for(entropy, purpose).gaussian([total], noise, lattice=_LATTICE)[0]
    event = GaussianEvent(noise=noise, sensitivity=SCORING, purpose=purpose)
    return Release(middle + half * noisy / max(len(units), 1), event, entropy.stamp)


def draw_runs(mean: float, shape: float | None, *, entropy: Entropy) -> int:
    """A secret number of runs.

    Example:
        >>> draw_runs(5.0, 1.0, entropy=Entropy.from_os()) >= 1
        True
    """
    uniform = entropy.uniforms("mechanisms", step=0, count=1)[0]
    return int(np.searchsorted(_cumulative(mean, shape), uniform, side="right"))


@functools.lru_cache(maxsize=8)
def _cumulative(mean: float, shape: float | None) -> Float64[np.ndarray, " runs"]:
    sums = np.cumsum(run_chances(mean, shape))
    return sums / sums[-1]


def run_chances(mean: float, shape: float | None) -> Float64[np.ndarray, " runs"]:
    """The chance of 0, 1, 2, ... runs, up to where the tail is negligible."""
    if shape is None:
        return _poisson(mean)
    if not mean > 1:
        raise InputError(f"mean must exceed 1 for this shape, got {mean}")
    return _negative_binomial(mean, shape)


def _poisson(mean: float) -> Float64[np.ndarray, " runs"]:
    runs = np.arange(math.ceil(mean + 12 * math.sqrt(mean) + 60))
    factorials = np.cumsum(np.log(np.maximum(runs, 1)))
    return np.exp(runs * math.log(mean) - mean - factorials)


def _negative_binomial(mean: float, shape: float) -> Float64[np.ndarray, " runs"]:
    stay = _continuation(mean, shape)
    runs = np.arange(1, 2 + math.ceil((math.log(_TAIL) - 10) / math.log(stay)))
    steps = np.log((runs[:-1] + shape) / (runs[:-1] + 1))
    weights = np.exp(runs * math.log(stay) + np.concatenate([[0.0], np.cumsum(steps)]))
    return np.concatenate([[0.0], weights / weights.sum()])


def _continuation(mean: float, shape: float) -> float:
    """One minus the parameter of the law that has the given mean."""

    def excess(logit: float) -> float:
        stop = 1 / (1 + math.exp(logit))
        return _mean(stop, shape) - mean

    return 1 / (1 + math.exp(-float(brentq(excess, -30.0, 30.0))))


def _mean(stop: float, shape: float) -> float:
    if shape == 0:
        return (1 / stop - 1) / math.log(1 / stop)
    return shape * (1 - stop) / (stop * -math.expm1(shape * math.log(stop)))


def _score(score: float) -> float:
    return -math.inf if math.isnan(score) else score

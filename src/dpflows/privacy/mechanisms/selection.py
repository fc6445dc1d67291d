"""Private selection: the best candidate, quantile, run, or answer.

The exponential mechanism and report noisy max choose among public candidates by scores of
private rows; private quantiles and the discovery of bounds are built on noisy scores and
counts. ``select_best`` returns the best of a random number of private runs: this costs more
than one run, but far less than the sum of all, if the number of runs is random and stays
secret (Papernot and Steinke 2022), and only the selected run is revealed. ``SparseVector``
answers many threshold questions of which few are answered yes. ``noisy_vote`` releases the
majority of models trained on disjoint rows.
"""

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar, cast, final

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import brentq

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.events import (
    VOTE_LAWS,
    BoundedRangeEvent,
    Column,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PureEvent,
    Release,
    SelectionEvent,
    Sensitivity,
    VoteEvent,
    VoteLaw,
    check_at_least,
    check_choice,
    check_edges,
    check_fraction,
    check_positive,
)
from dpflows.privacy.mechanisms.statistics import COUNTING, bin_counts
from dpflows.privacy.randomness import Entropy, sampler_for

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
    """The index of a candidate, drawn with probability proportional to exp(score / scale).

    Args:
        scores: One per public candidate; NaN counts as the worst.
        sensitivity: The largest change one person can cause in any score.
        scale: Scale of the noise.
        entropy: Source of randomness.
        monotone: Whether adding a row never lowers a score, or never raises one.
        purpose: Label of the event.

    Guarantee:
        Bounded range: the log probability ratio of two candidates changes by at most twice the
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

    Equal in distribution to permute-and-flip: it errs less often than the exponential mechanism at
    the same epsilon, but composes only as a pure epsilon-DP release.

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


_SMALLEST_POWER, _LARGEST_POWER = -30, 60
_MAGNITUDES = 2.0 ** np.arange(_SMALLEST_POWER, _LARGEST_POWER + 1)
#: Public bins that double in width on both sides of zero.
_DOUBLING_EDGES = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES])


def quantile_sensitivity(fraction: float) -> Sensitivity:
    """The sensitivity of quantile scores: the larger side, or both for a replaced row."""
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
        values: One number per row; NaN is not counted.
        candidates: Public, strictly increasing; the answer is one of them.
        fraction: Which quantile, 0.5 for the median.
        scale: Scale of the noise on the imbalance of each candidate, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        An exponential mechanism whose scores change by max(fraction, 1 - fraction) when a row is
        added, removed or zeroed out, and by 1 when it is replaced.

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
        values: One number per row; NaN and infinite values are not counted.
        scale: Of the noise; epsilon is the sensitivity over it.
        entropy: Source of randomness.
        miss: The probability that an empty bin is taken for a filled one.
        purpose: Label of the event.

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
            its score. The cost of the score must be included in ``run_events``.
        candidates: How many there are; each run draws one at random.
        run_events: The events of one run, whichever candidate it uses.
        mean: The mean number of runs.
        entropy: Source of randomness.
        shape: 1 for a geometric law, 0 for a logarithmic one, ``None`` for Poisson.
        purpose: Label of the event.
        candidate_events: Further events of a run, by candidate, where they differ.

    Guarantee:
        Covers only the selected result. The number of runs, the other results and
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
    """The event of ``select_best`` with these arguments, before anything is run.

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
        scores: One per row; NaN counts as ``low``.
        low: The lowest score that counts.
        high: The highest score that counts.
        noise: Standard deviation of the noise on the sum, in half-widths of the range.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A Gaussian mechanism: one row changes the sum by at most half the range. The number of
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
        raise InputError("the range of scores must be finite, with low below high")
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
    """The probabilities of 0, 1, 2, ... runs, up to where the tail is negligible."""
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


#: Values are rounded to this fraction of their sensitivity before exact integer noise.
_QUERY_LATTICE = 2**20
_LARGEST_VALUE = 1e12


@final
class SparseVector:
    """The sparse vector technique: which values of a stream exceed a public threshold.

    The split of epsilon between threshold and values, the noise drawn once for the
    threshold and anew for each value, and the stop follow Lyu, Su and Li (2017).

    Args:
        threshold: Public.
        sensitivity: The largest change one person can cause in any value.
        epsilon: The epsilon of the whole stream under zero-out.
        positives: How many yes answers are given before it stops.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        ``event`` is pure and covers all answers together, however many of them were no. It must
        be charged before the first question. Noisy values are never revealed.

    Example:
        >>> stream = SparseVector(
        ...     50.0, sensitivity=Sensitivity.uniformly(1.0), epsilon=4.0, positives=1,
        ...     entropy=Entropy.from_os(),
        ... )
        >>> [stream.exceeds(value) for value in (0.0, 0.0, 100.0)]
        [False, False, True]
        >>> stream.exhausted
        True
    """

    def __init__(
        self,
        threshold: float,
        *,
        sensitivity: Sensitivity,
        epsilon: float,
        positives: int,
        entropy: Entropy,
        purpose: str = "sparse vector",
    ) -> None:
        check_positive("epsilon", epsilon)
        check_positive("sensitivity.zero_out", sensitivity.zero_out)
        check_at_least("positives", positives, 1)
        self._unit = sensitivity.zero_out / _QUERY_LATTICE
        self._left, self._asked = positives, 0
        self._entropy, self._purpose = entropy, purpose
        self._scales = _scales(epsilon, positives)
        self._threshold = self._noisy(threshold, self._scales[0])
        self.event = PureEvent(epsilon=_relative(sensitivity, epsilon), purpose=purpose)
        self.stamp = entropy.stamp

    @property
    def exhausted(self) -> bool:
        """Whether all yes answers have been given."""
        return self._left == 0

    def exceeds(self, value: float) -> bool:
        """Whether the value exceeds the threshold, after noise on both."""
        if self.exhausted:
            raise BudgetError(
                "all positive answers of this stream are used; start and charge a new stream"
            )
        answer = self._noisy(value, self._scales[1]) >= self._threshold
        self._left -= answer
        return answer

    def _noisy(self, value: float, scale: float) -> int:
        """The value on the lattice, NaN as the smallest value, plus integer noise."""
        self._asked += 1
        tame = min(max(value, -_LARGEST_VALUE), _LARGEST_VALUE) if value == value else None
        steps = round((-_LARGEST_VALUE if tame is None else tame) / self._unit)
        sampler = sampler_for(self._entropy, f"{self._purpose}/{self._asked}")
        return sampler.discrete_laplace([_held(steps)], scale)[0]


def _held(steps: int) -> int:
    return min(max(steps, -(2**62)), 2**62)


def _scales(epsilon: float, positives: int) -> tuple[float, float]:
    """Noise on the threshold and on each value, in lattice steps."""
    weight = (2 * positives) ** (2 / 3)
    for_threshold = epsilon / (1 + weight)
    reach = _QUERY_LATTICE + 1
    return reach / for_threshold, 2 * positives * reach / (epsilon - for_threshold)


def _relative(sensitivity: Sensitivity, epsilon: float) -> Sensitivity:
    if max(sensitivity.add_remove, sensitivity.replace_one) > _QUERY_LATTICE * sensitivity.zero_out:
        raise InputError("sensitivity must be of one order of magnitude under all relations")
    factor = epsilon / sensitivity.zero_out
    return Sensitivity(epsilon, factor * sensitivity.add_remove, factor * sensitivity.replace_one)


#: A row belongs to one part that nothing can change, so it can turn one vote.
VOTING = Sensitivity.uniformly(1.0)


def noisy_vote(
    votes: int,
    voters: int,
    *,
    epsilon: float,
    law: str = "geometric",
    sensitivity: Sensitivity = VOTING,
    entropy: Entropy,
    purpose: str = "vote",
) -> Release[bool]:
    """Whether more than half of the voters say yes, after noise.

    ``exponential`` answers yes with probability 1/(1 + exp(-epsilon (votes - voters/2))).
    ``geometric`` adds two-sided geometric noise to the votes and decides a tie by a fair coin; at
    equal epsilon it errs less whatever the votes (see ``VoteEvent``).

    Args:
        votes: How many say yes.
        voters: How many there are.
        epsilon: The largest epsilon of one answer per vote that a row can change.
        law: Law of the noise, ``geometric`` or ``exponential``.
        sensitivity: The number of votes one row can change under each relation: one, if each row
        belongs to one voter, independently of other rows.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        Pure: epsilon times the votes that one row can change, or less. The event holds the
        probability of each answer, so accountants compute its cost exactly. The noise is sampled
        exactly, and the coin is tossed whether or not it is needed.

    Example:
        >>> release = noisy_vote(40, 50, epsilon=2.0, entropy=Entropy.from_os())
        >>> release.value, release.event.kind
        (True, 'vote')
    """
    check_choice("law", law, VOTE_LAWS)
    kept = cast(VoteLaw, law)
    event = VoteEvent(
        voters=voters, epsilon=epsilon, law=kept, sensitivity=sensitivity, purpose=purpose
    )
    if not 0 <= votes <= voters:
        raise InputError("votes must be between 0 and voters")
    answer = _LAWS[law](votes, event, entropy)
    return Release(answer, event, entropy.stamp)


def _exponential(votes: int, event: VoteEvent, entropy: Entropy) -> bool:
    """Yes is the first candidate; each is scored by the votes for it."""
    scores = [float(votes), float(event.voters - votes)]
    sampler = sampler_for(entropy, event.purpose)
    return sampler.noisy_max(scores, 2 / event.epsilon, "gumbel") == 0


def _geometric(votes: int, event: VoteEvent, entropy: Entropy) -> bool:
    sampler = sampler_for(entropy, event.purpose)
    noisy = sampler.discrete_laplace([votes], 1 / event.epsilon)[0]
    # The coin is 0 or 1: it decides a tie and cannot turn a margin of half a vote or more.
    return 2 * noisy - event.voters >= _coin(entropy, event.purpose)


def _coin(entropy: Entropy, purpose: str) -> int:
    step = zlib.crc32(f"{purpose}/tie".encode())
    return entropy.bytes("mechanisms", step=step, count=1)[0] & 1


_LAWS = {"exponential": _exponential, "geometric": _geometric}

"""Privacy profiles: the delta of releases at every epsilon, and the interface of accountants.

``Profile`` is the cost of a composition of events, which an ``Accountant`` computes. The functions
below it are profiles of single mechanisms that no library covers, as functions of epsilon: the
hockey-stick divergence of a pair of distributions that dominates the mechanism for every pair of
neighbours. Dominating pairs compose,
also adaptively (Zhu, Dong and Wang 2022), which is all an accountant needs.

The profile of a noisy vote with a yes-or-no answer is exact. The answer is a Bernoulli variable
whose probability is known for every number of votes, so the cost is found by enumerating all pairs
of neighbours. Divergences of two Bernoulli variables grow with the distance of their probabilities,
so of all pairs that differ by at most the sensitivity, those that differ by exactly that are the
worst.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, final

import numpy as np
from jaxtyping import Float64
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp, ndtr

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours, SampledGaussianEvent, VoteEvent
from dpflows.privacy.guarantee import Kind

Losses = Float64[np.ndarray, " grid"]
HockeyStick = Callable[[Losses], Losses]

#: exp() of more would overflow a float.
LARGEST = 700.0


class Profile(abc.ABC):
    """The cost of a composition of events: epsilon for each delta and vice versa.

    Example:
        >>> isinstance(GaussianProfile(1.0), Profile)
        True
    """

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float:
        """The smallest epsilon this calculation supports at ``delta``."""

    @abc.abstractmethod
    def delta(self, epsilon: float) -> float:
        """The smallest delta this calculation supports at ``epsilon``."""


@final
@dataclasses.dataclass(frozen=True)
class LowerOf(Profile):
    """The lower of two profiles of one composition.

    Guarantee:
        A bound if both are: each holds at every delta by itself.

    Example:
        >>> both = LowerOf(GaussianProfile(1.0), GaussianProfile(2.0))
        >>> both.epsilon(1e-5) == GaussianProfile(1.0).epsilon(1e-5)
        True
    """

    first: Profile
    second: Profile

    def epsilon(self, delta: float) -> float:
        """The lower epsilon at ``delta``."""
        return min(self.first.epsilon(delta), self.second.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """The lower delta at ``epsilon``."""
        return min(self.first.delta(epsilon), self.second.delta(epsilon))


@final
@dataclasses.dataclass(frozen=True)
class Approximated(Profile):
    """The profile of a program that approximates a mechanism whose profile is known.

    Attributes:
        ideal: The profile of the mechanism.
        distance: The most by which the program's output differs from the mechanism's, in
            total variation, on either of two neighbouring tables.

    Guarantee:
        A bound if ``ideal`` is: P(A) <= P'(A) + distance <= e^epsilon Q'(A) + delta + distance
        <= e^epsilon (Q(A) + distance) + delta + distance, with P', Q' those of the mechanism.

    Example:
        >>> near = Approximated(GaussianProfile(1.0), 1e-7)
        >>> near.epsilon(1e-5) > GaussianProfile(1.0).epsilon(1e-5)
        True
    """

    ideal: Profile
    distance: float

    def epsilon(self, delta: float) -> float:
        """The mechanism's epsilon at ``delta`` less the distance's part."""
        # the distance counts e^epsilon times; twice as much allows for the epsilon that it adds
        taken = 2 * self._spent(self.ideal.epsilon(delta))
        epsilon = self.ideal.epsilon(delta - taken) if taken < delta else math.inf
        return epsilon if self._spent(epsilon) <= taken else math.inf

    def delta(self, epsilon: float) -> float:
        """The mechanism's delta plus the distance's part."""
        return min(1.0, self.ideal.delta(epsilon) + self._spent(epsilon))

    def _spent(self, epsilon: float) -> float:
        return (1 + math.exp(min(epsilon, 700.0))) * self.distance


class Accountant(abc.ABC):
    """Computes the cost of a list of events under a neighbour relation.

    A new accountant is one file with a final subclass and one line in the registry.

    Guarantee:
        ``kind`` says what its figures are: a ``bound`` is proven to be at least the true cost, an
        ``estimate`` may be below it.

    Example:
        >>> from dpflows.privacy.accounting import ACCOUNTANTS
        >>> {name: accountant.kind for name, accountant in ACCOUNTANTS.items()}["pld"]
        'bound'
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    #: One line for a reader of tables: what the figure means and when it holds.
    reading: ClassVar[str]

    @abc.abstractmethod
    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """The cost of making all ``events``, or an ``InputError`` if it cannot be computed."""


def unpriced(event: Event, accountant: str, neighbours: Neighbours, remedy: str) -> InputError:
    """The error of an accountant that does not support an event, naming one that does."""
    return InputError(
        f"accountant {accountant!r} cannot compute the cost of a {event.kind} event under "
        "neighbours "
        f"{neighbours!r}; {remedy}"
    )


#: Above this mu the closed form has no digits left, and its proven upper end serves.
_VAST = 1e6
#: A Gaussian at less distance costs nothing that counts; one at so much more than the root of twice
#: epsilon costs a delta of nearly one.
_LEAST_MU, _CERTAIN = 1e-12, 20.0


@final
@dataclasses.dataclass(frozen=True)
class GaussianProfile(Profile):
    """The trade-off between two unit Gaussians at distance ``mu``.

    Example:
        >>> round(GaussianProfile(1.0).epsilon(1e-5), 3)
        4.377
    """

    mu: float

    @classmethod
    def within(cls, epsilon: float, delta: float) -> "GaussianProfile":
        """The profile with the largest ``mu`` that costs at most ``epsilon`` at ``delta``.

        Example:
            >>> round(GaussianProfile.within(4.3772, 1e-5).mu, 3)
            1.0
        """

        def excess(logarithm: float) -> float:
            return cls(math.exp(logarithm))._excess(epsilon, delta)

        largest = math.sqrt(2 * epsilon) + _CERTAIN
        root = float(brentq(excess, math.log(_LEAST_MU), math.log(largest), xtol=1e-12))
        return cls(math.exp(root - 1e-11))

    def epsilon(self, delta: float) -> float:
        """The root of the closed form, rounded up by the solver's tolerance."""
        if self.mu == 0 or self.delta(0.0) <= delta:
            return 0.0
        if not math.isfinite(self.mu):
            return math.inf
        upper = self.mu**2 / 2 + self.mu * math.sqrt(2 * math.log(1 / delta))
        if self.mu > _VAST:
            return upper
        return float(brentq(lambda e: self._excess(e, delta), 0.0, upper, xtol=1e-12)) + 1e-11

    def delta(self, epsilon: float) -> float:
        """The closed form of Balle and Wang (2018)."""
        if self.mu == 0:
            return 0.0
        return float(gaussian(np.array([epsilon]), self.mu)[0])

    def _excess(self, epsilon: float, delta: float) -> float:
        # In logarithms, so that very small deltas keep their digits.
        upper = log_ndtr(self.mu / 2 - epsilon / self.mu)
        lower = epsilon + log_ndtr(-self.mu / 2 - epsilon / self.mu)
        return float(upper + math.log(max(-math.expm1(lower - upper), 1e-300)) - math.log(delta))


def gaussian(epsilon: Losses, mu: float) -> Losses:
    """Two unit Gaussians at distance ``mu``: Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu)."""
    upper = np.exp(log_ndtr(mu / 2 - epsilon / mu))
    return np.maximum(upper - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)), 0.0)


def symmetrised(positive: HockeyStick) -> HockeyStick:
    """Extend a profile known at epsilon >= 0, in both directions, to negative epsilon.

    For any pair, H(-e; P, Q) = 1 - exp(-e) + exp(-e) H(e; Q, P), so one bound for both
    orders of the neighbours fixes the other half.
    """

    def extended(epsilon: Losses) -> Losses:
        half = positive(np.abs(epsilon))
        shrink = np.exp(np.minimum(epsilon, 0.0))
        return np.where(epsilon < 0, 1 - shrink + shrink * half, half)

    return extended


def poisson_present(rate: float, mu: float) -> HockeyStick:
    """The mixture (1 - rate) N(0) + rate N(mu) against N(0): the row may be present."""

    def profile(epsilon: Losses) -> Losses:
        shifted = np.expm1(epsilon) / rate
        inside = np.log1p(np.maximum(shifted, -1 + 1e-15))
        return np.where(shifted > -1, rate * gaussian(inside, mu), -np.expm1(epsilon))

    return profile


def poisson_absent(rate: float, mu: float) -> HockeyStick:
    """N(0) against the mixture (1 - rate) N(0) + rate N(mu): the row is absent."""

    def profile(epsilon: Losses) -> Losses:
        excess = 1 - (1 - rate) * np.exp(epsilon)
        weight = np.maximum(excess, np.finfo(float).tiny)
        inside = np.minimum(epsilon + math.log(rate) - np.log(weight), LARGEST)
        return np.where(excess > 0, weight * gaussian(inside, mu), 0.0)

    return profile


def poisson_replaced(rate: float, mu: float) -> HockeyStick:
    """(1 - rate) N(0) + rate N(mu) against (1 - rate) N(0) + rate N(-mu): the row changes sides.

    The likelihood ratio reaches exp(e) at the root of a quadratic in exp(mu x).
    """
    pull = math.log(2 * rate) - mu * mu / 2

    def positive(epsilon: Losses) -> Losses:
        linear = (1 - rate) * np.expm1(epsilon)
        root = np.hypot(linear, np.exp(pull + epsilon / 2))
        crossing = np.log(np.maximum(linear + root, np.finfo(float).tiny)) - pull
        cut = np.where(epsilon > 0, crossing, 0.0) / mu
        unsampled = (1 - rate) * -np.expm1(epsilon) * ndtr(-cut)
        sampled = ndtr(mu - cut) - np.exp(epsilon + log_ndtr(-cut - mu))
        return np.maximum(unsampled + rate * sampled, 0.0)

    return symmetrised(positive)


def cut(event: SampledGaussianEvent) -> tuple[float, float]:
    """The probability that a batch with a given row is truncated, and that the row remains."""
    cap, rows = event.batch_cap or event.rows, event.rows
    if cap >= rows:
        return 0.0, 1.0
    chance = float(stats.binom.sf(cap - 1, rows - 1, event.rate))
    if chance == 0:
        return 0.0, 1.0
    overflow = float(stats.binom.sf(cap, rows, event.rate))
    return chance, min(1.0, overflow * cap / (chance * rows))


def without_replacement(rate: float, mu: float) -> HockeyStick:
    """A Gaussian on a batch of fixed size that holds a given row with chance ``rate``.

    With exp(e') = 1 + rate (exp(e) - 1), the subsampled profile at e' is ``rate`` times
    the profile at e (Balle, Barthe and Gaboardi 2018, Theorem 9). ``mu`` counts from a
    batch with the row to one where *another* row sits in its place: twice the norm bound.
    """

    def positive(epsilon: Losses) -> Losses:
        return rate * gaussian(np.log1p(np.expm1(epsilon) / rate), mu)

    return symmetrised(positive)


def randomised_response(epsilon_pure: float, failure: float) -> HockeyStick:
    """Any (epsilon, delta) mechanism: fails with chance delta, else loses plus or minus epsilon."""
    up = 1 / (1 + math.exp(-epsilon_pure))

    def profile(epsilon: Losses) -> Losses:
        high = -np.expm1(np.minimum(epsilon - epsilon_pure, 0.0))
        low = -np.expm1(np.minimum(epsilon + epsilon_pure, 0.0))
        return failure + (1 - failure) * (up * high + (1 - up) * low)

    return profile


def bounded_range(epsilon_range: float) -> HockeyStick:
    """Any mechanism whose privacy loss lies in some interval [t - range, t], t in [0, range].

    For known t a two-point pair is worst; the largest value over t at each epsilon is
    (1 - exp((e - range)/2))^2 / (1 - exp(-range)) (Dong, Durfee and Rogers 2020). It
    dominates for every t at once, hence also when t is chosen adaptively.
    """

    def profile(epsilon: Losses) -> Losses:
        inside = np.clip(epsilon, -epsilon_range, epsilon_range)
        bulk = np.expm1((inside - epsilon_range) / 2) ** 2 / -math.expm1(-epsilon_range)
        return np.where(epsilon < -epsilon_range, -np.expm1(np.minimum(epsilon, 0.0)), bulk)

    return profile


def convex_in_odds(epsilon: Losses, delta: Losses) -> Losses:
    """The largest function below ``delta`` that is convex in exp(epsilon), on the grid.

    A true profile is convex in exp(epsilon), so any bound on it may be lowered to this.
    """
    odds = np.exp(epsilon)
    hull: list[int] = []
    for index in range(len(odds)):
        while len(hull) > 1 and _above_chord(odds, delta, hull[-2], hull[-1], index):
            hull.pop()
        hull.append(index)
    return np.interp(odds, odds[hull], delta[hull])


def _above_chord(x: Losses, y: Losses, left: int, middle: int, right: int) -> bool:
    rise = (y[right] - y[left]) * (x[middle] - x[left])
    return bool((y[middle] - y[left]) * (x[right] - x[left]) >= rise)


Answer = Float64[np.ndarray, "2"]
Answers = Float64[np.ndarray, "pairs 2"]
Orders = Float64[np.ndarray, " orders"]


class VotePairs(NamedTuple):
    """The worst pairs of neighbours: log probabilities of yes and no under the first, and losses.

    The second of a pair has more votes. The opposite order needs no entry: exchanging yes and no
    turns ``votes`` into ``voters - votes`` and changes no divergence.
    """

    log_chances: Answers
    losses: Answers


@functools.lru_cache(maxsize=64)
def vote_pairs(event: VoteEvent, neighbours: Neighbours) -> VotePairs:
    """All pairs of vote counts that differ by as many votes as one person can change."""
    turned = min(math.ceil(event.sensitivity.under(neighbours)), event.voters)
    yes = np.array([event.log_chance(votes) for votes in range(event.voters + 1)])
    both = np.stack([yes, yes[::-1]], axis=1)
    fewer, more = both[: len(both) - turned], both[turned:]
    return VotePairs(fewer, fewer - more)


def vote_epsilon(event: VoteEvent, neighbours: Neighbours) -> float:
    """The smallest epsilon for which one answer is epsilon-DP.

    Guarantee:
        Attained by a pair of neighbours, in the limit of a delta of zero. Never more than
        the event's own epsilon times the number of votes changed.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> once = Sensitivity.uniformly(1.0)
        >>> event = VoteEvent(voters=4, epsilon=1.0, law="exponential", sensitivity=once)
        >>> round(vote_epsilon(event, "zero-out"), 3)
        0.814
    """
    return float(np.abs(vote_pairs(event, neighbours).losses).max())


def vote_width(event: VoteEvent, neighbours: Neighbours) -> float:
    """The largest change of the logit of yes: the range of the privacy loss.

    Guarantee:
        The answer is width^2/8 zero-concentrated private (Hoeffding's lemma). For the
        exponential law it is epsilon times the votes changed, for any law at most twice
        ``vote_epsilon``.
    """
    return float(np.abs(np.diff(vote_pairs(event, neighbours).losses, axis=1)).max())


def vote_profile(event: VoteEvent, neighbours: Neighbours) -> HockeyStick:
    """The largest hockey-stick divergence over all pairs, at each epsilon.

    Guarantee:
        Each divergence is convex in exp(epsilon), hence so is the largest. It belongs to
        a pair that dominates every pair of neighbours in both orders and therefore
        composes, also when later questions depend on earlier answers.
    """
    pairs = vote_pairs(event, neighbours)

    def largest(epsilon: Losses) -> Losses:
        envelope = np.zeros_like(epsilon)
        for log_chances, losses in zip(*pairs, strict=True):
            np.maximum(envelope, _hockey_stick(epsilon, log_chances, losses), out=envelope)
        return envelope

    return largest


def vote_renyi(event: VoteEvent, neighbours: Neighbours, orders: Orders) -> Orders:
    """The largest Rényi divergence over all pairs, at each order above one.

    Guarantee:
        Exact at each order for the worst pair of that order, in both orders of the pair.
    """
    log_chances, losses = vote_pairs(event, neighbours)
    powers = (orders[:, None, None] - 1) * losses
    # Small powers cancel, so they are summed without the ones; large ones overflow.
    small = np.log1p((np.exp(log_chances) * np.expm1(np.minimum(powers, 1.0))).sum(axis=-1))
    large = logsumexp(log_chances + powers, axis=-1)
    costs = np.where(powers.max(axis=-1) < 1, small, large).max(axis=-1) / (orders - 1)
    return np.clip(costs, 0.0, vote_epsilon(event, neighbours))


def _hockey_stick(epsilon: Losses, log_chances: Answer, losses: Answer) -> Losses:
    excess = -np.expm1(np.minimum(epsilon[:, None] - losses, 0.0))
    return excess @ np.exp(log_chances)

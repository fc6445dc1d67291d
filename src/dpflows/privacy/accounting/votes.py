"""The exact cost of a noisy vote with a yes-or-no answer.

The answer is a Bernoulli variable whose probability is known for every number of votes, so
the cost is found by enumerating all pairs of neighbours. Divergences of two Bernoulli
variables grow with the distance of their probabilities, so of all pairs that differ by at
most the sensitivity, those that differ by exactly that are the worst.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.special import logsumexp

from dpflows.privacy.accounting.privacy_profiles import HockeyStick, Losses
from dpflows.privacy.events import Neighbours, VoteEvent

Answer = Float64[np.ndarray, "2"]
Answers = Float64[np.ndarray, "pairs 2"]
Orders = Float64[np.ndarray, " orders"]


class Pairs(NamedTuple):
    """The worst pairs of neighbours: log probabilities of yes and no under the first, and losses.

    The second of a pair has more votes. The opposite order needs no entry: exchanging yes and no
    turns ``votes`` into ``voters - votes`` and changes no divergence.
    """

    log_chances: Answers
    losses: Answers


@functools.lru_cache(maxsize=64)
def pairs_of(event: VoteEvent, neighbours: Neighbours) -> Pairs:
    """All pairs of vote counts that differ by as many votes as one person can change."""
    turned = min(math.ceil(event.sensitivity.under(neighbours)), event.voters)
    yes = np.array([event.log_chance(votes) for votes in range(event.voters + 1)])
    both = np.stack([yes, yes[::-1]], axis=1)
    fewer, more = both[: len(both) - turned], both[turned:]
    return Pairs(fewer, fewer - more)


def pure_epsilon(event: VoteEvent, neighbours: Neighbours) -> float:
    """The smallest epsilon for which one answer is epsilon-DP.

    Guarantee:
        Attained by a pair of neighbours, in the limit of a delta of zero. Never more than
        the event's own epsilon times the number of votes changed.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> once = Sensitivity.uniformly(1.0)
        >>> event = VoteEvent(voters=4, epsilon=1.0, law="exponential", sensitivity=once)
        >>> round(pure_epsilon(event, "zero-out"), 3)
        0.814
    """
    return float(np.abs(pairs_of(event, neighbours).losses).max())


def width(event: VoteEvent, neighbours: Neighbours) -> float:
    """The largest change of the logit of yes: the range of the privacy loss.

    Guarantee:
        The answer is width^2/8 zero-concentrated private (Hoeffding's lemma). For the
        exponential law it is epsilon times the votes changed, for any law at most twice
        ``pure_epsilon``.
    """
    return float(np.abs(np.diff(pairs_of(event, neighbours).losses, axis=1)).max())


def profile(event: VoteEvent, neighbours: Neighbours) -> HockeyStick:
    """The largest hockey-stick divergence over all pairs, at each epsilon.

    Guarantee:
        Each divergence is convex in exp(epsilon), hence so is the largest. It belongs to
        a pair that dominates every pair of neighbours in both orders and therefore
        composes, also when later questions depend on earlier answers.
    """
    pairs = pairs_of(event, neighbours)

    def largest(epsilon: Losses) -> Losses:
        envelope = np.zeros_like(epsilon)
        for log_chances, losses in zip(*pairs, strict=True):
            np.maximum(envelope, _hockey_stick(epsilon, log_chances, losses), out=envelope)
        return envelope

    return largest


def renyi(event: VoteEvent, neighbours: Neighbours, orders: Orders) -> Orders:
    """The largest Rényi divergence over all pairs, at each order above one.

    Guarantee:
        Exact at each order for the worst pair of that order, in both orders of the pair.
    """
    log_chances, losses = pairs_of(event, neighbours)
    powers = (orders[:, None, None] - 1) * losses
    # Small powers cancel, so they are summed without the ones; large ones overflow.
    small = np.log1p((np.exp(log_chances) * np.expm1(np.minimum(powers, 1.0))).sum(axis=-1))
    large = logsumexp(log_chances + powers, axis=-1)
    costs = np.where(powers.max(axis=-1) < 1, small, large).max(axis=-1) / (orders - 1)
    return np.clip(costs, 0.0, pure_epsilon(event, neighbours))


def _hockey_stick(epsilon: Losses, log_chances: Answer, losses: Answer) -> Losses:
    excess = -np.expm1(np.minimum(epsilon[:, None] - losses, 0.0))
    return excess @ np.exp(log_chances)

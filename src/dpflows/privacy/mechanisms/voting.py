"""A majority of models trained on disjoint rows, with noise."""

from dpflows.errors import InputError
from dpflows.privacy.events import (
    DiscreteLaplaceEvent,
    Sensitivity,
    check_at_least,
    check_positive,
)
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

#: A row belongs to one shard, so it can turn one vote, whatever happens to the row.
VOTING = Sensitivity.uniformly(1.0)


def noisy_vote(
    votes: int, voters: int, *, scale: float, entropy: Entropy, purpose: str = "vote"
) -> Release[bool]:
    """Whether more than half of the voters say yes, after two-sided geometric noise.

    Args:
        votes: How many say yes.
        voters: How many there are; each must have seen rows that no other has seen.
        scale: Of the noise; epsilon is one over it.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        Sensitivity 1 under every relation, as long as the shards are disjoint and a
        row stays in its shard when another comes or goes.

    Example:
        >>> noisy_vote(40, 50, scale=0.5, entropy=Entropy.from_os()).value
        True
    """
    check_positive("scale", scale)
    check_at_least("voters", voters, 1)
    if not 0 <= votes <= voters:
        raise InputError("votes must be between 0 and voters")
    noisy = sampler_for(entropy, purpose).discrete_laplace([votes], scale)[0]
    event = DiscreteLaplaceEvent(scale=scale, sensitivity=VOTING, purpose=purpose)
    return Release(2 * noisy > voters, event, entropy.stamp)

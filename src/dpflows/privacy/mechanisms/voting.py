"""A majority of models trained on disjoint rows, with noise."""

import zlib
from typing import cast

from dpflows.errors import InputError
from dpflows.privacy.events import VOTE_LAWS, Sensitivity, VoteEvent, VoteLaw, check_choice
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

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

    ``exponential`` answers yes with chance 1/(1 + exp(-epsilon (votes - voters/2))).
    ``geometric`` adds two-sided geometric noise to the votes and leaves a tie to a fair
    coin; at equal epsilon it errs less whatever the votes (see ``VoteEvent``).

    Args:
        votes: How many say yes.
        voters: How many there are.
        epsilon: The largest price of one answer per vote that a row can turn.
        law: Of the noise, ``geometric`` or ``exponential``.
        sensitivity: How many votes one row can turn under each relation: one, if each
            row reaches one voter and no other row decides which.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        Pure: epsilon times the votes that one row can turn, or less. The event knows the
        chance of each answer, so accountants price it exactly. The noise is sampled
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

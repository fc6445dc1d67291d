"""A yes or no from a vote among models, after noise."""

import dataclasses
import math
from typing import ClassVar, Literal, get_args

import numpy as np

from dpflows.errors import InputError
from dpflows.privacy.events.base import Event
from dpflows.privacy.events.checks import check_at_least, check_choice, check_positive
from dpflows.privacy.events.relations import Sensitivity

VoteLaw = Literal["exponential", "geometric"]
VOTE_LAWS: tuple[VoteLaw, ...] = get_args(VoteLaw)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteEvent(Event):
    """One answer, yes or no, of ``voters`` models of which some number says yes.

    With a margin m = votes - voters/2 and e = ``epsilon``, the answer is yes

    - ``exponential``: with chance 1/(1 + exp(-e m)), the exponential mechanism that
      scores each answer by its votes;
    - ``geometric``: if m plus two-sided geometric noise, P(j) ~ exp(-e |j|), is positive,
      and by a fair coin if it is zero.

    At equal epsilon the geometric law errs less at every margin. For an even number of
    voters it gives the wrong answer with chance exp(-e m)/2, the exponential law with
    chance exp(-e m)/(1 + exp(-e m)), which is larger for every m > 0 and equal at m = 0.
    For an odd number the first becomes exp(-e m)/(2 cosh(e/2)), smaller still. The
    exponential law moves the log odds by e per vote where the geometric law may move
    them by nearly 2 e, so over many answers its price grows more slowly.

    ``sensitivity`` counts votes: how many of them one row can turn.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> once = Sensitivity.uniformly(1.0)
        >>> event = VoteEvent(voters=10, epsilon=1.0, law="geometric", sensitivity=once)
        >>> round(event.chance(7), 4)
        0.9323
    """

    kind: ClassVar[str] = "vote"
    voters: int
    epsilon: float
    law: VoteLaw
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("law", self.law, VOTE_LAWS)
        check_at_least("voters", self.voters, 1)
        check_positive("epsilon", self.epsilon)

    def chance(self, votes: int) -> float:
        """The chance that the answer is yes when ``votes`` models say yes."""
        return math.exp(self.log_chance(votes))

    def log_chance(self, votes: int) -> float:
        """The logarithm of ``chance``, exact where the chance itself would vanish.

        The chance of a no is that of a yes with ``voters - votes``, under both laws.
        """
        if not 0 <= votes <= self.voters:
            raise InputError("votes must be between 0 and voters")
        margin = votes - self.voters / 2
        if self.law == "exponential":
            return -_softplus(-self.epsilon * margin)
        return self._log_geometric(margin)

    def _log_geometric(self, margin: float) -> float:
        error = -self.epsilon * abs(margin) - self._log_half()
        return math.log1p(-math.exp(error)) if margin > 0 else error

    def _log_half(self) -> float:
        """Log of 2 if a tie is possible, else of 2 cosh(epsilon/2)."""
        if self.voters % 2 == 0:
            return math.log(2)
        return self.epsilon / 2 + _softplus(-self.epsilon)


def _softplus(value: float) -> float:
    return float(np.logaddexp(0.0, value))

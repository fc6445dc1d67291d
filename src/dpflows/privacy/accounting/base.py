"""The interface of accountants: from a list of events to a privacy profile."""

import abc
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, final

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours
from dpflows.privacy.guarantee import Kind


class Profile(abc.ABC):
    """The cost of a composition of events: epsilon for each delta and vice versa.

    Example:
        >>> from dpflows.privacy.accounting.gdp import GaussianProfile
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
        >>> from dpflows.privacy.accounting.gdp import GaussianProfile
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
        >>> from dpflows.privacy.accounting.gdp import GaussianProfile
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


def unit(event: Event) -> Event:
    """The event made once, without its purpose, which does not affect its cost."""
    return dataclasses.replace(event, count=1, purpose="")


def tally(events: Sequence[Event]) -> dict[Event, int]:
    """How often each distinct event was made."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[unit(event)] += event.count
    return dict(counts)


def unpriced(event: Event, accountant: str, neighbours: Neighbours, remedy: str) -> InputError:
    """The error of an accountant that does not support an event, naming one that does."""
    return InputError(
        f"accountant {accountant!r} cannot compute the cost of a {event.kind} event under "
        "neighbours "
        f"{neighbours!r}; {remedy}"
    )

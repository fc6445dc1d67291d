"""What an accountant is: events in, a privacy profile out."""

import abc
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, final

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours
from dpflows.privacy.guarantee import Kind


class Profile(abc.ABC):
    """What a composition of events costs: epsilon for each delta and back.

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


class Accountant(abc.ABC):
    """A way to price a list of events under a neighbour relation.

    A new accountant is one file with a final subclass and one line in the registry.

    Guarantee:
        ``kind`` says what its figures are worth: a ``bound`` is proven to be at least
        the true cost, an ``estimate`` may be below it.

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
        """The cost of making all ``events``, or an ``InputError`` if it cannot be priced."""


def unit(event: Event) -> Event:
    """The event made once, without the label that does not matter for its price."""
    return dataclasses.replace(event, count=1, purpose="")


def tally(events: Sequence[Event]) -> dict[Event, int]:
    """How often each distinct event was made."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[unit(event)] += event.count
    return dict(counts)


def unpriced(event: Event, accountant: str, neighbours: Neighbours, remedy: str) -> InputError:
    """The error of an accountant that cannot price an event, naming what can."""
    return InputError(
        f"accountant {accountant!r} cannot price a {event.kind} event under neighbours "
        f"{neighbours!r}; {remedy}"
    )

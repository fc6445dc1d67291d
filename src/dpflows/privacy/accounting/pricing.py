"""The accountants by name, and what a list of events costs according to one of them."""

import math
from collections.abc import Sequence
from importlib import metadata

from dpflows.errors import InputError
from dpflows.privacy.accounting.base import Accountant, Approximated, Profile
from dpflows.privacy.accounting.gdp import GDPAccountant, GDPCLTAccountant
from dpflows.privacy.accounting.pld import PLDAccountant
from dpflows.privacy.accounting.rdp import RDPAccountant
from dpflows.privacy.accounting.zcdp import ZCDPAccountant
from dpflows.privacy.events import NEIGHBOURS, Event, Neighbours, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee, check_delta

ACCOUNTANTS: dict[str, Accountant] = {
    accountant.name: accountant
    for accountant in (
        PLDAccountant(),
        RDPAccountant(),
        GDPCLTAccountant(),
        ZCDPAccountant(),
        GDPAccountant(),
    )
}

_LIBRARIES = ("dpflows", "dp-accounting", "numpy", "opendp", "scipy")


def epsilon_of(
    events: Sequence[Event],
    *,
    delta: float,
    neighbours: Neighbours = "zero-out",
    accountant: str = "pld",
) -> float:
    """What making all ``events`` costs at ``delta``.

    Guarantee:
        At least the true cost if the accountant's ``kind`` is ``bound``.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=5.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> round(epsilon_of([event], delta=1e-5), 3)
        0.726
    """
    check_delta(delta)
    check_choice("neighbours", neighbours, NEIGHBOURS)
    return profile_of(events, neighbours, accountant).epsilon(delta) if events else 0.0


def delta_of(
    events: Sequence[Event],
    *,
    epsilon: float,
    neighbours: Neighbours = "zero-out",
    accountant: str = "pld",
) -> float:
    """The chance with which ``epsilon`` may fail after all ``events`` were made.

    Guarantee:
        At least the true delta if the accountant's ``kind`` is ``bound``.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> delta_of([PureEvent(epsilon=Sensitivity.uniformly(0.5))], epsilon=1.0) < 1e-11
        True
    """
    if not epsilon >= 0:
        raise InputError(f"epsilon must not be negative, got {epsilon}")
    check_choice("neighbours", neighbours, NEIGHBOURS)
    return profile_of(events, neighbours, accountant).delta(epsilon) if events else 0.0


def profile_of(events: Sequence[Event], neighbours: Neighbours, accountant: str) -> Profile:
    """What making all ``events`` costs as a program makes them, at every delta."""
    ideal = choose(accountant).profile(events, neighbours)
    distance = sum(event.distance for event in events)
    return Approximated(ideal, distance) if distance else ideal


def guarantee_for(
    events: Sequence[Event],
    *,
    budget: Budget,
    accountant: str = "pld",
    stamps: Sequence[str] = (),
    caveats: Sequence[str] = (),
) -> Guarantee:
    """The certificate of a release that made exactly ``events``.

    Guarantee:
        Claims what the events cost at the budget's delta, never less, whatever the
        budget allowed. An unlimited budget claims nothing.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=5.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> promise = guarantee_for([event], budget=Budget(1.0, 1e-5))
        >>> promise.kind, round(promise.epsilon, 3), round(promise.replace_one_epsilon, 3)
        ('bound', 0.726, 1.555)
    """
    epsilon = _claimed(events, budget, accountant)
    return Guarantee(
        epsilon=epsilon,
        delta=budget.delta,
        neighbours=budget.neighbours,
        accountant=accountant,
        kind=choose(accountant).kind if math.isfinite(epsilon) else "none",
        events=tuple(events),
        replace_one_epsilon=_replace_one(events, budget, epsilon),
        versions=_versions(),
        stamps=tuple(stamps),
        caveats=tuple(caveats),
    )


def choose(accountant: str) -> Accountant:
    """The accountant of that name."""
    check_choice("accountant", accountant, tuple(ACCOUNTANTS))
    return ACCOUNTANTS[accountant]


def _claimed(events: Sequence[Event], budget: Budget, accountant: str) -> float:
    if not budget.is_private:
        return math.inf
    return epsilon_of(
        events, delta=budget.delta, neighbours=budget.neighbours, accountant=accountant
    )


def _replace_one(events: Sequence[Event], budget: Budget, epsilon: float) -> float | None:
    if not math.isfinite(epsilon):
        return None
    try:
        return epsilon_of(events, delta=budget.delta, neighbours="replace-one")
    except InputError:
        return None


def _versions() -> dict[str, str]:
    return {library: metadata.version(library) for library in _LIBRARIES}

"""Checks of a guarantee that is read from a file.

Its epsilon is recomputed from the releases that it lists, by the accountant that it names, and is
never accepted as stated. This cannot show that the listed releases are those that were made; only a
signature can.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpflows.errors import InputError, is_displayable
from dpflows.privacy.accounting.registry import ACCOUNTANTS, PrivacyPlan, epsilon_of
from dpflows.privacy.events import (
    Event,
    GaussianEvent,
    Neighbours,
    SampledGaussianEvent,
    SelectionEvent,
    VoteEvent,
    ZCDPEvent,
    tally,
)
from dpflows.privacy.guarantee import Guarantee

#: What another machine's rounding may change.
TOLERANCE = 1e-6
#: Pricing that is estimated to take longer is refused, so that no file keeps its reader busy.
MOST_SECONDS = 6.0
#: What is read before anything is estimated.
MOST_EVENTS = 10_000
MOST_RELEASES = 10**9
MOST_VOTERS = 2_000
MOST_ROWS = 10**15
_DEEPEST = 3
_LONGEST_TEXT = 2_000
_MOST_TEXTS = 100
#: Measured on one core, for both neighbour relations: per release, and per kind of release.
_SECONDS_EACH = 4e-6
_SECONDS: dict[type[Event], float] = {
    GaussianEvent: 0.0,
    SampledGaussianEvent: 0.15,
    SelectionEvent: 0.15,
    VoteEvent: 0.3,
    ZCDPEvent: 0.15,
}
_SECONDS_UNIFORM = 0.45
_SECONDS_OTHER = 0.01
#: What numbers beyond all reason do inside an accountant.
_UNPRICED = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class Misstated(InputError):
    """A guarantee that its own releases do not support; the message quotes no text of it."""


def read_guarantee(description: Any) -> Guarantee:
    """Read a guarantee from a file, and recompute the cost of its releases.

    Guarantee:
        The returned guarantee states at least the cost of its releases by the named accountant;
        otherwise ``Misstated`` is raised.

    Example:
        >>> from dpflows.privacy.accounting import guarantee_for
        >>> from dpflows.privacy.events import Sensitivity
        >>> from dpflows.privacy.guarantee import Budget
        >>> event = GaussianEvent(noise=5.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> written = guarantee_for([event], budget=Budget(1.0, 1e-5)).to_dict()
        >>> read_guarantee(written).epsilon == written["epsilon"]
        True
        >>> read_guarantee(written | {"epsilon": 0.001})
        Traceback (most recent call last):
        dpflows.privacy.accounting.certificates.Misstated: the file claims epsilon 0.001, but ...
    """
    listed = description.get("events") if isinstance(description, dict) else None
    if isinstance(listed, list) and len(listed) > MOST_EVENTS:
        raise Misstated(f"the file lists its releases on more than {MOST_EVENTS:,} lines")
    return certified(Guarantee.from_dict(description))


def certified(claimed: Guarantee) -> Guarantee:
    """The guarantee with the larger of the stated and the recomputed epsilon.

    Guarantee:
        Refuses a claim below the recomputed cost, also for exchanging rows; a ``kind``
        that the accountant does not give; an accountant that does not exist; text with
        control characters; and lists of releases too long to be checked in a few seconds.
    """
    _check_texts(claimed)
    if claimed.accountant not in ACCOUNTANTS:
        raise Misstated(f"the file's accountant is unknown; known: {', '.join(ACCOUNTANTS)}")
    if not math.isfinite(claimed.epsilon):
        return _claims_nothing(claimed)
    if claimed.kind != ACCOUNTANTS[claimed.accountant].kind:
        raise Misstated("the file's kind of guarantee is not that of its accountant")
    check_sizes(claimed.events)
    epsilon = _at_least(claimed.epsilon, _cost(claimed, claimed.neighbours, claimed.accountant))
    replaced = claimed.replace_one_epsilon
    if replaced is not None:
        replaced = _at_least(replaced, _cost(claimed, "replace-one", "pld"))
    return dataclasses.replace(claimed, epsilon=epsilon, replace_one_epsilon=replaced)


def check_plan(guarantee: Guarantee, plan: PrivacyPlan) -> None:
    """Refuse a guarantee whose releases are not those of the plan beside it."""
    if _is_winner(guarantee.events, plan.events):
        return
    if tally(guarantee.events) != tally(plan.events):
        raise Misstated("the releases in the file's guarantee are not those of its plan")
    stated = (guarantee.accountant, guarantee.delta, guarantee.neighbours)
    if stated != (plan.accountant, plan.budget.delta, plan.budget.neighbours):
        raise Misstated("accountant, delta or neighbours in the file are not those of its plan")


def _is_winner(events: Sequence[Event], planned: Sequence[Event]) -> bool:
    """Whether the planned releases are one possible run of the selection that was charged."""
    if len(events) != 1 or not isinstance(events[0], SelectionEvent):
        return False
    counts = tally(planned)
    runs = [tally(run) for run in _runs(events[0])]
    return any(all(run.get(each, 0) >= counts[each] for each in counts) for run in runs)


def _claims_nothing(claimed: Guarantee) -> Guarantee:
    if claimed.kind != "none" or claimed.replace_one_epsilon is not None:
        raise Misstated("the file claims a guarantee without a finite epsilon")
    return claimed


def _cost(claimed: Guarantee, neighbours: Neighbours, accountant: str) -> float:
    cost = _priced(claimed.events, claimed.delta, neighbours, accountant)
    if math.isnan(cost):
        raise Misstated(
            "the cost of the releases that the file lists cannot be computed, so the "
            "file is not accepted"
        )
    return cost


@functools.lru_cache(maxsize=64)
def _priced(
    events: tuple[Event, ...], delta: float, neighbours: Neighbours, accountant: str
) -> float:
    """The cost, or NaN if there is none; cached in memory only."""
    try:
        with np.errstate(all="ignore"):
            return epsilon_of(events, delta=delta, neighbours=neighbours, accountant=accountant)
    except _UNPRICED:
        return math.nan


def _at_least(claim: float, cost: float) -> float:
    if not claim >= cost * (1 - TOLERANCE):
        raise Misstated(
            f"the file claims epsilon {claim:.4g}, but the releases that it lists cost {cost:.4g}; "
            "do not rely on it; ask its sender for the original"
        )
    return max(claim, cost)


def _check_texts(claimed: Guarantee) -> None:
    """Refuse control characters in texts that certificates show."""
    texts = [*claimed.stamps, *claimed.caveats, *claimed.versions, *claimed.versions.values()]
    if len(texts) > _MOST_TEXTS:
        raise Misstated(f"the file's guarantee has more than {_MOST_TEXTS} texts")
    purposes = [event.purpose for event in _every(claimed.events, _DEEPEST)]
    if not all(len(text) <= _LONGEST_TEXT and is_displayable(text) for text in texts + purposes):
        raise Misstated(
            "the file's guarantee has a text that is too long or has control characters"
        )


def check_sizes(events: Sequence[Event]) -> None:
    """Refuse lists of releases that would take long to check.

    Example:
        >>> check_sizes([SelectionEvent(run=(), mean=2.0)])
    """
    every = list(_every(events, _DEEPEST))
    if not all(_is_sized(event) for event in every):
        raise Misstated(
            "the file lists releases with more rows, voters or repetitions than are supported"
        )
    long = sum(event.count for event in events if not isinstance(event, GaussianEvent))
    seconds = _SECONDS_EACH * long + sum(_seconds(event) for event in tally(every))
    if seconds > MOST_SECONDS:
        raise Misstated("the file lists more different or repeated releases than are supported")


def _every(events: Sequence[Event], depth: int) -> Iterator[Event]:
    """All releases, those inside of selections too."""
    if depth == 0:
        raise Misstated("the file lists selections within selections")
    for event in events:
        yield event
        if isinstance(event, SelectionEvent):
            for run in _runs(event):
                yield from _every(run, depth - 1)


def _runs(event: SelectionEvent) -> list[tuple[Event, ...]]:
    """What one run makes, for each candidate."""
    return [(*event.run, *own) for own in event.candidates or ((),)]


def _seconds(event: Event) -> float:
    if isinstance(event, SampledGaussianEvent) and event.sampling == "uniform":
        return _SECONDS_UNIFORM
    return _SECONDS.get(type(event), _SECONDS_OTHER)


def _is_sized(event: Event) -> bool:
    if event.count > MOST_RELEASES:
        return False
    if isinstance(event, VoteEvent):
        return event.voters <= MOST_VOTERS
    return not isinstance(event, SampledGaussianEvent) or event.rows <= MOST_ROWS

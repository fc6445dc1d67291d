"""What a mechanism returns: a value that may be published, and the event to charge.

Guarantee:
    Inside ``only_these``, a release whose event is not in the list fails before its value is
    returned, and so does one that is made twice.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError, UnplannedReleaseError
from dpflows.privacy.events import Event

Column = Float64[np.ndarray, " rows"]


def check_edges(edges: Float64[np.ndarray, " edges"]) -> None:
    """Refuse bin edges that are not finite and strictly increasing."""
    if len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise InputError("edges must be at least two finite, strictly increasing numbers")


def check_fraction(name: str, value: float) -> None:
    """Refuse anything outside the open unit interval."""
    if not 0 < value < 1:
        raise InputError(f"{name} must be in (0, 1), got {value}")


Value = TypeVar("Value")

#: The events that are still to be released, and those that were.
_planned: contextvars.ContextVar[tuple[list[Event], list[Event]] | None] = contextvars.ContextVar(
    "planned", default=None
)


@dataclasses.dataclass(frozen=True)
class Release(Generic[Value]):
    """A published value and the event that must be charged for it.

    Attributes:
        value: The value, which may be published once ``event`` is charged.
        event: The event to charge, with its sensitivity under each neighbour relation.
        stamp: A warning that must accompany the value, or empty.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> Release(3, PureEvent(epsilon=Sensitivity.uniformly(0.1))).value
        3
    """

    value: Value
    event: Event
    stamp: str = ""

    def __post_init__(self) -> None:
        if (state := _planned.get()) is None:
            return
        planned, made = state
        # a release that is wrapped again holds the very event of the first
        if any(self.event is event for event in made):
            return
        if self.event not in planned:
            raise UnplannedReleaseError(
                f"a release for {self.event.purpose!r} is not among the planned events; nothing "
                "was returned. This is a bug in dpflows: please report it"
            )
        planned.remove(self.event)
        made.append(self.event)


@contextlib.contextmanager
def only_these(events: Sequence[Event]) -> Iterator[None]:
    """Within the block, mechanisms may release only these events, each of them once.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> with only_these(()):
        ...     Release(3, PureEvent(epsilon=Sensitivity.uniformly(0.1), purpose="count"))
        Traceback (most recent call last):
        dpflows.errors.UnplannedReleaseError: a release for 'count' is not among the planned ...
    """
    token = _planned.set((list(events), []))
    try:
        yield
    finally:
        _planned.reset(token)

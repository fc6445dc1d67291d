"""What a mechanism hands back: a value that may be published, and what it cost."""

import dataclasses
from typing import Generic, TypeVar

from dpflows.privacy.events import Event

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Release(Generic[Value]):
    """A published value and the event that must be charged for it.

    Attributes:
        value: May be published once ``event`` is charged.
        event: What happened, with the sensitivity under each neighbour relation.
        stamp: What must be written beside the value; empty if nothing.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> Release(3, PureEvent(epsilon=Sensitivity.uniformly(0.1))).value
        3
    """

    value: Value
    event: Event
    stamp: str = ""

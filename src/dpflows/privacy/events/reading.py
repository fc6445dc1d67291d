"""Events read back from their descriptions."""

import dataclasses
from typing import Any

from dpflows.errors import InputError
from dpflows.privacy.events.additive import DiscreteLaplaceEvent, GaussianEvent, LaplaceEvent
from dpflows.privacy.events.base import Event
from dpflows.privacy.events.promised import (
    ApproximateEvent,
    BoundedRangeEvent,
    PureEvent,
    ZCDPEvent,
)
from dpflows.privacy.events.relations import Sensitivity
from dpflows.privacy.events.sampled import SampledGaussianEvent
from dpflows.privacy.events.selection import SelectionEvent
from dpflows.privacy.events.votes import VoteEvent

_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        GaussianEvent,
        LaplaceEvent,
        DiscreteLaplaceEvent,
        BoundedRangeEvent,
        PureEvent,
        ApproximateEvent,
        ZCDPEvent,
        SampledGaussianEvent,
        SelectionEvent,
        VoteEvent,
    )
}


def event_from_dict(description: dict[str, Any]) -> Event:
    """Read back what ``Event.to_dict`` wrote.

    Example:
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> event_from_dict(event.to_dict()) == event
        True
    """
    try:
        return _read_event(dict(description))
    except (TypeError, KeyError, AttributeError, ValueError) as problem:
        reason = " ".join(str(problem).split())
        raise InputError(f"event description cannot be read: {reason}") from problem


def _read_event(fields: dict[str, Any]) -> Event:
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise InputError(f"kind must be one of {', '.join(_KINDS)}")
    for name in _by_relation(_KINDS[kind]) & fields.keys():
        fields[name] = Sensitivity(**fields[name])
    if kind == SelectionEvent.kind:
        fields["run"] = tuple(event_from_dict(event) for event in fields["run"])
        options = fields.get("candidates", ())
        fields["candidates"] = tuple(tuple(map(event_from_dict, events)) for events in options)
    for name in _whole(_KINDS[kind]) & fields.keys():
        if type(fields[name]) is not int:
            raise InputError(f"{name} must be a whole number")
    if type(fields.get("purpose", "")) is not str:
        raise InputError("purpose must be a text")
    return _KINDS[kind](**fields)


def _by_relation(kind: type[Event]) -> set[str]:
    """The names of the fields that hold one number per neighbour relation."""
    return {field.name for field in dataclasses.fields(kind) if field.type is Sensitivity}


def _whole(kind: type[Event]) -> set[str]:
    """The names of the fields that hold a whole number."""
    return {field.name for field in dataclasses.fields(kind) if field.type is int}

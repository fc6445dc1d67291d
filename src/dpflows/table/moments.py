"""Moments as schema files write them, and as seconds since 1970 began."""

import datetime
from typing import Any

_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)


def iso(seconds: float) -> str:
    """A moment as text, without a time of day at midnight.

    Example:
        >>> iso(0.0), iso(3600.0)
        ('1970-01-01', '1970-01-01T01:00:00')
    """
    text = (_EPOCH + seconds * _SECOND).isoformat()
    return text.removesuffix("T00:00:00")


def moment(value: Any) -> float | None:
    """The seconds of a date, a date with a time of day, or the text of one; else None.

    Example:
        >>> moment("1970-01-02"), moment("then"), moment(datetime.date(1970, 1, 1))
        (86400.0, None, 0.0)
    """
    if isinstance(value, datetime.date):
        value = value.isoformat()
    if not isinstance(value, str):
        return None
    try:
        return (_without_zone(datetime.datetime.fromisoformat(value)) - _EPOCH) / _SECOND
    except (ValueError, OverflowError):
        return None


def _without_zone(when: datetime.datetime) -> datetime.datetime:
    if when.tzinfo is None:
        return when
    return when.astimezone(datetime.UTC).replace(tzinfo=None)

"""Columns of dates, with or without a time of day; they count as seconds since 1970 began."""

import datetime
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64

from dpflows.table.bins import IntervalBins
from dpflows.table.kinds.base import Reader, Reading, fine, marked, trimmed, words_of
from dpflows.table.kinds.numbers import Whole
from dpflows.table.raw import (
    EPOCH,
    MOMENT,
    TEXT,
    YEAR_1,
    YEAR_10000,
    TextFormat,
    is_moment,
    microseconds,
)

#: The unit of dates without a time of day.
DAY = "day"

_DAY = 86_400.0
#: Seconds of what intervals of dates begin with: a second, a minute, an hour or a day.
_STEPS = (1, 60, 3600, 86_400)
_SECOND = datetime.timedelta(seconds=1)
_ISO = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII
)


@final
class Date(Whole):
    """Dates of the years 1 to 9999, in seconds, or in days if that is their declared unit."""

    name = "date"
    dtype = "datetime64[us]"
    nothing = np.datetime64("NaT")
    precedence = 40
    widest = (float(YEAR_1), float(YEAR_10000 - 1))
    unit_form = "whole seconds"
    bound_form = "a date such as 2020-12-31"
    spikes_form = bound_form
    operand_form = "a date such as 2020-12-31 or a column of dates"

    @property
    def length(self) -> float:
        """How many seconds dates are counted by."""
        return _DAY if self.column.unit == DAY else 1.0

    def _check_range(self, low: float, high: float) -> None:
        if low < YEAR_1 or high >= YEAR_10000:
            raise self.column.refuse("min and max must lie in the years 1 to 9999")

    @classmethod
    def read_bound(cls, value: Any) -> float | None:
        """The seconds of a date or of its text."""
        return seconds_of(value)

    def describe_bound(self, value: float) -> str:
        """A date in ISO 8601."""
        return iso(value)

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Dates, and text that is written as declared."""
        return {MOMENT: _of_moment, TEXT: _of_text}

    def expected(self, text: TextFormat) -> str:
        """Dates."""
        return "dates in the declared formats" if text.date_formats else "dates such as 2020-12-31"

    def numbers(self, values: np.ndarray) -> Float64[np.ndarray, " rows"]:
        """Seconds since 1970 began."""
        numbers = values.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, numbers)

    def counted(self, values: np.ndarray) -> np.ndarray:
        """Seconds or days: a moment belongs to the second, or to the day, that it lies in."""
        return np.floor(self.numbers(values) / self.length)

    def cells(self, numbers: np.ndarray) -> np.ndarray:
        """Moments at which seconds or days begin."""
        # a day begins before a bound that lies within it
        moments = np.clip(numbers * self.length, *self.bounds)
        return (moments * 1e6).astype(np.int64).astype("datetime64[us]")

    def in_units(self, values: np.ndarray) -> np.ndarray:
        """The seconds at which the second, or the day, of a moment begins."""
        return self.counted(values) * self.length

    def inside(self, values: np.ndarray) -> np.ndarray:
        """Dates moved to the nearest bound."""
        if self.lacks:
            return values
        low, high = (np.datetime64(int(end), "s").astype(values.dtype) for end in self.bounds)
        return np.clip(values, low, high)

    def bins(self) -> IntervalBins:
        """Intervals of seconds that begin with a second, minute, hour or day; or of days."""
        low, high = (end // self.length for end in self.bounds)
        return IntervalBins(
            self.column.name,
            low,
            high,
            places=self.places,
            is_whole=True,
            nullable=self.column.nullable,
            steps=_STEPS if self.length == 1 else (1,),
            group=1,
            numbers=self.counted,
            cells=self.cells,
        )

    @property
    def places(self) -> tuple[float, ...]:
        """Single dates, as declared, or else the bounds."""
        ends = self.bounds if self.column.spikes is None else self.column.spikes
        return tuple(end // self.length for end in ends)

    @property
    def log_size(self) -> float:
        """How many seconds or days lie between the bounds."""
        low, high = self.bounds
        return math.log((high - low) / self.length + 1.0)

    def even_cuts(self, low: float, high: float, bins: int) -> np.ndarray:
        """At midnight, where bins are longer than days."""
        cuts = super().even_cuts(low, high, bins)
        return np.round(cuts / _DAY) * _DAY if high - low >= bins * _DAY else cuts

    @classmethod
    def proposed_by_type(cls, dtype: pa.DataType) -> dict[str, Any] | None:
        """Types of dates."""
        return _unit(pa.types.is_date(dtype)) if is_moment(dtype) else None

    @classmethod
    def proposed_by_text(cls, cells: pa.ChunkedArray, text: TextFormat) -> dict[str, Any] | None:
        """Text that holds nothing but dates."""
        if _of_text(cells, text)[1].any():
            return None
        longest = pc.max(pc.utf8_length(trimmed(cells, text))).as_py()
        return _unit(longest <= len("2020-12-31"))

    def domain(self, present: np.ndarray) -> dict[str, Any]:
        """The lowest and the highest second."""
        numbers = self.numbers(present)
        return {"min": float(np.floor(numbers.min())), "max": float(np.ceil(numbers.max()))}

    def operand(self, text: str) -> np.datetime64 | None:
        """A date."""
        seconds = seconds_of(text)
        return None if seconds is None else np.datetime64(round(seconds * 1e6), "us")

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Days, or seconds."""
        if self.column.unit == DAY:
            return pa.array(values.astype("datetime64[D]")).cast(pa.date32())
        return pa.array(values.astype("datetime64[s]")).cast(pa.timestamp("s"))

    def shown(self, number: float) -> str:
        """A date in ISO 8601, without a time of day at midnight."""
        if math.isinf(number):
            return "any"
        # no library's calendar: it would refuse years that columns may have
        return str(np.datetime64(round(number), "s")).removesuffix("T00:00:00")


def iso(seconds: float) -> str:
    """A moment as text, without a time of day at midnight.

    Example:
        >>> iso(0.0), iso(3600.0)
        ('1970-01-01', '1970-01-01T01:00:00')
    """
    text = (EPOCH + seconds * _SECOND).isoformat()
    return text.removesuffix("T00:00:00")


def seconds_of(value: Any) -> float | None:
    """The seconds of a date, a date with a time of day, or the text of one; else None.

    Example:
        >>> seconds_of("1970-01-02"), seconds_of("then"), seconds_of(datetime.date(1970, 1, 1))
        (86400.0, None, 0.0)
    """
    if isinstance(value, datetime.date):
        value = value.isoformat()
    if not isinstance(value, str):
        return None
    try:
        return (_without_zone(datetime.datetime.fromisoformat(value)) - EPOCH) / _SECOND
    except (ValueError, OverflowError):
        return None


def _without_zone(when: datetime.datetime) -> datetime.datetime:
    if when.tzinfo is None:
        return when
    return when.astimezone(datetime.UTC).replace(tzinfo=None)


def _unit(are_days: bool) -> dict[str, Any]:
    return {"unit": DAY} if are_days else {}


def _of_moment(values: np.ndarray, text: TextFormat) -> Reading:
    return fine(values.copy())


def _of_text(cells: Any, text: TextFormat) -> Reading:
    words, places = words_of(cells, text)
    found = [_parsed(word, text.date_formats) for word in words]
    dates = np.array([np.datetime64("NaT") if m is None else m for m in found], "datetime64[us]")
    values = np.full(len(places), np.datetime64("NaT"), dtype="datetime64[us]")
    filled = places >= 0
    values[filled] = dates[places[filled]]
    return marked(values, filled & np.isnat(values))


def _parsed(word: str, formats: tuple[str, ...]) -> int | None:
    """A date as microseconds since 1970 began; None if it is not written as declared."""
    if not formats:
        return _moment(datetime.datetime.fromisoformat, word) if _ISO.fullmatch(word) else None
    tries = (_moment(_strptime(form), word) for form in formats)
    return next((found for found in tries if found is not None), None)


def _strptime(form: str) -> Callable[[str], datetime.datetime]:
    return lambda word: datetime.datetime.strptime(word, form)


def _moment(parse: Callable[[str], datetime.datetime], word: str) -> int | None:
    try:
        return microseconds(parse(word))
    except (ValueError, OverflowError):
        return None

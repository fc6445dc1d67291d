"""One column of a table: its kind and what is publicly known about its cells."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dpflows.errors import InputError

KINDS = ("continuous", "integer", "categorical", "boolean", "date")

#: Kinds whose cells are numbers with a lowest and a highest value.
BOUNDED_KINDS = ("continuous", "integer", "date")

#: Beyond this size neighbouring whole numbers can no longer be told apart reliably.
MAX_INTEGER = 1e15
MAX_NAME_LENGTH = 1000
MAX_CATEGORIES = 10_000
MAX_SPIKES = 100

#: The unit of dates without a time of day.
DAY = "day"

_YEAR_1, _YEAR_10000 = -62135596800.0, 253402300800.0
#: The lowest and the highest value that a kind can have.
WIDEST = {
    "continuous": (-math.inf, math.inf),
    "integer": (-MAX_INTEGER, MAX_INTEGER),
    "date": (_YEAR_1, _YEAR_10000 - 1),
}


@final
@dataclass(frozen=True)
class Column:
    """One column: its name, its kind and what is publicly known about its cells.

    Args:
        name: The column's name.
        kind: One of ``KINDS``.
        min: The lowest value; for dates in seconds since 1970 began.
        max: The highest value, declared together with ``min``.
        nullable: Whether cells may be missing.
        unit: The unit of measurement, for readers; "day" says that dates have no time of day.
        categories: The labels of a categorical column.
        spikes: Single values of a column with bounds that many rows may share, such as
            zero; none if empty, a public rule decides if None.
        other: The category that counts for cells whose label is not declared.

    Example:
        >>> Column("age", "integer", min=0, max=120, unit="years").is_declared
        True
        >>> Column("age", "integer").is_declared
        False
        >>> Column("gain", "continuous", min=0, max=1e5, spikes=(0,)).spikes
        (0.0,)
    """

    name: str
    kind: str
    min: float | None = None
    max: float | None = None
    nullable: bool = False
    unit: str = ""
    categories: tuple[str, ...] | None = None
    spikes: tuple[float, ...] | None = None
    other: str | None = None

    def __post_init__(self) -> None:
        self._check_name_and_kind()
        for key in ("min", "max"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, self._number(key, getattr(self, key)))
        self._check_bounds()
        if self.categories is not None:
            object.__setattr__(self, "categories", self._checked_categories())
        if self.spikes is not None:
            object.__setattr__(self, "spikes", self._checked_spikes())
        if self.other is not None:
            self._check_other()

    @property
    def is_declared(self) -> bool:
        """Whether the domain is known: bounds, categories, or a kind that needs neither."""
        if self.kind == "boolean":
            return True
        return (self.categories if self.kind == "categorical" else self.min) is not None

    @property
    def is_whole(self) -> bool:
        """Whether cells are whole numbers, or whole seconds."""
        return self.kind in ("integer", "date")

    @property
    def counts_days(self) -> bool:
        """Whether cells are dates without a time of day, by the declared unit."""
        return self.kind == "date" and self.unit == DAY

    def within(self, low: float, high: float) -> "Column":
        """The same column with these bounds; spikes beyond them are left out.

        Example:
            >>> Column("gain", "integer", spikes=(0, 99)).within(0, 50).spikes
            (0.0,)
        """
        spikes = self.spikes and tuple(spike for spike in self.spikes if low <= spike <= high)
        return dataclasses.replace(self, min=low, max=high, spikes=spikes)

    def _refuse(self, reason: str) -> InputError:
        return InputError(f"column {self.name!r}: {reason}")

    def _check_name_and_kind(self) -> None:
        check_name(self.name)
        if self.kind not in KINDS:
            raise self._refuse(f"kind must be one of {', '.join(KINDS)}")
        if not _is_storable(self.unit):
            raise self._refuse(f"unit must be text of at most {MAX_NAME_LENGTH} characters")

    def _number(self, key: str, value: Any) -> float:
        if self.kind not in BOUNDED_KINDS:
            raise self._refuse(f"{key} does not belong to a {self.kind} column; remove it")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError):
            raise self._refuse(f"{key} must be a number") from None
        if not math.isfinite(number):
            raise self._refuse(f"{key} must be finite")
        # minus zero would be written and compared as a different bound
        return number + 0.0

    def _check_bounds(self) -> None:
        low, high = self.min, self.max
        if low is None and high is None:
            return
        if low is None or high is None:
            raise self._refuse("min and max must be declared together")
        if low == high and not self.is_whole:
            raise self._refuse("min equals max, so the column is constant; drop the column")
        if low > high:
            raise self._refuse("min must be below max")
        if self.kind == "continuous":
            self._check_width(high - low)
        else:
            self._check_whole(low, high)

    def _check_width(self, width: float) -> None:
        if not (math.isfinite(width) and width >= 1e-300):
            raise self._refuse("max - min must lie between 1e-300 and 1e308")

    def _check_whole(self, low: float, high: float) -> None:
        if not (low.is_integer() and high.is_integer()):
            raise self._refuse(f"min and max of {self.kind} columns must be {self._whole}")
        if self.kind == "date" and (low < _YEAR_1 or high >= _YEAR_10000):
            raise self._refuse("min and max must lie in the years 1 to 9999")
        if max(abs(low), abs(high)) > MAX_INTEGER:
            raise self._refuse("min and max of integer columns must lie within 1e15 of zero")

    @property
    def _whole(self) -> str:
        return "whole seconds" if self.kind == "date" else "whole numbers"

    def _checked_spikes(self) -> tuple[float, ...]:
        given = tuple(self.spikes or ())
        if self.kind not in BOUNDED_KINDS:
            raise self._refuse(f"spikes do not belong to a {self.kind} column; remove them")
        if len(given) > MAX_SPIKES:
            raise self._refuse(f"spikes must be at most {MAX_SPIKES} values")
        spikes = tuple(self._number("spikes", spike) for spike in given)
        if self.is_whole and not all(spike.is_integer() for spike in spikes):
            raise self._refuse(f"spikes of {self.kind} columns must be {self._whole}")
        if len(set(spikes)) != len(spikes):
            raise self._refuse("spikes must not repeat a value")
        if any(self._is_beyond(spike) for spike in spikes):
            raise self._refuse("spikes must lie between min and max")
        return spikes

    def _is_beyond(self, value: float) -> bool:
        if self.min is None or self.max is None:
            low, high = WIDEST[self.kind]
            return not low <= value <= high
        return not self.min <= value <= self.max

    def _check_other(self) -> None:
        if self.kind != "categorical":
            raise self._refuse(f"other does not belong to a {self.kind} column; remove it")
        if self.categories is not None and self.other not in self.categories:
            raise self._refuse("other must be one of the categories")
        if not (self.other and _is_storable(self.other)):
            raise self._refuse(f"other must be a label of 1 to {MAX_NAME_LENGTH} characters")

    def _checked_categories(self) -> tuple[str, ...]:
        if self.kind != "categorical":
            raise self._refuse(f"categories do not belong to a {self.kind} column; remove them")
        labels = tuple(self.categories or ())
        if not 1 <= len(labels) <= MAX_CATEGORIES:
            raise self._refuse(f"categories must hold 1 to {MAX_CATEGORIES} labels")
        if not all(isinstance(label, str) and _is_storable(label) for label in labels):
            raise self._refuse("categories must be labels of text")
        if len(set(labels)) != len(labels):
            raise self._refuse("categories must not repeat a label")
        return labels


def check_name(name: Any) -> None:
    """Refuse what cannot be a column's name."""
    if not isinstance(name, str) or not name or not _is_storable(name):
        raise InputError(f"column names must be text of 1 to {MAX_NAME_LENGTH} characters")


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which cells of a column hold nothing.

    Example:
        >>> is_missing(np.array(["a", None], dtype=object)).tolist()
        [False, True]
    """
    if values.dtype.kind == "M":
        return np.isnat(values)
    if values.dtype == object:
        return np.array([value is None for value in values.tolist()], dtype=bool)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def counted(count: int, noun: str) -> str:
    """A number of things, for a message.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_storable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return len(text) <= MAX_NAME_LENGTH

"""One column of a table: its kind and what is publicly known about its cells."""

import math
from dataclasses import dataclass
from typing import Any, final

from dpflows.errors import InputError

KINDS = ("continuous", "integer", "categorical", "boolean", "date")

#: Kinds whose cells are numbers with a lowest and a highest value.
BOUNDED_KINDS = ("continuous", "integer", "date")

#: Beyond this size neighbouring whole numbers can no longer be told apart reliably.
MAX_INTEGER = 1e15
MAX_NAME_LENGTH = 1000
MAX_CATEGORIES = 10_000

_YEAR_1, _YEAR_10000 = -62135596800.0, 253402300800.0


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
        unit: The unit of measurement, for readers.
        categories: The labels of a categorical column.

    Example:
        >>> Column("age", "integer", min=0, max=120, unit="years").is_declared
        True
        >>> Column("age", "integer").is_declared
        False
    """

    name: str
    kind: str
    min: float | None = None
    max: float | None = None
    nullable: bool = False
    unit: str = ""
    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._check_name_and_kind()
        for key in ("min", "max"):
            object.__setattr__(self, key, self._number(key))
        self._check_bounds()
        if self.categories is not None:
            object.__setattr__(self, "categories", self._checked_categories())

    @property
    def is_declared(self) -> bool:
        """Whether the domain is known: bounds, categories, or a kind that needs neither."""
        if self.kind == "boolean":
            return True
        return (self.categories if self.kind == "categorical" else self.min) is not None

    def _refuse(self, reason: str) -> InputError:
        return InputError(f"column {self.name!r}: {reason}")

    def _check_name_and_kind(self) -> None:
        check_name(self.name)
        if self.kind not in KINDS:
            raise self._refuse(f"kind must be one of {', '.join(KINDS)}")
        if not _is_storable(self.unit):
            raise self._refuse(f"unit must be text of at most {MAX_NAME_LENGTH} characters")

    def _number(self, key: str) -> float | None:
        value = getattr(self, key)
        if value is None:
            return None
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
        if low == high:
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
            expected = "whole seconds" if self.kind == "date" else "whole numbers"
            raise self._refuse(f"min and max of {self.kind} columns must be {expected}")
        if self.kind == "date" and (low < _YEAR_1 or high >= _YEAR_10000):
            raise self._refuse("min and max must lie in the years 1 to 9999")
        if max(abs(low), abs(high)) > MAX_INTEGER:
            raise self._refuse("min and max of integer columns must lie within 1e15 of zero")

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

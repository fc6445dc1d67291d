"""Columns of numbers: measured ones, counted ones, and what all with bounds have in common."""

import abc
import functools
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64

from dpflows.table.bins import IntervalBins
from dpflows.table.kinds.base import (
    BOUNDS,
    FINE,
    FORM,
    FRACTION,
    INFINITE,
    KEYS,
    Kind,
    Reader,
    Reading,
    fine,
    trimmed,
)
from dpflows.table.raw import NUMBER, PLAIN, TEXT, TRUTH, TextFormat, to_numpy

#: Beyond this size neighbouring whole numbers can no longer be distinguished reliably.
MAX_INTEGER = 1e15
MAX_SPIKES = 100
#: A whole number of up to so many values is a class label; one of more is a measurement.
MOST_CLASSES = 16


class Bounded(Kind):
    """Kinds whose values are numbers, or count as numbers, between a lowest and a highest.

    Attributes:
        widest: The lowest and the highest number that the kind can have.
    """

    fields = ("min", "max", "spikes")
    discovers = BOUNDS
    has_order = True
    widest: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @property
    def bounds(self) -> tuple[float, float]:
        """The declared bounds, or infinite ones."""
        low, high = self.column.min, self.column.max
        return -math.inf if low is None else low, math.inf if high is None else high

    @property
    def lacks(self) -> tuple[str, ...]:
        """Bounds."""
        return KEYS[BOUNDS] if self.column.min is None else ()

    def checked(self) -> dict[str, Any]:
        """Bounds and spikes as floating-point numbers."""
        super().checked()
        low, high = (
            None if value is None else self._number(key, value)
            for key, value in (("min", self.column.min), ("max", self.column.max))
        )
        if low is not None or high is not None:
            self._check_bounds(low, high)
        ends = self.widest if low is None or high is None else (low, high)
        return {"min": low, "max": high, "spikes": self._spikes(*ends)}

    def _number(self, key: str, value: Any) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError):
            raise self.column.refuse(f"{key} must be a number") from None
        if not math.isfinite(number):
            raise self.column.refuse(f"{key} must be finite")
        # minus zero would be written and compared as a different bound
        return number + 0.0

    def _check_bounds(self, low: float | None, high: float | None) -> None:
        if low is None or high is None:
            raise self.column.refuse("min and max must be declared together")
        if low == high and not self.is_whole:
            raise self.column.refuse("min equals max, so the column is constant; drop the column")
        if low > high:
            raise self.column.refuse("min must be below max")
        self._check_width(low, high)

    @abc.abstractmethod
    def _check_width(self, low: float, high: float) -> None:
        """Refuse bounds between which no values of the kind can be distinguished."""

    def _spikes(self, low: float, high: float) -> tuple[float, ...] | None:
        if self.column.spikes is None:
            return None
        given = tuple(self.column.spikes)
        if len(given) > MAX_SPIKES:
            raise self.column.refuse(f"spikes must be at most {MAX_SPIKES} values")
        spikes = tuple(self._number("spikes", spike) for spike in given)
        self._check_spikes(spikes)
        if len(set(spikes)) != len(spikes):
            raise self.column.refuse("spikes must not repeat a value")
        if not all(low <= spike <= high for spike in spikes):
            raise self.column.refuse("spikes must lie between min and max")
        return spikes

    def _check_spikes(self, spikes: tuple[float, ...]) -> None:
        """Refuse numbers that are no values of the kind."""

    def numbers(self, values: np.ndarray) -> Float64[np.ndarray, " rows"]:
        """Values as floating-point numbers."""
        return values.astype(np.float64)

    def cells(self, numbers: np.ndarray) -> np.ndarray:
        """The values of numbers as ``counted`` gives them."""
        return numbers

    def counted(self, values: np.ndarray) -> np.ndarray:
        """Numbers as bins count them."""
        return self.numbers(values)

    def beyond(self, values: np.ndarray) -> np.ndarray:
        """Which numbers lie beyond the declared bounds."""
        low, high = self.bounds
        numbers = self.in_units(values)
        return (numbers < low) | (numbers > high)

    def in_units(self, values: np.ndarray) -> np.ndarray:
        """Numbers as they are compared with bounds."""
        return self.numbers(values)

    def inside(self, values: np.ndarray) -> np.ndarray:
        """Numbers moved to the nearest bound."""
        return values if self.lacks else np.clip(self.numbers(values), *self.bounds)

    def bins(self) -> IntervalBins:
        """Intervals between the bounds, and spikes."""
        low, high = self.bounds
        return IntervalBins(
            self.column.name,
            low,
            high,
            places=self.places,
            is_whole=self.is_whole,
            nullable=self.column.nullable,
            numbers=self.counted,
            cells=self.cells,
        )

    @property
    def places(self) -> tuple[float, ...]:
        """Single values that many rows may share: as declared, or the bounds and zero."""
        if self.column.spikes is not None:
            return self.column.spikes
        low, high = self.bounds
        return (low, 0.0, high) if low < 0 < high else (low, high)

    def cut_at(self, cuts: np.ndarray) -> tuple[float, ...]:
        """Different cuts inside the bounds; a cut between whole numbers is one at the next."""
        inner = np.unique(np.ceil(cuts) if self.is_whole else cuts)
        low, high = self.bounds
        return tuple(inner[(inner > low) & (inner < high)].tolist())

    def domain(self, present: np.ndarray) -> dict[str, Any]:
        """The lowest and the highest value."""
        return {"min": float(present.min()), "max": float(present.max())}


class Number(Bounded):
    """Numbers that stay numbers."""

    dtype = np.float64
    nothing = np.nan
    is_number = True
    operand_form = "a number or a column of numbers"

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Numbers, text that holds numbers, and truth values as zero and one."""
        return {NUMBER: _of_number, TEXT: _of_text, TRUTH: _of_truth}

    def expected(self, text: TextFormat) -> str:
        """Numbers."""
        return "numbers"

    @property
    def compared_as(self) -> str:
        """Numbers can be compared with each other."""
        return "number"

    def operand(self, text: str) -> float | None:
        """A finite number."""
        try:
            number = float(text)
        except ValueError:
            return None
        return number if math.isfinite(number) else None


@final
class Continuous(Number):
    """Measured numbers."""

    name = "continuous"
    precedence = 20

    def _check_width(self, low: float, high: float) -> None:
        width = high - low
        if not (math.isfinite(width) and width >= 1e-300):
            raise self.column.refuse("max - min must lie between 1e-300 and 1e308")

    @property
    def tells_classes(self) -> bool:
        """Never."""
        return False

    @property
    def log_size(self) -> float:
        """Length between the bounds."""
        low, high = self.bounds
        return math.log(high - low)

    def settled(self, low: float, high: float) -> tuple[float, float]:
        """Bounds that differ."""
        return low, float(max(high, np.nextafter(low, np.inf)))

    @classmethod
    def proposed_by_type(cls, dtype: pa.DataType) -> dict[str, Any] | None:
        """Types with fractions, and columns without a cell."""
        types = pa.types
        fits = types.is_floating(dtype) or types.is_decimal(dtype) or types.is_null(dtype)
        return {} if fits else None

    @classmethod
    def proposed_by_text(cls, cells: pa.ChunkedArray, text: TextFormat) -> dict[str, Any] | None:
        """Text that holds nothing but numbers."""
        return None if numbers_in_text(cells, text)[1].any() else {}

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Double precision."""
        return pa.array(values.astype(np.float64), mask=np.isnan(values))

    @property
    def pandas_type(self) -> str:
        """Double precision, with NaN for what is missing."""
        return "float64"

    def shown(self, number: float) -> str:
        """Four digits."""
        return "any" if math.isinf(number) else f"{number:.4g}"


class Whole(Bounded):
    """Kinds whose values are counted.

    Attributes:
        unit_form: What bounds and spikes must be, for messages.
        range_form: Where bounds must lie, for messages.
    """

    is_whole = True
    widest = (-MAX_INTEGER, MAX_INTEGER)
    unit_form: ClassVar[str] = "whole numbers"
    range_form: ClassVar[str] = "within 1e15 of zero"

    def _check_width(self, low: float, high: float) -> None:
        if not (low.is_integer() and high.is_integer()):
            raise self.column.refuse(f"min and max of {self.name} columns must be {self.unit_form}")
        self._check_range(low, high)

    def _check_range(self, low: float, high: float) -> None:
        least, most = self.widest
        if low < least or high > most:
            message = f"min and max of {self.name} columns must lie {self.range_form}"
            raise self.column.refuse(message)

    def _check_spikes(self, spikes: tuple[float, ...]) -> None:
        if not all(spike.is_integer() for spike in spikes):
            raise self.column.refuse(f"spikes of {self.name} columns must be {self.unit_form}")

    def counted(self, values: np.ndarray) -> np.ndarray:
        """The whole numbers below."""
        return np.floor(self.numbers(values))

    @property
    def log_size(self) -> float:
        """How many values lie between the bounds."""
        low, high = self.bounds
        return math.log(high - low + 1.0)

    def settled(self, low: float, high: float) -> tuple[float, float]:
        """Whole numbers that the kind can have."""
        least, most = np.clip([np.floor(low), np.ceil(high)], *self.widest).tolist()
        return least, most

    def describe_bound(self, value: float) -> Any:
        """A whole number."""
        return int(value)

    def shown(self, number: float) -> str:
        """All digits."""
        return "any" if math.isinf(number) else f"{number:.15g}"


@final
class Integer(Whole, Number):
    """Whole numbers."""

    name = "integer"
    margin = 0.5
    precedence = 10

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Those of numbers, which refuse fractions."""
        return {sort: _whole_of(reader) for sort, reader in super().readers.items()}

    @property
    def tells_classes(self) -> bool:
        """If there are few values between the bounds."""
        low, high = self.bounds
        return high - low < MOST_CLASSES

    @classmethod
    def proposed_by_type(cls, dtype: pa.DataType) -> dict[str, Any] | None:
        """Types of whole numbers."""
        return {} if pa.types.is_integer(dtype) else None

    @classmethod
    def proposed_by_text(cls, cells: pa.ChunkedArray, text: TextFormat) -> dict[str, Any] | None:
        """Text that holds whole numbers, and at least one."""
        values, wrong = numbers_in_text(cells, text)
        present = values[~np.isnan(values)]
        are_whole = np.isfinite(present) & (np.rint(present) == present)
        return {} if len(present) and are_whole.all() and not wrong.any() else None

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """64 bits."""
        missing = np.isnan(values)
        return pa.array(np.where(missing, 0.0, values).astype(np.int64), mask=missing)

    @property
    def pandas_type(self) -> str:
        """64 bits, with a type that knows missing cells where they may be."""
        return "Int64" if self.column.nullable else "int64"

    def shown_below(self, cut: float) -> str:
        """The last number of the bin below, not the first one of the next."""
        return self.shown(cut - 1)


def numbers_in_text(cells: pa.ChunkedArray, text: TextFormat) -> Reading:
    """Cells of text as numbers.

    Example:
        >>> cells = pa.chunked_array([pa.array(["1.000,5", "1,5", "1.5"], pa.large_string())])
        >>> numbers_in_text(cells, TextFormat(decimal=",", thousands="."))[0].tolist()
        [1000.5, 1.5, nan]
    """
    plain = _plain_numbers(cells) if _is_plain(text) else None
    if plain is not None:
        return fine(plain)
    bare = trimmed(cells, text)
    fits = pc.match_substring_regex(bare, _number_pattern(text))
    known = pc.if_else(pc.fill_null(fits, False), bare, pa.scalar(None, bare.type))
    if text.thousands:
        known = pc.replace_substring(known, text.thousands, "")
    if text.decimal != ".":
        known = pc.replace_substring(known, text.decimal, ".")
    values = to_numpy(known.cast(pa.float64()))
    wrong = np.where(to_numpy(pc.fill_null(fits, True)).astype(bool), FINE, FORM)
    return values.copy(), wrong.astype(np.uint8)


def _plain_numbers(cells: pa.ChunkedArray) -> np.ndarray | None:
    """Numbers as programs write them; None where a cell is anything else."""
    try:
        values = to_numpy(cells.cast(pa.float64()))
    except pa.ArrowInvalid:
        return None
    return values.copy() if np.isfinite(values).all() else None


@functools.lru_cache(maxsize=64)
def _is_plain(text: TextFormat) -> bool:
    """Whether a cell that a program reads as a number is that number by declaration, too."""
    is_number = re.compile(_number_pattern(PLAIN), re.ASCII)
    return text.decimal == "." and not any(is_number.match(mark.strip()) for mark in text.missing)


@functools.lru_cache(maxsize=64)
def _number_pattern(text: TextFormat) -> str:
    mark, group = re.escape(text.decimal), re.escape(text.thousands)
    whole = f"([0-9]{{1,3}}({group}[0-9]{{3}})+|[0-9]+)" if group else "[0-9]+"
    number = rf"({whole}({mark}[0-9]*)?|{mark}[0-9]+)([eE][+-]?[0-9]+)?"
    return rf"^[+-]?({number}|(?i:inf|infinity))$"


def _finite(values: np.ndarray, wrong: np.ndarray) -> Reading:
    return values, np.where(np.isinf(values), np.uint8(INFINITE), wrong)


def _of_number(values: np.ndarray, text: TextFormat) -> Reading:
    # one and the same nothing, whatever bits it came with
    return _finite(*fine(np.where(np.isnan(values), np.nan, values)))


def _of_text(cells: Any, text: TextFormat) -> Reading:
    return _finite(*numbers_in_text(cells, text))


def _of_truth(cells: Any, text: TextFormat) -> Reading:
    return fine(to_numpy(cells.cast(pa.uint8()).cast(pa.float64())).copy())


def _whole_of(reader: Reader) -> Reader:
    def read(cells: Any, text: TextFormat) -> Reading:
        values, wrong = reader(cells, text)
        is_fraction = np.isfinite(values) & (np.rint(values) != values)
        return values, np.where(is_fraction, np.uint8(FRACTION), wrong)

    return read

"""The leaves of numbers and dates: intervals, and single values that rows pile up on."""

import functools
from dataclasses import dataclass
from typing import final

import numpy as np

from dpflows.errors import InputError
from dpflows.table.cells import seconds
from dpflows.table.columns import Column
from dpflows.table.leaves import Leaves

#: The most intervals that a column is cut into.
MOST_INTERVALS = 1024

#: Seconds of what intervals of dates begin with: a second, a minute, an hour or a day.
_DATE_STEPS = (1, 60, 3600, 86400)
_DAY = 86400.0
#: How many neighbouring floating-point numbers an interval has at least.
_FEWEST_NUMBERS = 256


@final
@dataclass(frozen=True)
class Intervals(Leaves):
    """Intervals between the bounds, and single values that rows may pile up on.

    Whole numbers are leaves by themselves if there are not too many. Dates are counted in
    seconds, or in days if that is their declared unit; intervals of seconds begin with a
    second, a minute, an hour or a day. Where values are grouped, and for
    continuous columns, the declared spikes, or else the bounds and a zero between them,
    are leaves of their own. Their numbers follow those of the intervals.

    Example:
        >>> leaves = Intervals(Column("gain", "integer", min=0, max=99_999))
        >>> leaves.spikes, leaves.find(np.array([0.0, 99_999.0, 5.0])).tolist()
        ((0.0, 99999.0), [1024, 1025, 0])
    """

    column: Column

    @property
    def filled(self) -> int:
        """Intervals and spikes."""
        return self._count + len(self.spikes)

    @property
    def is_ordered(self) -> bool:
        """Numbers that follow each other are alike."""
        return True

    @functools.cached_property
    def order(self) -> np.ndarray:
        """From low to high; a spike stands before or after the interval that it interrupts."""
        middles = self.edges[:-1] / 2 + self.edges[1:] / 2
        return np.argsort(np.concatenate([middles[self._room > 0], self.spikes]), kind="stable")

    @functools.cached_property
    def edges(self) -> np.ndarray:
        """Where intervals begin and end; between whole numbers if values are whole."""
        low, high = self._limits
        if not self.column.is_whole:
            return np.linspace(low, high, self._pieces(low, high) + 1)
        step = self._step
        first = np.floor(low / step) * step
        count = int(-((first - high - 1) // step))
        marks = first + step * np.round(np.linspace(0, count, self._groups(count) + 1))
        return np.clip(marks, low, high + 1) - 0.5

    @functools.cached_property
    def spikes(self) -> tuple[float, ...]:
        """Values that are leaves of their own; days are counted since 1970 began."""
        low, high = self._limits
        if self._is_single:
            return ()
        if self.column.spikes is not None:
            return tuple(sorted({self._counted(spike) for spike in self.column.spikes}))
        has_zero = low < 0 < high and self.column.kind != "date"
        return tuple(sorted({low, high, *([0.0] if has_zero else [])}))

    @property
    def _length(self) -> float:
        """How many of the column's units the numbers of leaves count by."""
        return _DAY if self.column.counts_days else 1.0

    @property
    def _limits(self) -> tuple[float, float]:
        low, high = _bounds(self.column)
        return self._counted(low), self._counted(high)

    def _counted(self, value: float) -> float:
        return value // _DAY if self.column.counts_days else value

    @property
    def _is_single(self) -> bool:
        """Whether every interval holds one value."""
        width = float(self.edges[-1] - self.edges[0])
        return self.column.is_whole and len(self.edges) - 1 == width

    @property
    def _step(self) -> int:
        """What intervals of whole numbers are made of."""
        if self.column.kind != "date" or self.column.counts_days:
            return 1
        low, high = self._limits
        fitting = (step for step in _DATE_STEPS if high - low < step * MOST_INTERVALS)
        return next(fitting, _DATE_STEPS[-1])

    def _pieces(self, low: float, high: float) -> int:
        numbers = (high - low) / max(np.spacing(abs(low)), np.spacing(abs(high)))
        if numbers < _FEWEST_NUMBERS:
            raise InputError(
                f"column {self.column.name!r}: min and max are too close for their size; "
                "subtract a constant from the column"
            )
        return int(min(numbers // _FEWEST_NUMBERS, MOST_INTERVALS))

    def _groups(self, count: int) -> int:
        if count <= MOST_INTERVALS or self.column.kind == "date":
            return min(count, MOST_INTERVALS)
        # a few more values than intervals would make intervals of one and of two
        return min(count // 4, MOST_INTERVALS)

    @functools.cached_property
    def _room(self) -> np.ndarray:
        """How many values, or how much length, spikes leave to each interval."""
        widths = np.diff(self.edges)
        if not self.column.is_whole:
            return widths
        taken = np.searchsorted(self.edges, self.spikes, side="right") - 1
        return widths - np.bincount(taken, minlength=len(widths))

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """The leaf of each interval; those that spikes use up have none."""
        return np.cumsum(self._room > 0) - 1

    @property
    def _count(self) -> int:
        return int(np.count_nonzero(self._room > 0))

    @property
    def _starts(self) -> np.ndarray:
        return self.edges[:-1][self._room > 0]

    def _log_volumes(self) -> np.ndarray:
        return np.log(np.concatenate([self._room[self._room > 0], np.ones(len(self.spikes))]))

    def _find(self, values: np.ndarray) -> np.ndarray:
        low, high = self._limits
        numbers = seconds(values) if self.column.kind == "date" else values.astype(float)
        # a moment belongs to the second, or to the day, that it lies in
        numbers = np.floor(numbers / self._length) if self.column.is_whole else numbers
        numbers = np.clip(numbers, low, high)
        place = np.searchsorted(self.edges, numbers, side="right") - 1
        found = self._numbers[np.clip(place, 0, len(self._numbers) - 1)]
        for number, spike in enumerate(self.spikes, self._count):
            found[numbers == spike] = number
        return found

    def _draw(self, leaves: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        # the last entry stands for all spikes, whose values are put in below
        starts, room = np.append(self._starts, 0.0), np.append(self._room[self._room > 0], 0.0)
        inside = np.minimum(leaves, self._count)
        spread = self._whole if self.column.is_whole else self._between
        values = spread(starts[inside], room[inside], uniform)
        spikes = np.array([0.0, *self.spikes])[np.maximum(leaves - self._count + 1, 0)]
        values = np.where(leaves >= self._count, spikes, values)
        return self._moments(values) if self.column.kind == "date" else values

    def _moments(self, numbers: np.ndarray) -> np.ndarray:
        # a day begins before a bound that lies within it
        moments = np.clip(numbers * self._length, *_bounds(self.column))
        return (moments * 1e6).astype(np.int64).astype("datetime64[us]")

    def _between(self, start: np.ndarray, width: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        # sums round up to the next interval, and a start may be a spike
        values = np.minimum(start + uniform * width, np.nextafter(start + width, -np.inf))
        for spike in self.spikes:
            toward = np.where(start < spike, -np.inf, np.inf)
            values = np.where(values == spike, np.nextafter(values, toward), values)
        return values

    def _whole(self, start: np.ndarray, room: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Whole numbers of an interval, counted past those that are leaves of their own."""
        values = start + 0.5 + np.minimum(np.floor(uniform * room), room - 1)
        for spike in self.spikes:
            values = values + ((start < spike) & (spike <= values))
        return values


def _bounds(column: Column) -> tuple[float, float]:
    if column.min is None or column.max is None:
        raise InputError(f"column {column.name!r} has no bounds; declare min and max")
    return column.min, column.max

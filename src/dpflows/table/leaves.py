"""The finest public parts of a column: labels, single values, intervals, and nothing at all.

A mixed row is described by one leaf per column. Inside an interval values are spread
evenly, so a distribution over leaves is a distribution over rows.
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from dpflows.errors import InputError
from dpflows.table.cells import seconds
from dpflows.table.columns import Column

#: The most intervals that a column of numbers is cut into.
MOST_INTERVALS = 1024
#: Labels beyond these would each have a few rows, which noise drowns.
MOST_LABELS = 500

#: Gives that many independent numbers, uniform in [0, 1).
Uniforms = Callable[[int], np.ndarray]


class Leaves(abc.ABC):
    """The leaves of one column, numbered from zero; the last one may be a missing cell.

    Guarantee:
        Leaves depend on the column's declaration alone, and a cell's leaf on that cell
        alone.
    """

    column: Column

    @property
    @abc.abstractmethod
    def filled(self) -> int:
        """How many leaves hold a value."""

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return self.filled + self.column.nullable

    @property
    def log_volumes(self) -> np.ndarray:
        """The logarithm of how many values, or how much length, each leaf holds."""
        volumes = np.zeros(self.size)
        volumes[: self.filled] = self._log_volumes()
        return volumes

    def find(self, values: np.ndarray) -> np.ndarray:
        """The leaf of every cell; -1 where it lies outside what is declared."""
        missing = _is_missing(values)
        if missing.any() and not self.column.nullable:
            raise InputError(f"column {self.column.name!r} has missing cells; declare it nullable")
        found = np.full(len(values), self.filled)
        found[~missing] = self._find(values[~missing])
        return found

    def draw(self, leaves: np.ndarray, uniforms: Uniforms) -> np.ndarray:
        """A value of every leaf, evenly spread inside it."""
        missing = leaves >= self.filled
        values = self._draw(np.where(missing, 0, leaves), uniforms(len(leaves)))
        return _with_missing(values, missing) if missing.any() else values

    @abc.abstractmethod
    def _log_volumes(self) -> np.ndarray: ...

    @abc.abstractmethod
    def _find(self, values: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _draw(self, leaves: np.ndarray, uniform: np.ndarray) -> np.ndarray: ...


def leaves_of(column: Column) -> Leaves:
    """The leaves of a declared column.

    Example:
        >>> leaves_of(Column("sex", "categorical", categories=("F", "M"))).size
        2
        >>> leaves_of(Column("age", "integer", min=0, max=120, nullable=True)).size
        122
    """
    if not column.is_declared:
        raise InputError(
            f"nothing is declared about column {column.name!r}: declare its bounds or categories, "
            "or let a share of epsilon discover them"
        )
    if column.kind in ("categorical", "boolean"):
        return Labels(column)
    return Intervals(column)


@final
@dataclass(frozen=True)
class Labels(Leaves):
    """One leaf per label, or per truth value.

    Example:
        >>> leaves = Labels(Column("sex", "categorical", categories=("F", "M")))
        >>> leaves.find(np.array(["M", "X"], dtype=object)).tolist()
        [1, -1]
    """

    column: Column

    @property
    def filled(self) -> int:
        """How many labels there are."""
        return len(self._labels)

    @functools.cached_property
    def _labels(self) -> tuple[object, ...]:
        if self.column.kind == "boolean":
            return (False, True)
        labels = self.column.categories or ()
        if len(labels) > MOST_LABELS:
            raise InputError(
                f"column {self.column.name!r} has {len(labels)} categories, of which noise would "
                f"leave little; group them into at most {MOST_LABELS}, or drop the column"
            )
        return labels

    def _log_volumes(self) -> np.ndarray:
        return np.zeros(self.filled)

    def _find(self, values: np.ndarray) -> np.ndarray:
        number = {label: i for i, label in enumerate(self._labels)}
        return np.array([number.get(value, -1) for value in values.tolist()], dtype=np.int64)

    def _draw(self, leaves: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        kind = bool if self.column.kind == "boolean" else object
        return np.array(self._labels, dtype=kind)[leaves]


@final
@dataclass(frozen=True)
class Intervals(Leaves):
    """Equal intervals between the bounds, and single values that rows may pile up on.

    Whole numbers and seconds of dates are leaves by themselves if there are not too many.
    Where they are grouped, and for continuous columns, the declared spikes, or else the
    bounds and zero, are leaves of their own.

    Example:
        >>> leaves = Intervals(Column("gain", "integer", min=0, max=99_999))
        >>> leaves.spikes, leaves.find(np.array([0.0, 99_999.0, 5.0])).tolist()
        ((0.0, 99999.0), [1024, 1025, 0])
    """

    column: Column

    @property
    def filled(self) -> int:
        """Intervals and spikes."""
        return len(self.edges) - 1 + len(self.spikes)

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.column.kind != "continuous"

    @functools.cached_property
    def edges(self) -> np.ndarray:
        """Where intervals begin and end; between whole numbers if values are whole."""
        low, high = _bounds(self.column)
        if not self.is_whole:
            return np.linspace(low, high, MOST_INTERVALS + 1)
        count = int(high - low) + 1
        # groups are large enough to hold more than the spikes
        groups = count if count <= MOST_INTERVALS else min(count // 4, MOST_INTERVALS)
        return low - 0.5 + np.round(np.linspace(0, count, groups + 1))

    @functools.cached_property
    def spikes(self) -> tuple[float, ...]:
        """Values that are leaves of their own."""
        low, high = _bounds(self.column)
        if self.is_whole and high - low < MOST_INTERVALS:
            return ()
        return tuple(sorted({low, high, *([0.0] if low < 0 < high else [])}))

    def _log_volumes(self) -> np.ndarray:
        widths = np.diff(self.edges) - self._taken()
        return np.concatenate([np.log(widths), np.zeros(len(self.spikes))])

    def _taken(self) -> np.ndarray:
        """How many whole numbers of each interval are leaves of their own."""
        if not self.is_whole:
            return np.zeros(len(self.edges) - 1)
        return np.bincount(self._interval(np.array(self.spikes)), minlength=len(self.edges) - 1)

    def _find(self, values: np.ndarray) -> np.ndarray:
        low, high = _bounds(self.column)
        numbers = seconds(values) if self.column.kind == "date" else values.astype(float)
        numbers = np.clip(np.rint(numbers) if self.is_whole else numbers, low, high)
        found = self._interval(numbers)
        for number, spike in enumerate(self.spikes, len(self.edges) - 1):
            found[numbers == spike] = number
        return found

    def _interval(self, numbers: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(self.edges, numbers, side="right") - 1, 0, self._last)

    @property
    def _last(self) -> int:
        return len(self.edges) - 2

    def _draw(self, leaves: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        inside = np.minimum(leaves, self._last)
        start, end = self.edges[inside], self.edges[inside + 1]
        if self.is_whole:
            values = self._whole(start, uniform * (end - start - self._taken()[inside]))
        else:
            values = start + uniform * (end - start)
        spikes = np.array([0.0, *self.spikes])[np.maximum(leaves - self._last, 0)]
        return np.where(leaves > self._last, spikes, values)

    def _whole(self, start: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Whole numbers of an interval, counted past those that are leaves of their own."""
        values = start + 0.5 + np.floor(offset)
        for spike in self.spikes:
            values = values + ((start < spike) & (spike <= values))
        return values


def _bounds(column: Column) -> tuple[float, float]:
    if column.min is None or column.max is None:
        raise InputError(f"column {column.name!r} has no bounds; declare min and max")
    return column.min, column.max


def _is_missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "M":
        return np.isnat(values)
    if values.dtype == object:
        return np.array([value is None for value in values.tolist()])
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def _with_missing(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.where(missing, np.nan, values)
    gaps = values.astype(object)
    gaps[missing] = None
    return gaps

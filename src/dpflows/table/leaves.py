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
from dpflows.table.columns import Column, is_missing

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
    @abc.abstractmethod
    def is_ordered(self) -> bool:
        """Whether neighbours in ``order`` are alike."""

    @property
    @abc.abstractmethod
    def order(self) -> np.ndarray:
        """The numbers of the leaves that hold a value, in the order of their values."""

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return self.filled + self.column.nullable

    @property
    def log_volumes(self) -> np.ndarray:
        """The logarithm of how many values, or how much length, each leaf holds.

        Labels, truth values, whole numbers, seconds or days of dates, spikes and a missing
        cell are counted; intervals of a continuous column are measured in its unit. The
        probability of a leaf divided by its volume is what a row's density is made of.
        """
        volumes = np.zeros(self.size)
        volumes[: self.filled] = self._log_volumes()
        return volumes

    def find(self, values: np.ndarray) -> np.ndarray:
        """The leaf of every cell.

        Numbers and dates beyond the bounds are found at the nearest bound. A label that
        is not declared is found at the column's ``other``, and is -1 if there is none.

        Args:
            values: Cells as in ``Table.columns``.
        """
        missing = is_missing(values)
        if missing.any() and not self.column.nullable:
            raise InputError(f"column {self.column.name!r} has missing cells; declare it nullable")
        found = np.full(len(values), self.filled, dtype=np.int64)
        found[~missing] = self._find(values[~missing])
        return found

    def draw(self, leaves: np.ndarray, uniforms: Uniforms) -> np.ndarray:
        """A value of every leaf, evenly spread inside it, as cells of ``Table.columns``.

        Args:
            leaves: Numbers of leaves.
            uniforms: Called once with how many there are.
        """
        missing = leaves >= self.filled
        values = self._draw(np.where(missing, 0, leaves), np.asarray(uniforms(len(leaves))))
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
    # which are leaves themselves
    from dpflows.table.intervals import Intervals

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

    @property
    def is_ordered(self) -> bool:
        """Labels that follow each other need not be alike."""
        return False

    @property
    def order(self) -> np.ndarray:
        """As declared."""
        return np.arange(self.filled)

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
        unknown = -1 if self.column.other is None else number[self.column.other]
        return np.array([number.get(value, unknown) for value in values.tolist()], dtype=np.int64)

    def _draw(self, leaves: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        kind = bool if self.column.kind == "boolean" else object
        return np.array(self._labels, dtype=kind)[leaves]


def _with_missing(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "fM":
        values = values.copy()
        values[missing] = np.nan if values.dtype.kind == "f" else np.datetime64("NaT")
        return values
    gaps = values.astype(object)
    gaps[missing] = None
    return gaps

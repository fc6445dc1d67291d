"""How a column is cut into bins: the finest ones, neighbours merged, or cuts between numbers.

A row of any kinds is described by one bin per column. Inside a bin all values are alike, so a
distribution over bins is a distribution over rows. Bins know nothing of kinds: a kind says how
its cells are counted, as numbers or as labels.
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int

from dpflows.errors import InputError
from dpflows.table.raw import is_missing

#: The most intervals that a column is cut into.
MOST_INTERVALS = 1024
#: Labels beyond these would each have a few rows, which noise drowns.
MOST_LABELS = 500
#: A merged bin should hold so many standard deviations of the noise on a bin's count.
STANDS_OUT = 4.0
#: A group of bins counts as empty below so many standard deviations.
EMPTY = 2.0
#: The most merged bins that a column is aimed to have beside its frequent bins.
MOST_MERGED = 32

#: How many neighbouring floating-point numbers an interval has at least.
_FEWEST_NUMBERS = 256

#: Gives that many independent numbers, uniform in [0, 1).
Uniforms = Callable[[int], np.ndarray]
Counts = Float[np.ndarray, " bins"]
Numbers = Int[np.ndarray, " bins"]


class Bins(abc.ABC):
    """Bins of one column, numbered from zero; the last one may be that of missing cells.

    Attributes:
        name: The column.
        nullable: Whether there is a bin of missing cells.

    Guarantee:
        The bin of a cell depends on that cell and on the bins alone.
    """

    name: str
    nullable: bool

    @property
    @abc.abstractmethod
    def filled(self) -> int:
        """How many bins hold a value."""

    @property
    @abc.abstractmethod
    def is_ordered(self) -> bool:
        """Whether neighbouring bins are alike."""

    @property
    def size(self) -> int:
        """How many bins there are."""
        return self.filled + self.nullable

    def find(self, values: np.ndarray) -> np.ndarray:
        """The bin of every cell.

        Numbers and dates beyond the bounds are found at the nearest bound. A label that
        is not declared is found at the column's ``other``, and is -1 if there is none.

        Args:
            values: Cells as in ``Table.columns``.
        """
        missing = is_missing(values)
        if missing.any() and not self.nullable:
            raise InputError(f"column {self.name!r} has missing cells; declare it nullable")
        found = np.full(len(values), self.filled, dtype=np.int64)
        found[~missing] = self._find(values[~missing])
        return found

    @abc.abstractmethod
    def _find(self, values: np.ndarray) -> np.ndarray: ...


class FinestBins(Bins):
    """The finest public bins of a column: labels, single values and intervals.

    Guarantee:
        They depend on the column's declaration alone.
    """

    @property
    @abc.abstractmethod
    def order(self) -> np.ndarray:
        """The numbers of the bins that hold a value, in the order of their values."""

    @property
    @abc.abstractmethod
    def singles(self) -> int:
        """How many bins at the end hold one value each, which is not merged with neighbours."""

    @property
    def log_volumes(self) -> np.ndarray:
        """The logarithm of how many values, or how much length, each bin holds.

        Labels, truth values, whole numbers, seconds or days of dates, spikes and a missing
        cell are counted; intervals of a continuous column are measured in its unit. The
        probability of a bin divided by its volume is what a row's density is made of.
        """
        volumes = np.zeros(self.size)
        volumes[: self.filled] = self._log_volumes()
        return volumes

    @property
    def ranks(self) -> np.ndarray:
        """The place of every bin in the order of values; missing comes last."""
        places = np.arange(self.size)
        places[np.asarray(self.order)] = np.arange(self.filled)
        return places

    def draw(self, bins: np.ndarray, uniforms: Uniforms) -> np.ndarray:
        """A value of every bin, evenly spread inside it, as cells of ``Table.columns``.

        Args:
            bins: Numbers of bins.
            uniforms: Called once with how many there are.
        """
        missing = bins >= self.filled
        values = self._draw(np.where(missing, 0, bins), np.asarray(uniforms(len(bins))))
        return _with_missing(values, missing) if missing.any() else values

    @abc.abstractmethod
    def _log_volumes(self) -> np.ndarray: ...

    @abc.abstractmethod
    def _draw(self, bins: np.ndarray, uniform: np.ndarray) -> np.ndarray: ...


@final
@dataclass(frozen=True, eq=False)
class LabelBins(FinestBins):
    """One bin per label, or per truth value.

    Args:
        name: The column.
        labels: What the bins hold.
        dtype: The type of the cells.
        nullable: Whether there is a bin of missing cells.
        unknown: The bin of labels that are not declared; -1 is none.

    Example:
        >>> LabelBins("sex", ("F", "M")).find(np.array(["M", "X"], dtype=object)).tolist()
        [1, -1]
    """

    name: str
    labels: tuple[object, ...]
    dtype: type = object
    nullable: bool = False
    unknown: int = -1

    @property
    def filled(self) -> int:
        """How many labels there are."""
        return len(self.labels)

    @property
    def is_ordered(self) -> bool:
        """Labels that follow each other need not be alike."""
        return False

    @property
    def order(self) -> np.ndarray:
        """As declared."""
        return np.arange(self.filled)

    @property
    def singles(self) -> int:
        """All of them."""
        return self.filled

    def _log_volumes(self) -> np.ndarray:
        return np.zeros(self.filled)

    def _find(self, values: np.ndarray) -> np.ndarray:
        number = {label: i for i, label in enumerate(self.labels)}
        found = [number.get(value, self.unknown) for value in values.tolist()]
        return np.array(found, dtype=np.int64)

    def _draw(self, bins: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        return np.array(self.labels, dtype=self.dtype)[bins]


def _unchanged(values: np.ndarray) -> np.ndarray:
    return values.astype(float)


@final
@dataclass(frozen=True, eq=False)
class IntervalBins(FinestBins):
    """Intervals between the bounds, and single values that many rows may share.

    Whole numbers are bins by themselves if there are not too many. Where values are grouped,
    and for numbers with fractions, spikes are bins of their own. Their numbers follow those
    of the intervals.

    Args:
        name: The column.
        low: The lowest number.
        high: The highest number.
        places: Where spikes may be.
        is_whole: Whether numbers are whole.
        nullable: Whether there is a bin of missing cells.
        steps: What intervals of whole numbers may be made of; the smallest one that fits is.
        group: How many steps an interval has at least, if it has more than one.
        numbers: The numbers of cells that are not missing.
        cells: The cells of numbers.

    Example:
        >>> bins = IntervalBins("gain", 0, 99_999, places=(0.0, 99_999.0), is_whole=True)
        >>> bins.spikes, bins.find(np.array([0.0, 99_999.0, 5.0])).tolist()
        ((0.0, 99999.0), [1024, 1025, 0])
    """

    name: str
    low: float
    high: float
    places: tuple[float, ...] = ()
    is_whole: bool = False
    nullable: bool = False
    steps: tuple[int, ...] = (1,)
    group: int = 4
    numbers: Callable[[np.ndarray], np.ndarray] = _unchanged
    cells: Callable[[np.ndarray], np.ndarray] = _unchanged

    @property
    def filled(self) -> int:
        """Intervals and spikes."""
        return self._count + len(self.spikes)

    @property
    def is_ordered(self) -> bool:
        """Numbers that follow each other are alike."""
        return True

    @property
    def singles(self) -> int:
        """The spikes."""
        return len(self.spikes)

    @functools.cached_property
    def order(self) -> np.ndarray:
        """From low to high; a spike stands before or after the interval that it interrupts."""
        middles = self.edges[:-1] / 2 + self.edges[1:] / 2
        return np.argsort(np.concatenate([middles[self._room > 0], self.spikes]), kind="stable")

    @functools.cached_property
    def edges(self) -> np.ndarray:
        """Where intervals begin and end; between whole numbers if values are whole."""
        low, high = self.low, self.high
        if not self.is_whole:
            return np.linspace(low, high, self._pieces(low, high) + 1)
        step = self._step
        first = np.floor(low / step) * step
        count = int(-((first - high - 1) // step))
        marks = first + step * np.round(np.linspace(0, count, self._groups(count) + 1))
        return np.clip(marks, low, high + 1) - 0.5

    @functools.cached_property
    def spikes(self) -> tuple[float, ...]:
        """Numbers that are bins of their own; none where each number is."""
        return () if self._is_single else tuple(sorted(set(self.places)))

    @property
    def _is_single(self) -> bool:
        """Whether every interval holds one value."""
        width = float(self.edges[-1] - self.edges[0])
        return self.is_whole and len(self.edges) - 1 == width

    @property
    def _step(self) -> int:
        fitting = (s for s in self.steps if self.high - self.low < s * MOST_INTERVALS)
        return next(fitting, self.steps[-1])

    def _pieces(self, low: float, high: float) -> int:
        numbers = (high - low) / max(np.spacing(abs(low)), np.spacing(abs(high)))
        if numbers < _FEWEST_NUMBERS:
            raise InputError(
                f"column {self.name!r}: min and max are too close for their size; "
                "subtract a constant from the column"
            )
        return int(min(numbers // _FEWEST_NUMBERS, MOST_INTERVALS))

    def _groups(self, count: int) -> int:
        if count <= MOST_INTERVALS:
            return count
        # a few more values than intervals would make intervals of one and of two
        return min(count // self.group, MOST_INTERVALS)

    @functools.cached_property
    def _room(self) -> np.ndarray:
        """How many values, or how much length, spikes leave to each interval."""
        widths = np.diff(self.edges)
        if not self.is_whole:
            return widths
        taken = np.searchsorted(self.edges, self.spikes, side="right") - 1
        return widths - np.bincount(taken, minlength=len(widths))

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """The bin of each interval; those that spikes use up have none."""
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
        numbers = np.clip(self.numbers(values), self.low, self.high)
        place = np.searchsorted(self.edges, numbers, side="right") - 1
        found = self._numbers[np.clip(place, 0, len(self._numbers) - 1)]
        for number, spike in enumerate(self.spikes, self._count):
            found[numbers == spike] = number
        return found

    def _draw(self, bins: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        # the last entry stands for all spikes, whose values are put in below
        starts, room = np.append(self._starts, 0.0), np.append(self._room[self._room > 0], 0.0)
        inside = np.minimum(bins, self._count)
        spread = self._whole if self.is_whole else self._between
        values = spread(starts[inside], room[inside], uniform)
        spikes = np.array([0.0, *self.spikes])[np.maximum(bins - self._count + 1, 0)]
        return self.cells(np.where(bins >= self._count, spikes, values))

    def _between(self, start: np.ndarray, width: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        # sums round up to the next interval, and a start may be a spike
        values = np.minimum(start + uniform * width, np.nextafter(start + width, -np.inf))
        for spike in self.spikes:
            toward = np.where(start < spike, -np.inf, np.inf)
            values = np.where(values == spike, np.nextafter(values, toward), values)
        return values

    def _whole(self, start: np.ndarray, room: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Whole numbers of an interval, counted past those that are bins of their own."""
        values = start + 0.5 + np.minimum(np.floor(uniform * room), room - 1)
        for spike in self.spikes:
            values = values + ((start < spike) & (spike <= values))
        return values


@final
@dataclass(frozen=True, eq=False)
class CutBins(Bins):
    """Bins of numbers between cuts that may stand anywhere, for counting rows.

    Args:
        name: The column.
        cuts: Where the bins meet, increasing; a cut belongs to the bin above it.
        numbers: The numbers of cells that are not missing.
        nullable: Whether there is a bin of missing cells.

    Example:
        >>> CutBins("age", (18.0, 65.0)).find(np.array([3.0, 18.0, 200.0])).tolist()
        [0, 1, 2]
    """

    name: str
    cuts: tuple[float, ...]
    numbers: Callable[[np.ndarray], np.ndarray] = _unchanged
    nullable: bool = False

    @property
    def filled(self) -> int:
        """One more than there are cuts."""
        return len(self.cuts) + 1

    @property
    def is_ordered(self) -> bool:
        """Numbers that follow each other are alike."""
        return True

    def _find(self, values: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.array(self.cuts), self.numbers(values), side="right")


@final
@dataclass(frozen=True, eq=False)
class MergedBins:
    """Groups of the finest bins of a column.

    Args:
        bins: The finest bins.
        groups: The merged bin of every bin.
        shares: The share that a bin has of its merged bin.

    Example:
        >>> age = MergedBins.evenly(IntervalBins("age", 0, 99, is_whole=True), most=10)
        >>> age.size, age.find(np.array([0.0, 9.0, 10.0, 99.0])).tolist()
        (10, [0, 0, 1, 9])
    """

    bins: FinestBins
    groups: Numbers
    shares: Counts

    @classmethod
    def each(cls, bins: FinestBins) -> "MergedBins":
        """A merged bin for every bin."""
        return cls(bins, np.arange(bins.size), np.ones(bins.size))

    @classmethod
    def evenly(cls, bins: FinestBins, most: int) -> "MergedBins":
        """At most so many runs of neighbouring intervals; labels and spikes stay alone.

        Guarantee:
            Depends on the declaration alone.
        """
        intervals = bins.filled - bins.singles
        runs_of = min(most, intervals)
        joined = np.arange(intervals) * runs_of // max(intervals, 1)
        groups = np.concatenate([joined, runs_of + np.arange(bins.size - intervals)])
        return cls(bins, groups, _shares(groups, np.exp(bins.log_volumes)))

    @classmethod
    def by_counts(
        cls, bins: FinestBins, counts: Counts, *, noise: float, rows: int, width: int
    ) -> "MergedBins":
        """Rare bins together, until a merged bin stands out from the noise of its count.

        Neighbours are merged where they are alike; of labels, all that are rare. Missing
        cells keep their own bin.

        Args:
            bins: The finest bins.
            counts: Noisy counts of the bins in the order of their values.
            noise: The standard deviation of every count.
            rows: The public number of rows.
            width: How many neighbouring bins are judged together to be empty.

        Guarantee:
            Depends on the declaration and the noisy counts alone: post-processing.
        """
        filled = counts[: bins.filled]
        if bins.is_ordered:
            empty = _probably_empty(filled, width, EMPTY * noise)
            groups = runs(np.where(empty, 0.0, filled), _enough(filled, noise, rows), empty)
        else:
            groups = rest(filled, _enough(filled, noise, rows))
        missing = np.arange(bins.size - bins.filled) + groups.max() + 1
        groups, volumes = np.concatenate([groups, missing])[bins.ranks], bins.log_volumes
        by_count = np.maximum(counts, noise)[bins.ranks]
        weights = np.exp(volumes - volumes.max()) if bins.is_ordered else by_count
        return cls(bins, groups, _shares(groups, weights))

    @property
    def size(self) -> int:
        """How many merged bins there are."""
        return int(self.groups.max()) + 1

    def draw(self, groups: Int[np.ndarray, " n"], uniforms: Uniforms) -> np.ndarray:
        """A value of every merged bin, by the shares of the bins and evenly inside them."""
        order = np.argsort(self.groups, kind="stable")
        places = self.groups[order]
        upto = np.cumsum(self.shares[order])
        # every merged bin's shares add up to one, so that they end at whole numbers
        found = np.searchsorted(upto, groups + uniforms(len(groups)), side="right")
        first = np.searchsorted(places, groups)
        last = np.searchsorted(places, groups, side="right") - 1
        return self.bins.draw(order[np.clip(found, first, last)], uniforms)

    def find(self, values: np.ndarray) -> np.ndarray:
        """The merged bin of every cell; -1 for a label that is not declared."""
        found = self.bins.find(values)
        return np.where(found < 0, -1, self.groups[found])


def runs(counts: Counts, enough: float, empty: Bool[np.ndarray, " bins"] | None = None) -> Numbers:
    """Neighbouring bins together until they have enough rows; one that has them stays alone.

    Args:
        counts: Rows per bin, in the order of values.
        enough: How many rows a merged bin should have.
        empty: Bins that are kept apart from others, so that no rows are spread over them.

    Example:
        >>> runs(np.array([1.0, 2.0, 9.0, 3.0, 3.0, 1.0]), 5.0).tolist()
        [0, 0, 1, 2, 2, 3]
        >>> runs(np.array([1.0, 0.0, 0.0]), 5.0, np.array([False, True, True])).tolist()
        [0, 1, 1]
    """
    borders = np.zeros(len(counts), dtype=bool)
    if empty is not None:
        borders[1:] = empty[1:] != empty[:-1]
    groups, group, held = [], 0, 0.0
    for at, (count, border) in enumerate(zip(counts.tolist(), borders.tolist(), strict=True)):
        if at > 0 and (border or max(count, held) >= enough):
            group, held = group + 1, 0.0
        groups.append(group)
        held += count
    return np.array(groups, dtype=np.int64)


def rest(counts: Counts, enough: float) -> Numbers:
    """A merged bin for every label that has enough rows, and one for all others.

    Example:
        >>> rest(np.array([1.0, 9.0, 2.0, 8.0]), 5.0).tolist()
        [2, 0, 2, 1]
    """
    frequent = counts >= enough
    return np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())


def _probably_empty(counts: Counts, width: int, little: float) -> Bool[np.ndarray, " bins"]:
    """Which bins lie in large groups that may well be empty."""
    sums = np.add.reduceat(counts, np.arange(0, len(counts), width))
    return np.repeat(sums < little, width)[: len(counts)]


def _enough(counts: Counts, noise: float, rows: int) -> float:
    """How many rows a merged bin should have: its part of those not in frequent bins."""
    thin = max(counts[counts < rows / MOST_MERGED].sum(), 0.0)
    return max(thin / MOST_MERGED, STANDS_OUT * noise)


def _shares(groups: Numbers, weights: Counts) -> Counts:
    return weights / np.bincount(groups, weights)[groups]


def _with_missing(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "fM":
        values = values.copy()
        values[missing] = np.nan if values.dtype.kind == "f" else np.datetime64("NaT")
        return values
    gaps = values.astype(object)
    gaps[missing] = None
    return gaps

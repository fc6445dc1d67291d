"""One column of a table: what is publicly known about its cells, and how they are read by that.

A message says how many cells are wrong and where the first one stands. It never
quotes a cell, and never passes on the text of a library, which might.
"""

import dataclasses
from dataclasses import dataclass
from typing import final

import numpy as np

from dpflows.errors import InputError
from dpflows.table.bins import MOST_LABELS, FinestBins
from dpflows.table.kinds import Declaration, Kind, kind_of
from dpflows.table.kinds.base import (
    FINE,
    FORM,
    FRACTION,
    INFINITE,
    MAX_NAME_LENGTH,
    Reading,
    check_name,
    is_storable,
)
from dpflows.table.raw import (
    MOMENT,
    NUMBER,
    TRUTH,
    Cells,
    Raw,
    counted,
    explained,
    is_missing,
    sorted_cells,
    to_numpy,
)
from dpflows.table.text_format import PLAIN, TextFormat

_ADVICE = (
    "correct them, or declare in the schema their kind, how they are written ([text]), or "
    'unreadable = "missing"'
)
_FILL = "fill them, drop their rows, or declare nullable = true (DPDensity models missing cells)"


@final
@dataclass(frozen=True)
class Column(Declaration):
    """One column: its name, its kind and what is publicly known about its cells.

    Args:
        name: The column's name.
        kind: The name of one of ``KINDS``.
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

    def __post_init__(self) -> None:
        check_name(self.name)
        try:
            rules = self.rules
        except InputError as error:
            raise self.refuse(str(error)) from None
        if not is_storable(self.unit):
            raise self.refuse(f"unit must be text of at most {MAX_NAME_LENGTH} characters")
        for key, value in rules.checked().items():
            object.__setattr__(self, key, value)

    @property
    def rules(self) -> Kind:
        """What the kind says about this column.

        Example:
            >>> Column("age", "integer").rules.lacks
            ('min', 'max')
        """
        return kind_of(self.kind)(self)

    @property
    def is_declared(self) -> bool:
        """Whether the domain is known: bounds, categories, or a kind that needs neither."""
        return not self.rules.lacks

    @property
    def is_whole(self) -> bool:
        """Whether cells are whole numbers, or whole seconds."""
        return self.rules.is_whole

    def within(self, low: float, high: float) -> "Column":
        """The same column with these bounds; spikes beyond them are left out.

        Example:
            >>> Column("gain", "integer", spikes=(0, 99)).within(0, 50).spikes
            (0.0,)
        """
        spikes = self.spikes and tuple(spike for spike in self.spikes if low <= spike <= high)
        return dataclasses.replace(self, min=low, max=high, spikes=spikes)

    def bins(self) -> FinestBins:
        """The finest bins of a declared column.

        Guarantee:
            They depend on the declaration alone.

        Example:
            >>> Column("sex", "categorical", categories=("F", "M")).bins().size
            2
            >>> Column("age", "integer", min=0, max=120, nullable=True).bins().size
            122
        """
        if not self.is_declared:
            raise InputError(
                f"nothing is declared about column {self.name!r}: declare its bounds or "
                "categories, or let a share of epsilon discover them"
            )
        bins = self.rules.bins()
        if bins.singles > MOST_LABELS:
            raise InputError(
                f"column {self.name!r} has {bins.singles} categories, of which noise would "
                f"leave little; group them into at most {MOST_LABELS}, or drop the column"
            )
        return bins


def read_cells(
    raw: Raw,
    column: Column,
    label: str,
    text: TextFormat = PLAIN,
    gaps: np.ndarray | None = None,
) -> np.ndarray:
    """One column as values of its kind; missing where that is declared.

    Args:
        raw: The cells.
        column: What they mean.
        label: How a message names the column.
        text: How cells of text are written.
        gaps: Numbers of rows whose cells could not be separated, which are missing.

    Guarantee:
        Each value depends on its own cell and on declarations alone.
    """
    rules = column.rules
    with explained(f"{label} has a type that is not accepted as {column.kind}; convert it"):
        parts = _sorted(raw, label)
        values, wrong = _merged(parts, len(raw), rules, text)
    if gaps is not None:
        values[gaps], wrong[gaps] = rules.nothing, FINE
    if text.makes_missing:
        values[wrong != FINE] = rules.nothing
    else:
        _refuse_wrong(wrong, rules, label, text)
    if column.nullable:
        return values
    what = "must be filled, got {cells} without a value (NaN)"
    _refuse(is_missing(values), label, what, _FILL)
    return rules.filled(values)


def _sorted(raw: Raw, label: str) -> list[Cells]:
    try:
        return sorted_cells(raw)
    except InputError:
        message = f"{label} has a type that tables may not have; convert it"
    raise InputError(message)


def _merged(parts: list[Cells], rows: int, rules: Kind, text: TextFormat) -> Reading:
    """The values of all parts, each in its place."""
    if len(parts) == 1 and parts[0].at is None:
        return _read(parts[0], rows, rules, text)
    values = np.full(rows, rules.nothing, dtype=rules.dtype)
    wrong = np.zeros(rows, dtype=np.uint8)
    for part in parts:
        places = np.arange(rows) if part.at is None else part.at
        values[places], wrong[places] = _read(part, len(places), rules, text)
    return values, wrong


def _read(part: Cells, rows: int, rules: Kind, text: TextFormat) -> Reading:
    reader = rules.readers.get(part.sort)
    if reader is None:
        values = np.full(rows, rules.nothing, dtype=rules.dtype)
        return values, np.where(_is_gap(part, rows), FINE, FORM).astype(np.uint8)
    values, wrong = reader(part.values, text)
    if part.wrong is not None:
        wrong = np.where(part.wrong, np.uint8(FORM), wrong)
    return values, wrong


def _is_gap(part: Cells, rows: int) -> np.ndarray:
    """Which cells of a sort that the kind does not know hold nothing at all."""
    if part.sort in (NUMBER, MOMENT):
        gaps: np.ndarray = is_missing(part.values)
        return gaps if part.wrong is None else gaps & ~part.wrong
    if part.sort == TRUTH:
        return to_numpy(part.values.is_null()).astype(bool)
    return np.zeros(rows, dtype=bool)


def _refuse_wrong(wrong: np.ndarray, rules: Kind, label: str, text: TextFormat) -> None:
    if not wrong.any():
        return
    what = f"must hold {rules.expected(text)}, got {{cells}} of another form"
    _refuse(wrong == FORM, label, what, _ADVICE)
    what = "must hold finite numbers, got {cells} that are infinite (inf)"
    _refuse(wrong == INFINITE, label, what, "correct them")
    what = f"is declared {rules.name}, got {{cells}} with a fraction"
    _refuse(wrong == FRACTION, label, what, 'round them or declare kind = "continuous"')


def _refuse(wrong: np.ndarray, label: str, what: str, cure: str) -> None:
    count = int(np.count_nonzero(wrong))
    if count:
        first = int(np.argmax(wrong)) + 1
        cells = counted(count, "cell")
        raise InputError(f"{label} {what.format(cells=cells)}, the first in row {first}; {cure}")

"""Neighbouring tables: public declarations, rows that fit them, and the same rows but for one.

A case is a number. The same number gives the same pair of tables, so that a failure is
named by it: ``make(17)`` builds the pair of case 17 again.
"""

import dataclasses
import datetime
from typing import Any

import numpy as np

from contracts import frames, text_files
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

#: Ways to hold a table. Text has most to go wrong, so it has half of the cases.
READERS = tuple(reader for typed in frames.BUILDERS for reader in (text_files.READER, typed))
#: Rows of a case: enough to lie before and after the one that differs, and to be a majority.
FEWEST_ROWS, MOST_ROWS = 2, 12
#: The share of cases where all cells may be missing, so that nothing is refused.
LENIENT = 0.85
#: The share of cases without a schema, with bounds alone.
WITH_BOUNDS = 0.1

LABELS = (
    ("0,5", "1,5", "none"),
    ("1", "2"),
    ("0", "1", "2"),
    ("5", "10"),
    ("0,5", "1,5", "2,5", "-"),
    ("F", "M"),
    ("Zürich", "Genève", "Bern"),
    ("männlich", "weiblich"),
    ("Málaga", "Cádiz", "0"),
    ("two\nlines", "one"),
    ("a b", "c;d", "e,f|g"),
    ('say "hi"', "'no'"),
    ("NA", "ok"),
    (" x", "y "),
    ("1.000", "2.000"),
    ("true", "false"),
    ("2020-01-01", "2020-01-02"),
    ("nan", "inf", "1e3"),
    ("01", "1"),
    ("=1+1", "-", "€5"),
)
#: How often cells of a column are missing: never, so that one gap is the first, to always.
GAPS = (0.0, 0.0, 0.0, 0.15, 0.5, 1.0)
#: The seconds of 2000-01-01 and 2030-12-31.
FIRST_DAY, LAST_DAY = 946_684_800, 1_924_905_600
NUMBERS = ("continuous", "integer")
SALT = 17


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two tables that differ in one row, and what is publicly said about both.

    Args:
        number: The case.
        reader: What holds the tables.
        change: How the row differs.
        row: Which row differs.
        schema: What is declared; None where bounds alone are.
        bounds: The bounds where no schema is declared; None if they are to be discovered.
        dialect: How a text file is written; None for typed tables.
        sources: Both tables.
    """

    number: int
    reader: str
    change: str
    row: int
    schema: Schema | None
    bounds: tuple[float, float] | None
    dialect: text_files.Dialect | None
    sources: tuple[Any, Any] = dataclasses.field(repr=False)

    @property
    def is_text(self) -> bool:
        """Whether the tables are text files."""
        return self.dialect is not None

    def __str__(self) -> str:
        return f"case {self.number} ({self.reader}, {self.change}, row {self.row})"


def make(number: int) -> Pair:
    """The pair of a case."""
    rng = np.random.default_rng([SALT, number])
    reader = READERS[number % len(READERS)]
    bare = bool(rng.random() < WITH_BOUNDS)
    lenient = not bare and bool(rng.random() < LENIENT)
    schema = declared(rng, reader, bare=bare, lenient=lenient)
    gaps = rng.choice(GAPS, len(schema.columns))
    # short tables more often, where one row decides more often what all have in common
    count = int(rng.integers(FEWEST_ROWS, MOST_ROWS + 1, 2).min())
    *rows, other = [row(rng, schema, gaps) for _ in range(count + 1)]
    at = int(rng.choice([0, len(rows) - 1, rng.integers(len(rows))]))
    if reader == text_files.READER:
        dialect = text_files.Dialect.plain() if bare else text_files.dialect(rng, schema, lenient)
        change, sources = text_files.pair(rng, schema, dialect, rows, at, other)
    else:
        dialect = None
        change, sources = frames.pair(rng, reader, schema, rows, at, other)
        schema = frames.lenient(schema) if lenient else schema
    if bare:
        bounds = (0.0, 1000.0) if rng.random() < 0.7 else None
        return Pair(number, reader, change, at, None, bounds, dialect, sources)
    schema = schema if dialect is None else dialect.declare(schema)
    return Pair(number, reader, change, at, schema, None, dialect, sources)


def declared(rng: np.random.Generator, reader: str, *, bare: bool, lenient: bool) -> Schema:
    """Columns of all kinds; numbers alone where bounds are to be enough."""
    kinds = frames.KINDS_OF_ARRAYS.get(reader, NUMBERS)
    if reader not in frames.KINDS_OF_ARRAYS and not bare and (lenient or rng.random() < 0.5):
        kinds = (*kinds, "categorical", "categorical", "boolean", "date")
    count = int(rng.integers(1, 6))
    columns = [_column(rng, f"x{i}", str(rng.choice(kinds)), lenient) for i in range(count)]
    return Schema(tuple(columns))


def _column(rng: np.random.Generator, name: str, kind: str, lenient: bool) -> Column:
    nullable = lenient
    if kind == "categorical":
        labels = LABELS[int(rng.integers(len(LABELS)))]
        other = str(rng.choice(labels)) if rng.random() < 0.3 else None
        return Column(name, kind, nullable=nullable, categories=labels, other=other)
    if kind == "boolean":
        return Column(name, kind, nullable=nullable)
    if kind == "date":
        unit = "day" if rng.random() < 0.5 else ""
        return Column(name, kind, min=FIRST_DAY, max=LAST_DAY, nullable=nullable, unit=unit)
    high = float(rng.choice([100, 5_000, 2_000_000]))
    low = float(rng.choice([0, -high]))
    spikes = (0.0, high) if rng.random() < 0.3 else None
    return Column(name, kind, min=low, max=high, nullable=nullable, spikes=spikes)


def row(rng: np.random.Generator, schema: Schema, gaps: np.ndarray) -> list[Any]:
    """A row that fits a schema, as plain Python values; some beyond bounds and categories.

    Args:
        rng: Where it comes from.
        schema: What is declared.
        gaps: How often the cells of each column are missing, where that is declared.
    """
    pairs = zip(schema.columns, gaps, strict=True)
    return [
        None if column.nullable and rng.random() < gap else _cell(rng, column)
        for column, gap in pairs
    ]


def _cell(rng: np.random.Generator, column: Column) -> Any:
    if column.kind == "categorical":
        labels = (*(column.categories or ()), *(("elsewhere",) if rng.random() < 0.1 else ()))
        return str(rng.choice(labels))
    if column.kind == "boolean":
        return bool(rng.random() < 0.5)
    if column.kind == "date":
        return _moment(rng, column)
    return _number(rng, column)


def _number(rng: np.random.Generator, column: Column) -> float | int:
    low, high = column.min or 0.0, column.max or 1.0
    if column.spikes and rng.random() < 0.3:
        value = float(rng.choice(column.spikes))
    else:
        value = float(rng.uniform(low, high) * rng.choice([1, 1, 1, 1.5]))
    if column.kind == "integer":
        return round(value)
    return float(rng.choice([value, round(value, 2), round(8 * value) / 8]))


def _moment(rng: np.random.Generator, column: Column) -> datetime.datetime | datetime.date:
    seconds = int(rng.integers(FIRST_DAY, LAST_DAY))
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return moment.date() if column.unit == "day" else moment

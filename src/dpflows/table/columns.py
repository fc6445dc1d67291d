"""Declarations about columns: what each one's cells are, and rules that every row keeps.

A message says how many cells are wrong and where the first one stands. It never
quotes a cell, and never passes on the text of a library, which might.

A rule compares a column with another one or with a value: ``start <= end``, ``age >= 18``.
With an arrow it asks only where something holds: ``pregnant = true -> sex = F``. Several
comparisons are joined by ``and``. Values between single quotes are labels, dates or
numbers, names between double quotes are columns; a bare word is a column if there is
one of that name.
"""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

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
    PLAIN,
    TRUTH,
    Cells,
    Raw,
    TextFormat,
    counted,
    explained,
    is_missing,
    sorted_cells,
    to_numpy,
)

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

    @functools.cached_property
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


def check_names(names: tuple[str, ...]) -> None:
    """Refuse names that a schema cannot have."""
    if unnamed := sum(not name for name in names):
        raise InputError(f"columns must have names, got {counted(unnamed, 'unnamed column')}; name")
    if repeated := len(names) - len(set(names)):
        raise InputError(f"names must differ, got {counted(repeated, 'repeated name')}; rename")


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


MAX_LENGTH = 2000
MAX_COMPARISONS = 16

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<arrow>->)|(?P<sign><=|>=|!=|==|<|>|=)"""
    r"""|'(?P<value>(?:[^']|'')*)'|"(?P<name>(?:[^"]|"")*)"|(?P<word>(?:(?!->)[^\s<>=!'"])+))"""
)
_FORM = "must read like: start <= end, or: pregnant = true -> sex = F"


@runtime_checkable
class Declared(Protocol):
    """What knows the columns: a schema."""

    def has_column(self, name: str) -> bool:
        """Whether there is a column of that name."""

    def column(self, name: str) -> Column:
        """The column of that name."""


class Token(NamedTuple):
    """A piece of a rule: its sort (arrow, sign, value, name or word) and its text."""

    sort: str
    text: str


class Comparison(NamedTuple):
    """A column, how it is compared, and with what."""

    left: Token
    sign: str
    right: Token


@final
@dataclass(frozen=True)
class Constraint:
    """A rule that every row keeps.

    Args:
        text: The rule.

    Guarantee:
        Messages name columns of the schema and quote no value.

    Example:
        >>> from dpflows.table.schema import Schema
        >>> schema = Schema.from_bounds([0, 0], 9, names=["start", "end"])
        >>> rows = {"start": np.array([1.0, 5.0]), "end": np.array([2.0, 4.0])}
        >>> Constraint("start <= end").holds(rows, schema).tolist()
        [True, False]
    """

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.strip())
        if not self.text or len(self.text) > MAX_LENGTH:
            raise InputError(f"constraint must be text of 1 to {MAX_LENGTH} characters")
        _ = self._parts

    def check(self, schema: Declared) -> None:
        """Refuse a rule that names no column, or a value that its column cannot hold."""
        for comparison in (*self._parts[0], *self._parts[1]):
            _right(comparison, _checked_left(comparison, schema), schema)

    def columns(self, schema: Declared) -> frozenset[str]:
        """The names of the columns that the rule looks at.

        Example:
            >>> from dpflows.table.schema import Schema
            >>> sorted(Constraint("a < 5").columns(Schema.from_bounds([0, 0], 9, ["a", "b"])))
            ['a']
        """
        comparisons = (*self._parts[0], *self._parts[1])
        rights = (c.right.text for c in comparisons if _is_column(c.right, schema))
        return frozenset(c.left.text for c in comparisons) | frozenset(rights)

    def holds(self, columns: Mapping[str, np.ndarray], schema: Declared) -> np.ndarray:
        """Which rows keep the rule; a comparison with a missing cell breaks none.

        Args:
            columns: Cells by column, as in ``Table.columns``.
            schema: What the columns mean.
        """
        conditions, demands = self._parts
        broken = ~functools.reduce(np.logical_and, [_is(c, columns, schema) for c in demands])
        for condition in conditions:
            broken &= _is(condition, columns, schema, missing=False)
        return ~broken

    @functools.cached_property
    def _parts(self) -> tuple[tuple[Comparison, ...], tuple[Comparison, ...]]:
        """What must hold for the rule to ask something, and what it then asks."""
        sides: list[list[Token]] = [[]]
        for token in _tokens(self.text):
            if token.sort == "arrow":
                sides.append([])
            else:
                sides[-1].append(token)
        if len(sides) > 2 or sum(map(len, sides)) > 4 * MAX_COMPARISONS:
            raise InputError(
                f"constraint must have at most one arrow and {MAX_COMPARISONS} comparisons"
            )
        *before, after = (_comparisons(side) for side in sides)
        return (before[0] if before else ()), after


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise InputError(f"constraint {_FORM}")
        yield _token(found.lastgroup, found[found.lastgroup])
        at = found.end()


def _token(sort: str, text: str) -> Token:
    quotes = {"value": "'", "name": '"'}
    if sort in quotes:
        return Token(sort, text.replace(quotes[sort] * 2, quotes[sort]))
    return Token(sort, "=" if text == "==" else text)


def _comparisons(tokens: list[Token]) -> tuple[Comparison, ...]:
    if len(tokens) % 4 != 3 or any(joint != Token("word", "and") for joint in tokens[3::4]):
        raise InputError(f"constraint {_FORM}")
    triples = [tokens[i : i + 3] for i in range(0, len(tokens), 4)]
    return tuple(_comparison(*triple) for triple in triples)


def _comparison(left: Token, sign: Token, right: Token) -> Comparison:
    is_formed = left.sort in ("word", "name") and sign.sort == "sign" and right.sort != "sign"
    if not is_formed:
        raise InputError(f"constraint {_FORM}")
    return Comparison(left, sign.text, right)


def _checked_left(comparison: Comparison, schema: Declared) -> Column:
    name, sign = comparison.left.text, comparison.sign
    if not schema.has_column(name):
        raise InputError(f"what stands before {sign!r} must be a column of the schema")
    column = schema.column(name)
    if sign not in ("=", "!=") and not column.rules.has_order:
        raise InputError(f"column {name!r} is {column.kind}, which has no order; use = or !=")
    return column


def _is_column(operand: Token, schema: Declared) -> bool:
    return operand.sort != "value" and schema.has_column(operand.text)


def _right(comparison: Comparison, column: Column, schema: Declared) -> object:
    """The value that a column is compared with, or the column, checked."""
    operand = comparison.right
    if not _is_column(operand, schema):
        if operand.sort == "name":
            raise InputError(f"column {column.name!r} is compared with no column of the schema")
        return _value(operand.text, column)
    other = schema.column(operand.text)
    if other.rules.compared_as != column.rules.compared_as:
        raise InputError(
            f"columns {column.name!r} and {other.name!r} are {column.kind} and {other.kind}, "
            "which cannot be compared"
        )
    return other


def _value(text: str, column: Column) -> object:
    """What a word means for a column."""
    value = column.rules.operand(text)
    if value is None:
        expected = column.rules.operand_form
        raise InputError(f"column {column.name!r} must be compared with {expected}")
    return value


def _is(
    comparison: Comparison,
    columns: Mapping[str, np.ndarray],
    schema: Declared,
    *,
    missing: bool = True,
) -> np.ndarray:
    """Where a comparison holds; ``missing`` is the answer for missing cells."""
    column = _checked_left(comparison, schema)
    left, right = columns[column.name], _right(comparison, column, schema)
    gaps = is_missing(left)
    if isinstance(right, Column):
        right = columns[right.name]
        gaps = gaps | is_missing(right)
    answers = _OPERATORS[comparison.sign](left, right).astype(bool)
    return np.where(gaps, missing, answers)

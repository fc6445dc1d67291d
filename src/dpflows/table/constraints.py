"""Rules that every row keeps, declared as short sentences.

A rule compares a column with another one or with a value: ``start <= end``, ``age >= 18``.
With an arrow it asks only where something holds: ``pregnant = true -> sex = F``. Several
comparisons are joined by ``and``. Values between single quotes are labels, dates or
numbers, names between double quotes are columns; a bare word is a column if there is
one of that name.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from dpflows.errors import InputError
from dpflows.table.columns import Column
from dpflows.table.raw import is_missing

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

"""Text that a spreadsheet would run as a formula when it opens a CSV file.

A cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break is a formula to most
spreadsheets, and a formula can fetch addresses or start programs. Labels come from the
schema or from rows that somebody contributed, so they are not always harmless.
"""

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from dpflows.table.schema import Schema

#: The last four are the wide forms, which some languages' spreadsheets read alike.
FORMULA = r"^(?:\s*[=+\-@\uFF1D\uFF0B\uFF0D\uFF20]|[\t\r\n])"
#: A negative number is no formula.
NUMBER = r"^[+\-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+\-]?[0-9]+)?$"

_MARK = "'"


def begins_formula(text: str) -> bool:
    """Whether a spreadsheet would take the text for a formula.

    Example:
        >>> begins_formula("=1+1"), begins_formula("-1.5"), begins_formula("a=b")
        (True, False, False)
    """
    return bool(re.search(FORMULA, text)) and not re.search(NUMBER, text)


def escaped(rows: pa.Table) -> pa.Table:
    """The table with a quote before every text, and every name, that begins a formula.

    Example:
        >>> rows = pa.table({"=id": ["=1+1", "plain", "-3", None], "dose": [-1.0, 2, 3, 4]})
        >>> escaped(rows).to_pydict()["'=id"]
        ["'=1+1", 'plain', '-3', None]
    """
    columns = [_escaped(column) for column in rows.columns]
    names = [_MARK + name if begins_formula(name) else name for name in rows.column_names]
    return pa.table(columns, names=names)


def _escaped(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    is_number = pc.match_substring_regex(column, NUMBER)
    is_formula = pc.and_not(pc.match_substring_regex(column, _WIDE_IN_RE2), is_number)
    mark, nothing = pa.scalar(_MARK, column.type), pa.scalar("", column.type)
    marked = pc.binary_join_element_wise(mark, column, nothing)
    return pc.if_else(is_formula, marked, column)


# Arrow's expressions write characters by number in another way.
_WIDE_IN_RE2 = re.sub(r"\\u([0-9A-F]{4})", r"\\x{\1}", FORMULA)


def columns_with_formulas(schema: "Schema") -> list[str]:
    """The columns whose name, or one of whose labels, begins a formula; all are public.

    Example:
        >>> from dpflows.table.schema import Schema
        >>> columns_with_formulas(Schema.from_bounds([0], [1]))
        []
    """
    return [
        column.name
        for column in schema.columns
        if any(begins_formula(str(text)) for text in (column.name, *(column.categories or ())))
    ]

"""What a table means, from public declarations alone; and proposals for such declarations.

Bounds and categories in a schema are public knowledge. A schema whose bounds or
categories were read from the rows says so, and what is fitted with it is stamped.

A proposal is inferred from the rows, so that one row can change it. It is meant for somebody who
checks it; nothing is fitted with it unseen.
"""

import codecs
import dataclasses
import datetime
import functools
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpflows.errors import InputError, unchained
from dpflows.table import documents
from dpflows.table.columns import Column, Constraint, read_cells
from dpflows.table.documents import MAX_CONSTRAINTS
from dpflows.table.kinds import KINDS
from dpflows.table.kinds.base import check_name
from dpflows.table.kinds.numbers import numbers_in_text
from dpflows.table.raw import (
    AS_MISSING,
    MOMENT,
    NUMBER,
    PLAIN,
    TRUTH,
    Cells,
    Raw,
    Source,
    TextFormat,
    check_width,
    counted,
    default_names,
    is_missing,
    sorted_cells,
)
from dpflows.table.sources import (
    TEXT_ENDINGS,
    check_file,
    decoded,
    ending_of,
    file_errors,
    grammar,
    load,
    open_source,
)

#: A comma comes last: beside another delimiter it is more likely a decimal comma.
_BY_LIKELIHOOD = ";\t|,"


@unchained
def propose(frame: Any, *, read_values: bool = False) -> tuple[tuple[Column, ...], TextFormat]:
    """What ``Schema.from_frame`` documents: the columns, and how text seems to be written."""
    source, text = _opened(frame)
    check_names(source.names)
    pairs = list(zip(source.names, source.cells, strict=True))
    columns = tuple(_proposed(name, cells, source.is_text, text) for name, cells in pairs)
    if read_values:
        columns = tuple(
            _with_values(cells, column, text)
            for cells, column in zip(source.cells, columns, strict=True)
        )
    return columns, text


def _opened(frame: Any) -> tuple[Source, TextFormat]:
    """The table, and how its text seems to be written."""
    is_path = isinstance(frame, str | os.PathLike)
    if not is_path or ending_of(Path(frame)) not in TEXT_ENDINGS:
        return open_source(frame, None, None, TextFormat()), TextFormat()
    path = Path(frame)
    with file_errors(path):
        check_file(path)
        content = load(path, TextFormat(unreadable=AS_MISSING))
    text = _guessed(content, path)
    source = open_source(path, None, None, text)
    if b'"' in content or text.delimiter is not None:
        # elsewhere no cell can hold a comma
        text = dataclasses.replace(text, decimal=_decimal(source.cells, text))
    return source, text


def _guessed(content: bytes, path: Path) -> TextFormat:
    """The encoding, the delimiter, and whether cells hold line ends, as the file looks."""
    text = TextFormat(encoding=_encoding(content))
    content = decoded(content, text)[0].lstrip(b" \r\n")
    first = content.partition(b"\n")[0].decode("utf-8", errors="replace")
    bare = re.sub(r'"[^"]*"', "", first)
    delimiter = max(_BY_LIKELIHOOD, key=bare.count) if bare else ","
    if delimiter != text.delimiter_of(path):
        text = dataclasses.replace(text, delimiter=delimiter)
    return dataclasses.replace(text, multiline=_is_multiline(content, text, delimiter))


def _encoding(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return next(name for name in ("utf-8", "cp1252", "latin-1") if _decodes(content, name))


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_multiline(content: bytes, text: TextFormat, delimiter: str) -> bool:
    """Whether quotes are balanced over the file, but not on every line."""
    if b'"' not in content:
        return False
    lines, whole = (
        re.compile(b"(?:" + grammar(dataclasses.replace(text, multiline=m), delimiter) + b")*+")
        for m in (False, True)
    )
    content = content.rstrip(b"\r\n") + b"\n"
    return not lines.fullmatch(content) and bool(whole.fullmatch(content))


def _decimal(columns: list[Raw], text: TextFormat) -> str:
    """A comma where numbers are written with commas and none with a point."""
    comma = dataclasses.replace(text, decimal=",")
    with_points, with_commas = False, False
    for cells in columns:
        if not _are_numbers(cells, text):
            with_commas |= _are_numbers(cells, comma)
        elif pc.any(pc.match_substring(cells, ".")).as_py():
            with_points = True
    return "," if with_commas and not with_points else text.decimal


def _are_numbers(cells: Raw, text: TextFormat) -> bool:
    return not numbers_in_text(cells, text)[1].any()


def check_names(names: tuple[str, ...]) -> None:
    """Refuse names that a schema cannot have."""
    if unnamed := sum(not name for name in names):
        raise InputError(f"columns must have names, got {counted(unnamed, 'unnamed column')}; name")
    if repeated := len(names) - len(set(names)):
        raise InputError(f"names must differ, got {counted(repeated, 'repeated name')}; rename")


def _proposed(name: str, cells: Raw, is_text: bool, text: TextFormat) -> Column:
    """The column as the first kind declares it that all cells fit, narrow kinds first."""
    dtype = None if is_text else _type_of(cells)
    for kind in sorted(KINDS.values(), key=lambda one: one.precedence):
        if dtype is None:
            found = kind.proposed_by_text(cells, text)
        else:
            found = kind.proposed_by_type(dtype)
        if found is not None:
            return Column(name, kind.name, **found)
    raise InputError(f"column {name!r} is of no kind that is known; convert it")


def _type_of(cells: Raw) -> pa.DataType:
    """The Arrow type that says what a column holds; that of text where cells differ."""
    if isinstance(cells, pa.ChunkedArray):
        return cells.type
    if cells.dtype != object:
        moments = pa.date32() if cells.dtype == "datetime64[D]" else pa.timestamp("us")
        return {"M": moments}.get(cells.dtype.kind) or _ARROW_TYPES.get(
            cells.dtype.kind, pa.string()
        )
    sorts = {part.sort for part in sorted_cells(cells) if not _is_empty(part)}
    if len(sorts) > 1:
        return pa.string()
    have_times = any(isinstance(value, datetime.datetime) for value in cells)
    moments = pa.timestamp("us") if have_times else pa.date32()
    types = {NUMBER: pa.float64(), TRUTH: pa.bool_(), MOMENT: moments}
    return types.get(sorts.pop(), pa.string()) if sorts else pa.null()


#: What the types of numpy, by their letters, are for Arrow; the rest is text.
_ARROW_TYPES = {"f": pa.float64(), "i": pa.int64(), "u": pa.int64(), "b": pa.bool_()}


def _is_empty(part: Cells) -> bool:
    return part.sort == NUMBER and bool(np.isnan(part.values).all())


def _with_values(cells: Raw, column: Column, text: TextFormat) -> Column:
    nullable = dataclasses.replace(column, nullable=True)
    values = read_cells(cells, nullable, "a column", text)
    missing = is_missing(values)
    present = values[~missing]
    domain = column.rules.domain(present) if len(present) else {}
    try:
        return dataclasses.replace(column, nullable=bool(missing.any()), **domain)
    except InputError:
        # constant or too wide: left undeclared, which fails closed later
        return dataclasses.replace(column, nullable=bool(missing.any()))


#: The most names that one message lists.
MAX_NAMES_SHOWN = 8


@final
@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order.

    Args:
        columns: The columns; their names differ.
        values_read: Whether bounds or categories were read from the rows. What is
            fitted with such a schema is stamped, since its bounds are not paid for.
        names_read: Whether the names were taken from a table that came without a
            schema. Messages then count columns instead of naming them, because the
            first line of a file without a header is a row.
        target: The column that the others are to predict, if there is one.
        constraints: Rules that every row keeps.
        text: How cells of text are written, in files and elsewhere.
        is_proposed: Whether kinds, and what ``text`` says, were inferred from a table and nobody
            has looked at them yet.

    Example:
        >>> age = Column("age", "integer", min=0, max=120)
        >>> schema = Schema((age, Column("dose", "continuous")))
        >>> schema.undeclared()
        ('dose',)
        >>> schema.with_bounds("dose", 0, 5).highs().tolist()
        [120.0, 5.0]
    """

    columns: tuple[Column, ...]
    values_read: bool = False
    names_read: bool = field(default=False, compare=False, repr=False)
    target: str | None = None
    constraints: tuple[Constraint, ...] = ()
    text: TextFormat = field(default=PLAIN, repr=False)
    is_proposed: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise InputError("schema must declare at least one column")
        check_width(len(self.columns))
        if not all(isinstance(column, Column) for column in self.columns):
            raise InputError("schema must be made of Column objects")
        if len(set(self.names)) != len(self.columns):
            raise InputError("schema must not declare two columns of one name")
        if self.target is not None and not self.has_column(self.target):
            raise InputError("target must be a column of the schema")
        object.__setattr__(self, "constraints", tuple(self.constraints))
        self._check_constraints()
        self._check_text()

    def _check_text(self) -> None:
        if not isinstance(self.text, TextFormat):
            raise InputError("text must be a TextFormat")
        filled = [column.name for column in self.columns if not column.nullable]
        if filled and self.text.makes_missing:
            raise InputError(
                'unreadable = "missing" makes missing cells, which the schema does not allow in '
                f"column {listed(filled)}; declare nullable = true there, or "
                'unreadable = "refuse"'
            )

    def _check_constraints(self) -> None:
        if len(self.constraints) > MAX_CONSTRAINTS:
            raise InputError(f"constraints must be at most {MAX_CONSTRAINTS} rules")
        for number, constraint in enumerate(self.constraints, 1):
            try:
                constraint.check(self)
            except InputError as error:
                raise InputError(f"constraint {number}: {error}") from None

    @classmethod
    def from_bounds(cls, low: Any, high: Any, names: Any = None) -> "Schema":
        """Continuous columns inside ``low`` and ``high``, numbers or one per column.

        Example:
            >>> Schema.from_bounds([0, 0], 1).names
            ('x0', 'x1')
        """
        refusal = "bounds must be (low, high), numbers or one per column, as many as names"
        try:
            low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
            names = names if names is None else tuple(names)
            shape = np.broadcast_shapes(low.shape, high.shape) if names is None else (len(names),)
            low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
        except (TypeError, ValueError):
            raise InputError(refusal) from None
        if len(shape) != 1:
            raise InputError("bounds must be one per column; for plain numbers, pass names too")
        check_width(shape[0])
        names = default_names(shape[0]) if names is None else names
        for name in names:
            check_name(name)
        pairs = zip(names, low.tolist(), high.tolist(), strict=True)
        return cls(tuple(Column(name, "continuous", a, b) for name, a, b in pairs))

    @classmethod
    def from_frame(cls, frame: Any, *, read_values: bool = False) -> "Schema":
        """Propose a schema for a table from the types of its columns.

        Args:
            frame: A table of any kind that ``read_table`` accepts.
            read_values: Consent to write bounds and categories read from the rows into
                the schema, and to allow missing cells where there are some.

        Guarantee:
            A proposal is not public until somebody has looked at it: the types of a frame,
            and the kinds, delimiter, decimal mark and encoding of a text file, are inferred from
            the rows, and one row can change them. No value enters it without consent; with
            consent, ``values_read`` says that the schema is not public.

        Example:
            >>> Schema.from_frame(np.array([[1.5, 2.5]])).undeclared()
            ('x0', 'x1')
        """
        columns, text = propose(frame, read_values=read_values)
        return cls(columns, values_read=read_values, text=text, is_proposed=True)

    @classmethod
    @unchained
    def from_dict(cls, description: Any) -> "Schema":
        """Read back ``to_dict``, or a parsed schema file; the content may be hostile."""
        return cls(**documents.parse(description))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Schema":
        """Read a schema from a ``.toml`` or ``.json`` file.

        Guarantee:
            Messages name columns and keys, and quote no value.
        """
        return cls.from_dict(documents.read(path))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.toml`` or ``.json`` file, whole or not at all.

        Example:
            >>> import tempfile
            >>> path = f"{tempfile.mkdtemp()}/schema.toml"
            >>> schema = Schema.from_bounds([0], [1], names=["dose"])
            >>> schema.write(path)
            >>> Schema.read(path) == schema
            True
        """
        documents.write({".toml": self.to_toml, ".json": self.to_json}, path)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain JSON; columns are a list, so that their order is kept.

        Example:
            >>> Schema.from_bounds([0], [1]).to_dict()["columns"]
            [{'name': 'x0', 'kind': 'continuous', 'min': 0.0, 'max': 1.0}]
        """
        parts = {
            "target": self.target,
            "constraints": [constraint.text for constraint in self.constraints],
            "text": self.text.to_dict(),
        }
        columns = [documents.describe(column) for column in self.columns]
        description = {"columns": columns, "values_read": self.values_read}
        return description | {key: value for key, value in parts.items() if value}

    def to_json(self) -> str:
        """The schema as the text of a JSON file."""
        return documents.to_json(self.to_dict())

    def to_toml(self) -> str:
        """The schema as the text of a TOML file, with a gap for what is undeclared."""
        gaps = {column.name: column.rules.lacks for column in self.columns}
        return documents.to_toml(self.to_dict(), gaps, is_proposed=self.is_proposed)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names in order."""
        return tuple(column.name for column in self.columns)

    def has_column(self, name: str) -> bool:
        """Whether there is a column of that name."""
        return name in self._by_name

    def column(self, name: str) -> Column:
        """The column of that name."""
        if not self.has_column(name):
            raise InputError(f"schema has no such column; it has {listed(self.names)}")
        return self._by_name[name]

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @functools.cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def label(self, name: str) -> str:
        """How a message names a column: by name, or by number if names are private."""
        if self.names_read:
            return f"column number {self._places[name] + 1}"
        return f"column {name!r}"

    def lows(self) -> np.ndarray:
        """The lowest value per column; not a number where none is declared."""
        return np.array([math.nan if c.min is None else c.min for c in self.columns])

    def highs(self) -> np.ndarray:
        """The highest value per column; not a number where none is declared."""
        return np.array([math.nan if c.max is None else c.max for c in self.columns])

    def undeclared(self) -> tuple[str, ...]:
        """Names of the columns that lack bounds or categories."""
        return tuple(column.name for column in self.columns if not column.is_declared)

    @property
    def is_mixed(self) -> bool:
        """Whether rows are more than plain numbers between bounds.

        A target makes them so if it has classes; a measured one is a number like
        others.

        Example:
            >>> Schema((Column("sex", "categorical"),)).is_mixed
            True
        """
        has_classes = self.target is not None and self.column(self.target).rules.tells_classes
        declared = has_classes or bool(self.constraints)
        return declared or any(_is_mixed(column) for column in self.columns)

    def require_numbers(self) -> None:
        """Refuse columns that are not filled with numbers; decided by declarations alone."""
        for column in self.columns:
            if not column.rules.is_number:
                raise InputError(
                    f"{self.label(column.name)} is {column.kind}: not yet supported by this "
                    "estimator; use DPDensity with a schema, which models it, drop it, or declare "
                    "it continuous or integer"
                )
            if column.nullable:
                raise InputError(
                    f"{self.label(column.name)} is nullable: not yet supported by this "
                    "estimator; use DPDensity with a schema, which models missing cells, or fill "
                    "them and declare nullable = false, or drop it"
                )

    def require_numeric(self) -> None:
        """Refuse what estimators of plain numbers cannot keep.

        Spikes and a target are hints that such an estimator may leave aside; constraints
        are promises.
        """
        self.require_numbers()
        if self.constraints:
            raise InputError(
                "constraints are not yet supported by this estimator; use DPDensity, which keeps "
                "them, or take them out of the schema"
            )

    def with_bounds(self, name: str, low: float, high: float) -> "Schema":
        """The same schema with one column's bounds declared."""
        return self.with_columns([self.column(name).within(low, high)])

    def with_columns(self, described: Iterable[Column]) -> "Schema":
        """The same schema with some columns described anew."""
        anew = {column.name: column for column in described}
        columns = tuple(anew.get(column.name, column) for column in self.columns)
        return dataclasses.replace(self, columns=columns)


def _is_mixed(column: Column) -> bool:
    return not column.rules.is_number or column.nullable or bool(column.spikes)


def listed(names: tuple[str, ...] | list[str]) -> str:
    """Names for a message: quoted, and cut off after a few."""
    shown = ", ".join(repr(name) for name in names[:MAX_NAMES_SHOWN])
    more = len(names) - MAX_NAMES_SHOWN
    return shown if more <= 0 else f"{shown} and {more} more"

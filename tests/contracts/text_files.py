"""Text files in declared dialects, and all that one line of them may turn into."""

import codecs
import dataclasses
import datetime
import gzip
from collections.abc import Callable
from typing import Any

import numpy as np

from dpflows.table.columns import Column
from dpflows.table.schema import Schema

READER = "text"
MISSING = ("", "NA", "n/a")
TRUTHS = {True: ("true", "1", "yes"), False: ("false", "0", "no")}
ENCODINGS = ("utf-8", "utf-8", "utf-8", "latin-1", "cp1252", "utf-16", "utf-16", "utf-16-le")
#: Declared ways to write days, and moments; none for those of ISO 8601.
DATE_FORMATS = ((), (), ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y"), ("%Y/%m/%d %H:%M:%S", "%d-%b-%Y"))
#: What two bytes stand for in files of UTF-16: the byte order mark says which comes first.
UTF16 = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}

Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Stored:
    """A file: its name and its content."""

    name: str
    content: bytes = dataclasses.field(repr=False)
    lines: tuple[bytes, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    What a reader must be told is declared in the schema; line ends, a mark at the start of
    the file and compression are told from the file's name or are the same for all.
    """

    delimiter: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    quote: str = '"'
    header: bool = True
    unreadable: str = "refuse"
    ending: str = "\n"
    has_mark: bool = False
    is_closed: bool = True
    suffix: str = ".csv"
    codec: str = "utf-8"
    date_formats: tuple[str, ...] = ()
    multiline: bool = False

    @classmethod
    def plain(cls) -> "Dialect":
        """What is read without a declaration."""
        return cls()

    def declare(self, schema: Schema) -> Schema:
        """The schema with this dialect declared in it."""
        from dpflows.table.raw import TextFormat

        keys = ("delimiter", "decimal", "thousands", "encoding", "quote", "header", "unreadable")
        keys = (*keys, "date_formats", "multiline")
        told = {key: getattr(self, key) for key in keys}
        return dataclasses.replace(schema, text=TextFormat(missing=MISSING, **told))

    def encode(self, text: str) -> bytes:
        """Text as bytes; what cannot be written becomes a question mark."""
        return text.encode(self.codec, errors="replace")

    def file(self, names: tuple[str, ...], lines: list[bytes]) -> Stored:
        """Lines as a file, with the header that is declared."""
        end = self.encode(self.ending)
        head = [self.encode(self.delimiter.join(names))] if self.header else []
        content = end.join([*head, *lines]) + (end if self.is_closed else b"")
        if self.has_mark:
            content = UTF16.get(self.codec, codecs.BOM_UTF8) + content
        if self.suffix.endswith(".gz"):
            content = gzip.compress(content, compresslevel=1, mtime=0)
        return Stored(f"rows{self.suffix}", content, tuple(lines))


def dialect(rng: Rng, schema: Schema, lenient: bool) -> Dialect:
    """A dialect in which the labels of a schema can be written."""
    while True:
        found = _dialect(rng, lenient)
        if all(_fits(found, label) for c in schema.columns for label in c.categories or ()):
            return found


def _dialect(rng: Rng, lenient: bool) -> Dialect:
    delimiter = str(rng.choice([",", ";", "\t", "|"]))
    decimal = "." if delimiter == "," else str(rng.choice([".", ","]))
    marks = [mark for mark in (",", ".", "'", " ") if mark not in (delimiter, decimal)]
    encoding = str(rng.choice(ENCODINGS))
    has_mark = bool(rng.random() < {"utf-16": 0.7, "utf-8": 0.2}.get(encoding, 0))
    codec = "utf-16-le" if encoding == "utf-16" else encoding
    codec = "utf-16-be" if codec in UTF16 and has_mark and rng.random() < 0.5 else codec
    suffixes = [".csv", ".txt", *([".tsv"] if delimiter == "\t" else [])]
    quote = str(rng.choice(['"', '"', '"', "'", ""]))
    return Dialect(
        delimiter,
        decimal,
        str(rng.choice(marks)) if rng.random() < 0.3 else "",
        encoding,
        quote=quote,
        header=bool(rng.random() < 0.6),
        unreadable="missing" if lenient else "refuse",
        ending=str(rng.choice(["\n", "\n", "\r\n"])),
        has_mark=has_mark,
        is_closed=bool(rng.random() < 0.8),
        suffix=str(rng.choice(suffixes)) + (".gz" if rng.random() < 0.15 else ""),
        codec=codec,
        date_formats=DATE_FORMATS[int(rng.integers(len(DATE_FORMATS)))],
        multiline=bool(quote) and bool(rng.random() < 0.1),
    )


def _fits(one: Dialect, label: str) -> bool:
    if one.encode(label).decode(one.codec) != label or (one.thousands == "'" == one.quote):
        return False
    if "\n" in label and not one.multiline:
        return False
    return bool(one.quote) or not any(mark in label for mark in (one.delimiter, '"', "'"))


def pair(
    rng: Rng, schema: Schema, one: Dialect, rows: list[list[Any]], at: int, other: list[Any]
) -> tuple[str, tuple[Stored, Stored]]:
    """Two files, the second with another line in the place of one row."""
    lines = [_line(rng, schema, one, row) for row in rows]
    if one.unreadable == "missing" and not one.multiline:
        lines = [_odd(rng, schema, one, line) for line in lines]
    change, changed = _changed(rng, schema, one, lines[at], other)
    if not one.is_closed and at == len(lines) - 1 and b"" in (changed, lines[at]):
        # a last line that is empty and not ended is no line
        one = dataclasses.replace(one, is_closed=True)
    second = [*lines[:at], changed, *lines[at + 1 :]]
    return change, (one.file(schema.names, lines), one.file(schema.names, second))


def _changed(
    rng: Rng, schema: Schema, one: Dialect, line: bytes, other: list[Any]
) -> tuple[str, bytes]:
    if one.multiline:
        return "cells in quotes", _requoted(rng, schema, one, other)
    names = list(CHANGES if one.unreadable == "missing" else MILD)
    weights = np.array([3.0 if name in WEIGHTY else 1.0 for name in names])
    while True:
        change = str(rng.choice(names, p=weights / weights.sum()))
        start = line if rng.random() < 0.5 else _line(rng, schema, one, other)
        changed = without_ends(CHANGES[change](rng, schema, one, start), one.codec)
        if changed != line:
            return change, changed


def _requoted(rng: Rng, schema: Schema, one: Dialect, row: list[Any]) -> bytes:
    """A record with any cells, line ends among them, all of them in quotes as they should be.

    Where line ends inside quotes are declared, a record is what lies between balanced quotes.
    """
    cells = cells_of(rng, schema, one, row)
    texts = ("a\nb", "\n", "x\r\ny", 'say "', "it's", ",", ";\t|", "", "7", "7\n", "elsewhere")
    for place in np.flatnonzero(rng.random(len(cells)) < 0.6).tolist():
        cells[place] = str(rng.choice(texts))
    return one.encode(one.delimiter.join(_in_quotes(one, cell) for cell in cells))


def _odd(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    """Most lines as they are; a few that both tables share cannot be read either."""
    if rng.random() > 0.06:
        return line
    change = str(rng.choice(list(CHANGES)))
    return without_ends(CHANGES[change](rng, schema, one, line), one.codec)


def without_ends(line: bytes, codec: str) -> bytes:
    """A line without what would end it."""
    if codec not in UTF16:
        return line.replace(b"\n", b"").replace(b"\r", b"")
    ends = {end.encode(codec) for end in "\r\n"}
    whole = line[: len(line) // 2 * 2]
    pieces = (whole[i : i + 2] for i in range(0, len(whole), 2))
    return b"".join(piece for piece in pieces if piece not in ends)


def _line(rng: Rng, schema: Schema, one: Dialect, row: list[Any]) -> bytes:
    return one.encode(_joined(one, cells_of(rng, schema, one, row), rng))


def cells_of(rng: Rng, schema: Schema, one: Dialect, row: list[Any]) -> list[str]:
    """The cells of a row as text, not yet quoted."""
    pairs = zip(row, schema.columns, strict=True)
    return [_text(rng, one, value, column) for value, column in pairs]


def _joined(one: Dialect, cells: list[str], rng: Rng) -> str:
    return one.delimiter.join(_quoted(one, cell, rng) for cell in cells)


def _quoted(one: Dialect, cell: str, rng: Rng) -> str:
    needs = one.quote and any(mark in cell for mark in (one.delimiter, one.quote, "\n"))
    if needs or (one.quote and rng.random() < 0.1):
        return _in_quotes(one, cell)
    return cell


def _in_quotes(one: Dialect, cell: str) -> str:
    return one.quote + cell.replace(one.quote, 2 * one.quote) + one.quote


def _text(rng: Rng, one: Dialect, value: Any, column: Column) -> str:
    if value is None:
        words = [word for word in MISSING if word not in (column.categories or ())]
        return str(rng.choice(words))
    if isinstance(value, bool):
        return str(rng.choice(TRUTHS[value]))
    if isinstance(value, datetime.date):
        return _date(value, one)
    return value if isinstance(value, str) else _varied(rng, written(value, one), one)


def _varied(rng: Rng, number: str, one: Dialect) -> str:
    """Most numbers as programs write them, a few as people and other programs do."""
    if rng.random() > 0.1:
        return number
    ways = (f" {number} ", f"+{number}", f"{number}e0", f"0{number}", f"{number}{one.decimal}")
    drawn = "".join(rng.choice(list("0123456789.,eE+-xin_ '"), int(rng.integers(1, 7))))
    odd = (f"{one.decimal}5", "1E2", "1e-400", "-0", "Infinity", "\t7", "7\u00a0", "７", drawn)
    forms = (*ways, *odd) if one.unreadable == "missing" else ways[:2]
    return str(rng.choice([form for form in forms if one.quote or one.delimiter not in form]))


def _date(value: datetime.date, one: Dialect) -> str:
    if not one.date_formats:
        return value.isoformat()
    return value.strftime(one.date_formats[0 if isinstance(value, datetime.datetime) else 1])


def written(value: float | int, one: Dialect) -> str:
    """A number in a dialect."""
    text = repr(value)
    whole, point, rest = text.partition(".")
    if one.thousands and whole.lstrip("-").isdigit():
        whole = f"{int(whole):,}".replace(",", one.thousands) if whole != "-0" else whole
    return whole + (one.decimal if point else "") + rest


# What a line may turn into -----------------------------------------------------------


def _inserted(rng: Rng, line: bytes, what: bytes, step: int = 1) -> bytes:
    at = int(rng.integers(len(line) // step + 1)) * step
    return line[:at] + what + line[at:]


def _step(one: Dialect) -> int:
    return 2 if one.codec in UTF16 else 1


def _put(*texts: str) -> Callable[[Rng, Schema, Dialect, bytes], bytes]:
    """One of some texts, somewhere in the line."""

    def change(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
        text = str(rng.choice(texts)).replace("QUOTE", one.quote or '"')
        text = text.replace("DELIMITER", one.delimiter)
        return _inserted(rng, line, one.encode(text), _step(one))

    return change


def _cell(
    *texts: str, kinds: tuple[str, ...] = ()
) -> Callable[[Rng, Schema, Dialect, bytes], bytes]:
    """One of some texts in the place of one cell, or of all cells of some kinds."""

    def change(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
        cells = line.decode(one.codec, errors="replace").split(one.delimiter)
        places = [i for i, c in enumerate(schema.columns) if not kinds or c.kind in kinds]
        places = [i for i in places if i < len(cells)] or [0]
        if rng.random() < 0.7:
            places = [int(rng.choice(places))]
        for place in places:
            cells[place] = _quoted(one, str(rng.choice(texts)), rng)
        return one.encode(one.delimiter.join(cells))

    return change


def _random_bytes(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    return rng.bytes(int(rng.integers(41)))


def _one_byte(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    at = int(rng.integers(len(line) + 1))
    return line[:at] + rng.bytes(1) + line[at + int(rng.integers(2)) :]


def _foreign_bytes(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    """Bytes that the encoding does not know, or knows as something else."""
    known = [b"\xff", b"\xc3(", b"\xe2\x82", b"\xfc", b"\x81\x8d", b"\xed\xa0\x80", b"\xf8\x88"]
    if one.codec in UTF16:
        known = [b"\x00\xd8", b"\xd8\x00", b"\x00\xdc", b"\xff\xff"]
    return _inserted(rng, line, known[int(rng.integers(len(known)))], _step(one))


def _byte_order(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    marks = [*UTF16.values(), *([] if one.codec in UTF16 else [codecs.BOM_UTF8])]
    return marks[int(rng.integers(len(marks)))] + line


def _other_decimal(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    other = "." if one.decimal == "," else ","
    numbers = [f"12{other}5", f"0{other}5", f"1{other}000", f"1{other}234{other}567", "3.5", "3,5"]
    return _cell(*numbers, kinds=("continuous", "integer"))(rng, schema, one, line)


def _declared_label(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    labels = [label for c in schema.columns for label in c.categories or ()]
    return _cell(*(labels or ["7"]), kinds=("categorical",))(rng, schema, one, line)


def _other_delimiters(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    marks = [mark for mark in ",;\t|" if mark != one.delimiter]
    return one.encode(str(rng.choice(marks)).join(["7"] * int(rng.integers(2, 12))))


def _fewer_cells(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    return line.replace(one.encode(one.delimiter), b"", 1)


def _header(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    return one.encode(one.delimiter.join(schema.names))


def _no_names(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    return one.encode(one.delimiter.join(["7"] * len(schema.columns)))


def _empty(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    return b""


def _valid(rng: Rng, schema: Schema, one: Dialect, line: bytes) -> bytes:
    return line


CHANGES: dict[str, Callable[[Rng, Schema, Dialect, bytes], bytes]] = {
    "another row": _valid,
    "random bytes": _random_bytes,
    "one byte": _one_byte,
    "foreign bytes": _foreign_bytes,
    "byte order mark": _byte_order,
    "stray quote": _put("QUOTE"),
    "quoted delimiter": _put("QUOTEDELIMITERQUOTE", "DELIMITERQUOTE", "QUOTEDELIMITER"),
    "more cells": _put("DELIMITER", "DELIMITERDELIMITER"),
    "fewer cells": _fewer_cells,
    "other delimiters": _other_delimiters,
    "NUL": _put("\0"),
    "control characters": _put("\x01", "\x0b", "\x0c", "\x1a", "\x1c", "\x85", "\u2028", "\x7f"),
    "other decimal mark": _other_decimal,
    "blank line": _empty,
    "blanks": _cell(" ", "\t", "   ", "\u00a0"),
    "extreme number": _cell(
        *("9" * 400, "1e308", "-1e308", "1e999", "inf", "nan", "1e-400", "-0", "1e15"),
        kinds=("continuous", "integer"),
    ),
    "fraction": _cell("33.5", "33,5", "0.1", kinds=("integer",)),
    "other number": _cell("0x10", "1_000", "1 000", "١٢", "1e2", "+3", "012", ".5", "5.", "½"),
    "declared label": _declared_label,
    "undeclared label": _cell("elsewhere", "ÄÖÜ", "7", kinds=("categorical", "boolean")),
    "missing": _cell("", "NA", "n/a", "NULL", "None", "#N/A"),
    "odd date": _cell(
        *("0001-01-01", "9999-12-31", "10000-01-01", "1677-01-01", "2020-02-30", "31.12.2020"),
        *("2020-01-01T00:00:00Z", "2020-01-01 12:00:00.123456789", "2020-01-01T10:00+02:00"),
        kinds=("date",),
    ),
    "names": _header,
    "numbers": _no_names,
    "long": _cell("x" * 140_000, "7" * 140_000),
    "comment": _put("#", "\\", "--", "\\QUOTE"),
}
#: What readers told most from, more often than the others.
WEIGHTY = (
    *("foreign bytes", "byte order mark", "stray quote", "other delimiters", "blank line"),
    *("other decimal mark", "declared label"),
)
#: What can be read without an exception to the rules.
MILD = ("another row", "declared label", "fraction", "extreme number", "other number", "numbers")

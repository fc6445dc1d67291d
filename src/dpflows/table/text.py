"""Text files as cells of text, by what is declared about them.

Every cell is read as text; what it means is decided by the schema, elsewhere. Each record is
found without looking at the others: a record is a line, and a quote that is opened on a line is
closed there, or that line cannot be read; otherwise one stray quote would swallow the rows behind
it. Only where line ends inside quotes are declared are records found by the quotes of the whole
file, which must then be balanced.
"""

import bisect
import codecs
import csv
import functools
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dpflows.errors import InputError
from dpflows.table.raw import (
    MAX_BYTES,
    Names,
    Source,
    check_cells,
    check_width,
    counted,
    explained,
)
from dpflows.table.text_format import USUAL_DELIMITERS, TextFormat

#: The longest line that is taken for a row rather than for something else.
MAX_LINE_BYTES = 2**22

_UNREADABLE = 'correct them, or declare unreadable = "missing" in [text]'
#: What is wrong with a record, and what to do.
DEFECTS = {
    "encoding": (
        "with bytes that are not {encoding}",
        f"declare the encoding in [text] (--encoding), {_UNREADABLE}",
    ),
    "controls": ("with control characters", f"export the file as CSV, {_UNREADABLE}"),
    "quote": (
        "with a quote that is not closed where it should be",
        f"declare multiline = true in [text] if cells hold line ends, {_UNREADABLE}",
    ),
    "blank": ("without cells", f"remove blank lines, {_UNREADABLE}"),
    "long": (f"of more than {MAX_LINE_BYTES} bytes", f"is it a table? {_UNREADABLE}"),
}

_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_CONTROLS_IN_CELLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NO_CONTROLS = bytes(i for i in range(256) if not _CONTROLS_IN_CELLS.match(bytes([i])))
_BLANK = re.compile(rb"(?m)^\r?\n")

_CHUNK_BYTES = 2**24
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_EMPTY = "file is empty; expected a header line and rows"
_BYTE_ORDERS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
_HEADER = "first line of the file cannot be split into names; check its quotes and encoding"


@final
@dataclass(frozen=True, repr=False)
class Records:
    """A file in UTF-8 whose every record ends with a line end.

    Args:
        content: The file.
        start: Where rows begin.
        text: How it is written.
        delimiter: What stands between cells.
        defects: What is known to be wrong already, by where the record begins.
    """

    content: bytes
    start: int
    text: TextFormat
    delimiter: str
    defects: dict[int, str]

    @functools.cached_property
    def starts(self) -> list[int]:
        """Where the rows of a file with line ends inside quotes begin.

        Raises:
            InputError: Its quotes are not balanced.
        """
        record = re.compile(grammar(self.text, self.delimiter))
        starts, at = [], self.start
        while at < len(self.content):
            found = record.match(self.content, at)
            if found is None:
                raise InputError(
                    "file has a quote that is not closed or stands inside a cell, and multiline "
                    "= true needs quotes as in RFC 4180; correct the file"
                )
            starts.append(at)
            at = found.end()
        return starts

    def count(self) -> int:
        """How many rows there are."""
        if self.text.multiline:
            return len(self.starts)
        return self.content.count(b"\n", self.start)

    def start_of(self, at: int) -> int:
        """Where the record begins that holds a byte."""
        if self.text.multiline:
            return self.starts[bisect.bisect_right(self.starts, at) - 1]
        return self.content.rfind(b"\n", self.start, at) + 1 or self.start

    def end_of(self, at: int) -> int:
        """Behind the line end of the record that holds a byte."""
        if not self.text.multiline:
            return self.content.find(b"\n", at) + 1 or len(self.content)
        following = bisect.bisect_right(self.starts, at)
        return self.starts[following] if following < len(self.starts) else len(self.content)

    def numbers(self, starts: list[int]) -> list[int]:
        """The numbers of rows that begin at these places, which ascend; the first is 0."""
        if self.text.multiline:
            return [bisect.bisect_left(self.starts, at) for at in starts]
        numbers, number, before = [], 0, self.start
        for at in starts:
            number, before = number + self.content.count(b"\n", before, at), at
            numbers.append(number)
        return numbers

    def found_defects(self, columns: int) -> dict[int, str]:
        """What is wrong with records before their cells are counted, by where they begin."""
        found = dict(self.defects)
        checks = {"controls": self._controls(), "quote": self._quotes(), "long": self._long()}
        if columns > 1:
            checks["blank"] = self._blanks()
        for name, places in checks.items():
            for at in places:
                found.setdefault(self.start_of(at), name)
        return dict(sorted(found.items()))

    def _controls(self) -> Iterator[int]:
        # looking for them one by one takes ten times as long as knowing that there are none
        if not self.content.translate(None, _NO_CONTROLS) and not self._has_returns():
            return
        pattern, at = _CONTROLS_IN_CELLS if self.text.multiline else _CONTROLS, self.start
        while found := pattern.search(self.content, at):
            yield found.start()
            at = self.end_of(found.start())

    def _has_returns(self) -> bool:
        return self.content.count(b"\r") != self.content.count(b"\r\n")

    def _quotes(self) -> Iterator[int]:
        quote = self.text.quote.encode()
        if not quote or self.text.multiline or self.content.find(quote, self.start) < 0:
            return
        lines, at = re.compile(b"(?:" + grammar(self.text, self.delimiter) + b")*+"), self.start
        while (at := lines.match(self.content, at).end()) < len(self.content):  # type: ignore[union-attr]
            yield at
            at = self.end_of(at)

    def _blanks(self) -> Iterator[int]:
        if self.text.multiline:
            yield from (at for at in self.starts if _BLANK.match(self.content, at))
        elif self.content.startswith((b"\n", b"\r\n"), self.start) or self._has_blanks():
            yield from (found.start() for found in _BLANK.finditer(self.content, self.start))

    def _has_blanks(self) -> bool:
        return b"\n\n" in self.content or b"\n\r\n" in self.content

    def _long(self) -> Iterator[int]:
        at = self.start
        while len(self.content) - at > MAX_LINE_BYTES:
            last = self.content.rfind(b"\n", at, at + MAX_LINE_BYTES)
            if last < 0:
                yield at
                at = self.end_of(at)
            else:
                at = last + 1

    def refuse(self, defects: dict[int, str]) -> None:
        """Refuse a file that has defects; by their number and the first row, quoting nothing."""
        if not defects:
            return
        first, name = next(iter(defects.items()))
        count = sum(other == name for other in defects.values())
        what, cure = DEFECTS[name]
        what = what.format(encoding=self.text.encoding)
        row = self.numbers([first])[0] + 1
        raise InputError(
            f"file has {counted(count, 'line')} {what}, the first is row {row}; {cure}"
        )

    def without(self, starts: list[int], columns: int) -> bytes:
        """The rows, with empty cells in place of some of them."""
        pieces, before = [], self.start
        filler = self.delimiter.encode() * (columns - 1) + b"\n"
        for at in starts:
            pieces += [self.content[before:at], filler]
            before = self.end_of(at)
        return b"".join([*pieces, self.content[before:]])


def grammar(text: TextFormat, delimiter: str) -> bytes:
    r"""What a record with quotes looks like, as a pattern for bytes.

    Example:
        >>> record = re.compile(grammar(TextFormat(), ","))
        >>> [bool(record.fullmatch(line)) for line in (b'"a,b",c\n', b'"a,b\n')]
        [True, False]
    """
    quote, part = (re.escape(mark).encode() for mark in (text.quote, delimiter))
    if not quote:
        return b"[^\\n]*+\\n"
    inside = b"[^%b]" % quote if text.multiline else b"[^%b\\n]" % quote
    # beside line ends inside quotes, a quote inside a bare cell would shift all that follows
    rest = b"[^%b%b\\r\\n]" % (quote, part) if text.multiline else b"[^%b\\n]" % part
    quoted = b"%b(?:%b++|%b%b)*+%b" % (quote, inside, quote, quote, quote)
    cell = b"(?:%b|[^%b%b\\r\\n]%b*+|)" % (quoted, quote, part, rest)
    return b"%b(?:%b%b)*+\\r?\\n" % (cell, part, cell)


def read_text(path: Path, declared: Names | None, header: bool | None, text: TextFormat) -> Source:
    """The cells of a delimited text file.

    Args:
        path: The file; an ending ``.gz`` says that it is compressed.
        declared: The names that the schema declares.
        header: Whether the first line holds names, if that is known for certain.
        text: How the file is written.

    Guarantee:
        What a row's cells are depends on the bytes of its own line and on what is declared.
        Every line after the header is a row, also an empty one; the last line end is not one.
    """
    has_header = text.header if header is None else header
    if not has_header and declared is None:
        raise InputError("a file without a header line needs a schema, which gives the names")
    content, defects = decoded(load(path, text), text)
    content = content if content.endswith(b"\n") else content + b"\n"
    if has_header:
        names, records = _with_header(content, defects, path, declared, header, text)
    else:
        names, records = _without_header(content, defects, path, declared, text)
    check_width(len(names))
    cells, gaps = _cells(records, len(names))
    return Source("arrow", names, cells, is_text=True, gaps=gaps)


def load(path: Path, text: TextFormat) -> bytes:
    """The bytes of a file, unpacked if need be."""
    if path.suffix.lower() == ".gz":
        message = "compressed file is damaged or not gzip; get the file again"
        with path.open("rb") as packed, explained(message):
            return _load_chunks(gzip.GzipFile(fileobj=packed).read, text)
    with path.open("rb") as file:
        return _load_chunks(file.read, text)


def _load_chunks(read: Callable[[int], bytes], text: TextFormat) -> bytes:
    content = bytearray()
    while chunk := read(_CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_BYTES:
            raise InputError(f"file must hold at most {MAX_BYTES} bytes of text; split it")
        _check_chunk(content, chunk, text)
    return bytes(content)


def _check_chunk(content: bytearray, chunk: bytes, text: TextFormat) -> None:
    if text.is_decoded_whole or text.makes_missing:
        return
    if content.startswith(_UTF16) and text.encoding == "utf-8":
        raise InputError(
            'file starts like UTF-16; declare encoding = "utf-16" in [text], or pass --encoding '
            "utf-16"
        )
    # stops most bombs at once, which are long runs of one byte
    if b"\0" in chunk:
        raise InputError("file must be text, but holds NUL bytes; export it as CSV in UTF-8")


def decoded(content: bytes, text: TextFormat) -> tuple[bytes, dict[int, str]]:
    """The file in UTF-8 without a mark at its start, and where lines begin that are not text."""
    if text.is_decoded_whole:
        _require_byte_order(content, text.encoding)
        with explained(f"file is not {text.encoding}; declare its encoding in [text]"):
            return content.decode(text.encoding).lstrip("\ufeff").encode("utf-8"), {}
    if text.encoding == "utf-8":
        content = content.removeprefix(codecs.BOM_UTF8)
    if content.isascii():
        return content, {}
    try:
        whole = content.decode(text.encoding)
    except UnicodeDecodeError:
        return _decoded_by_line(content, text.encoding)
    return content if text.encoding == "utf-8" else whole.encode("utf-8"), {}


def _require_byte_order(content: bytes, encoding: str) -> None:
    """Refuse to guess the order of bytes: the first row could turn that of the whole file."""
    if encoding in _BYTE_ORDERS and not content.startswith(_BYTE_ORDERS[encoding]):
        raise InputError(
            f"file is declared as {encoding} and does not begin with a byte order mark; declare "
            f"{encoding}-le or {encoding}-be in [text]"
        )


def _decoded_by_line(content: bytes, encoding: str) -> tuple[bytes, dict[int, str]]:
    lines, defects, at = [], {}, 0
    for line in content.split(b"\n"):
        try:
            kept = line.decode(encoding).encode("utf-8")
        except UnicodeDecodeError:
            kept = b"?"
            defects[at] = "encoding"
        lines.append(kept)
        at += len(kept) + 1
    return b"\n".join(lines), defects


def _with_header(
    content: bytes,
    defects: dict[int, str],
    path: Path,
    declared: Names | None,
    header: bool | None,
    text: TextFormat,
) -> tuple[tuple[str, ...], Records]:
    delimiter = text.delimiter_of(path)
    if not content.strip() and not defects:
        raise InputError(_EMPTY)
    begin = len(content) - len(content.lstrip(b" \r\n"))
    line, start = first_record(content, begin, text, delimiter)
    if any(at < start for at in defects):
        raise InputError(_HEADER)
    names = split(line, delimiter, text)
    names = _header_names(names, line, declared, delimiter, text, is_certain=header is True)
    if len(content) <= start:
        raise InputError("file has a header line but no rows")
    return names, Records(content, start, text, delimiter, defects)


def _without_header(
    content: bytes,
    defects: dict[int, str],
    path: Path,
    declared: Names | None,
    text: TextFormat,
) -> tuple[tuple[str, ...], Records]:
    delimiter = text.delimiter_of(path)
    names = declared or ()
    if not content.strip() and not defects:
        raise InputError(_EMPTY)
    if not text.makes_missing:
        _check_count(content, defects, delimiter, text, len(names))
    return names, Records(content, 0, text, delimiter, defects)


def _check_count(
    content: bytes, defects: dict[int, str], delimiter: str, text: TextFormat, declared: int
) -> None:
    if 0 in defects:
        return
    found = len(split(first_record(content, 0, text, delimiter)[0], delimiter, text))
    if found != declared:
        raise InputError(
            f"file without a header line has {counted(found, 'column')} under the delimiter "
            f"{json.dumps(delimiter)}, but the schema declares {declared}; declare every column "
            "in order, and the delimiter in [text] (--delimiter)"
        )


def first_record(content: bytes, begin: int, text: TextFormat, delimiter: str) -> tuple[str, int]:
    """The record that begins at a place, and where the next one begins."""
    found = re.compile(grammar(text, delimiter)).match(content, begin)
    if found is None or found.end() - begin > MAX_LINE_BYTES:
        raise InputError(_HEADER)
    line = found[0].rstrip(b"\r\n")
    if b"\r" in line and not text.multiline:
        raise InputError("file has line ends of an old kind (carriage returns); save it anew")
    with explained(_HEADER):
        return line.decode("utf-8"), found.end()


def split(line: str, delimiter: str, text: TextFormat) -> tuple[str, ...]:
    """The cells of one record."""
    with explained(_HEADER):
        rows = csv.reader(
            io.StringIO(line, newline=""),
            delimiter=delimiter,
            quotechar=text.quote or None,
            quoting=csv.QUOTE_MINIMAL if text.quote else csv.QUOTE_NONE,
        )
        cells = next(rows, [""])
    return tuple(cell.strip() for cell in cells)


def _header_names(
    names: tuple[str, ...],
    line: str,
    declared: Names | None,
    delimiter: str,
    text: TextFormat,
    *,
    is_certain: bool,
) -> tuple[str, ...]:
    expected = {name.strip(): name for name in declared or ()}
    fits = bool(expected) and set(expected) <= set(names)
    if expected and not fits:
        _suggest_delimiter(set(expected), line, delimiter, text)
    if not (fits or is_certain) and any(_looks_like_a_cell(name) for name in names):
        raise InputError(
            "first line of the file looks like a row, not like names; add a header line, or "
            "declare the columns in a schema and pass header=False"
        )
    return tuple(expected.get(name, name) for name in names)


def _suggest_delimiter(declared: set[str], line: str, delimiter: str, text: TextFormat) -> None:
    """Say which delimiter the first line has, if the declared names can be found by one."""
    for other in USUAL_DELIMITERS:
        if other not in (delimiter, text.quote) and declared <= set(split(line, other, text)):
            shown = json.dumps(other)
            raise InputError(
                f"first line of the file holds the declared names between {shown}, not between "
                f"{json.dumps(delimiter)}; declare delimiter = {shown} in [text], or pass "
                f"--delimiter {'tab' if other == chr(9) else shown}"
            )


def _looks_like_a_cell(name: str) -> bool:
    try:
        float(name.replace(",", "."))
    except ValueError:
        return False
    return True


def _cells(records: Records, columns: int) -> tuple[list[pa.ChunkedArray], np.ndarray | None]:
    """The columns, and the numbers of rows that have no cells."""
    check_cells(records.count(), columns)
    defects = records.found_defects(columns)
    if not records.text.makes_missing:
        records.refuse(defects)
    places = list(defects)
    numbers = records.numbers(places)
    rows = records.without(places, columns)
    with explained("file cannot be split into rows and cells; check its quotes and line ends"):
        table, ragged = _parse(rows, records, columns)
    numbers = sorted({*numbers, *ragged})
    if table.num_rows != records.count():
        raise InputError("file cannot be split into as many rows as it has lines; check its quotes")
    return table.columns, np.array(numbers, dtype=np.int64) if numbers else None


def _parse(rows: bytes, records: Records, columns: int) -> tuple[pa.Table, list[int]]:
    """The cells, and the numbers of rows that had another number of them."""
    try:
        return _parse_once(rows, records, columns, None), []
    except pa.ArrowInvalid:
        # once more in one thread, which knows the numbers of rows
        ragged: list[int] = []
    _parse_once(rows, records, columns, ragged)
    if not records.text.makes_missing:
        _refuse_ragged(ragged, columns)
    again = Records(rows, 0, records.text, records.delimiter, {})
    rows = again.without(_places(again, ragged), columns)
    return _parse_once(rows, records, columns, None), ragged


def _places(records: Records, numbers: list[int]) -> list[int]:
    """Where rows of these numbers, which ascend, begin."""
    if records.text.multiline:
        return [records.starts[number] for number in numbers]
    places, at, before = [], 0, 0
    for number in numbers:
        for _ in range(number - before):
            at = records.end_of(at)
        before = number
        places.append(at)
    return places


def _refuse_ragged(rows: list[int], columns: int) -> None:
    if rows:
        raise InputError(
            f"rows must have {counted(columns, 'cell')} as the first line has, got another number "
            f"in {counted(len(rows), 'row')}, the first is row {rows[0] + 1}; correct them, or "
            'declare unreadable = "missing" in [text]'
        )


def _parse_once(rows: bytes, records: Records, columns: int, ragged: list[int] | None) -> pa.Table:
    """Cells as text; rows of another length are counted, or refused if there is no list."""
    names = [str(i) for i in range(columns)]

    def note(row: pyarrow.csv.InvalidRow) -> str:
        if ragged is None:
            return "error"
        ragged.append(row.number - 1)
        return "skip"

    return pyarrow.csv.read_csv(
        pa.BufferReader(rows),
        read_options=pyarrow.csv.ReadOptions(
            column_names=names, use_threads=ragged is None, block_size=2 * MAX_LINE_BYTES
        ),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=records.delimiter,
            quote_char=records.text.quote or False,
            newlines_in_values=records.text.multiline,
            ignore_empty_lines=False,
            invalid_row_handler=note,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False
        ),
    )

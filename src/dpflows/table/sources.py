"""Opens whatever holds a table: arrays, frames and files, each as named columns of raw cells.

The type of an object, or the ending of a file's name, says how it is opened.

Every cell of a text file is read as text; what it means is decided by the schema, elsewhere. Each
record is found without looking at the others: a record is a line, and a quote that is opened on a
line is closed there, or that line cannot be read; otherwise one stray quote would swallow the rows
behind it. Only where line ends inside quotes are declared are records found by the quotes of the
whole file, which must then be balanced.
"""

import bisect
import codecs
import contextlib
import csv
import functools
import gzip
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dpflows.errors import InputError
from dpflows.table.raw import (
    MAX_BYTES,
    USUAL_DELIMITERS,
    Names,
    Raw,
    Source,
    TextFormat,
    check_cells,
    check_unpacked,
    check_width,
    counted,
    default_names,
    explained,
)

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


TEXT_ENDINGS = (".csv", ".tsv", ".txt")
PARQUET_ENDINGS = (".parquet",)
ARROW_ENDINGS = (".feather", ".arrow")

_MESSAGE_START = b"\xff\xff\xff\xff"
_STREAM_END = _MESSAGE_START + bytes(4)
#: Where the messages of an Arrow file begin.
_FILE_START = 8


def open_source(
    source: Any, declared: Names | None, header: bool | None, text: TextFormat
) -> Source:
    """Take a table of any accepted kind apart into columns."""
    if isinstance(source, str | os.PathLike):
        return from_path(source, declared, header, text)
    if header is not None:
        raise InputError("header is for text files; leave it out for tables in memory")
    if isinstance(source, np.ndarray):
        return from_numpy(source, declared)
    if isinstance(source, pa.Table):
        return from_arrow(source)
    library = type(source).__module__.partition(".")[0]
    if library in ("pandas", "polars"):
        return (from_pandas if library == "pandas" else from_polars)(source)
    raise InputError(
        "table must be a numpy array, a pandas, polars or pyarrow table, or a path, "
        f"got {type(source).__name__}; convert it"
    )


def from_path(path: Any, declared: Names | None, header: bool | None, text: TextFormat) -> Source:
    """Read a file by its ending."""
    path = Path(path)
    ending = ending_of(path)
    if header is not None and ending not in TEXT_ENDINGS:
        raise InputError("header is for text files; leave it out for Parquet and Arrow files")
    with file_errors(path):
        check_file(path)
        if ending in TEXT_ENDINGS:
            return read_text(path, declared, header, text)
        return from_arrow(read_parquet(path) if ending in PARQUET_ENDINGS else read_ipc(path))


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be read."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise InputError(f"cannot read {str(path)!r}: {reason}; check the path") from None
    except MemoryError:
        raise InputError("the table does not fit into memory; use fewer rows or columns") from None


def ending_of(path: Path) -> str:
    """How the name of a table's file ends, without what says that it is packed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    ending = "".join(suffixes[-2:-1] if is_packed else suffixes[-1:])
    binary = () if is_packed else PARQUET_ENDINGS + ARROW_ENDINGS
    if ending not in TEXT_ENDINGS + binary:
        known = ", ".join(TEXT_ENDINGS + PARQUET_ENDINGS + ARROW_ENDINGS)
        raise InputError(
            f"file must end in {known}, or in .csv.gz, .tsv.gz or .txt.gz, "
            f"got {str(path)!r}; rename or export it"
        )
    return ending


def check_file(path: Path) -> None:
    """Refuse what is no file of a size that can be read."""
    # opening a pipe would wait for a writer, so the kind of file is asked first
    try:
        found = path.stat()
    except ValueError:
        raise InputError("path must not hold NUL characters; check the path") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise InputError(f"cannot read {str(path)!r}: it is {kind}; name a file")
    if found.st_size == 0:
        raise InputError("file is empty; expected a header line and rows")
    if found.st_size > MAX_BYTES:
        raise InputError(f"file must hold at most {MAX_BYTES} bytes; split it")


def from_numpy(array: np.ndarray, declared: Names | None) -> Source:
    """The columns of a two-dimensional array."""
    if array.dtype.names is not None:
        raise InputError("structured arrays are not accepted; pass a frame or a plain array")
    if array.ndim != 2:
        raise InputError(
            f"array must have two dimensions, rows and columns, got {array.ndim}; "
            "Reshape your data, for one column by array.reshape(-1, 1)"
        )
    check_cells(*array.shape)
    names = default_names(array.shape[1]) if declared is None else declared
    if len(names) != array.shape[1]:
        raise InputError(f"array has {array.shape[1]} columns, the schema declares {len(names)}")
    if isinstance(array, np.ma.MaskedArray):
        masked, array = np.ma.getmaskarray(array), array.data.astype(object)
        array[masked] = None
    if array.dtype.kind not in "fiubMUTO":
        raise InputError("array must hold numbers, text, booleans or dates; convert it")
    return Source("numpy", names, _vectors(array), has_own_names=False)


def _vectors(array: np.ndarray) -> list[Raw]:
    """The columns one by one, each in one piece of memory."""
    if array.dtype.kind == "U":
        # a type for words is as wide as the longest of them
        array = array.astype(object)
    return list(np.ascontiguousarray(array.T))


def from_arrow(table: pa.Table) -> Source:
    """The columns of an Arrow table."""
    check_cells(table.num_rows, table.num_columns)
    # the library decodes names only when they are asked for
    with explained("table has a column whose name is not text in UTF-8; rename it"):
        names = tuple(table.column_names)
    return Source("arrow", names, table.columns)


def from_polars(frame: Any) -> Source:
    """The columns of a polars frame."""
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        raise InputError("polars LazyFrame holds no rows yet; call .collect() first")
    if not isinstance(frame, pl.DataFrame):
        raise InputError("table must be a polars DataFrame; for a Series use .to_frame()")
    check_cells(frame.height, frame.width)
    with explained("polars frame has columns of a type that is not accepted; convert them"):
        table = frame.to_arrow()
    return Source("polars", tuple(frame.columns), table.columns)


def from_pandas(frame: Any) -> Source:
    """The columns of a pandas frame."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError("table must be a pandas DataFrame; for a Series use .to_frame()")
    if isinstance(frame.columns, pd.MultiIndex):
        raise InputError("pandas frame must have one level of column names; flatten them")
    check_cells(*frame.shape)
    return Source(
        "pandas",
        tuple(str(label) for label in frame.columns),
        [_from_series(series) for _, series in frame.items()],
        has_integer_labels=bool(pd.api.types.is_integer_dtype(frame.columns.dtype)),
    )


def _from_series(series: Any) -> Raw:
    """A column in its own type, or as objects where that type would depend on other rows."""
    held = getattr(series.dtype, "categories", series).dtype
    if held.kind != "O" or not isinstance(held, np.dtype):
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
            array = pa.array(series, from_pandas=True)
            return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    objects: np.ndarray = np.asarray(series.astype(object), dtype=object)
    return objects


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file whose sizes were checked first."""
    import pyarrow.parquet

    with (
        path.open("rb") as file,
        explained("file is damaged or not Parquet; get the file again"),
        pyarrow.parquet.ParquetFile(file) as parquet,
    ):
        size = parquet.metadata
        check_cells(size.num_rows, size.num_columns)
        groups = (size.row_group(i) for i in range(size.num_row_groups))
        if sum(group.total_byte_size for group in groups) > MAX_BYTES:
            raise InputError(f"file must hold at most {MAX_BYTES} bytes once unpacked; split it")
        table = parquet.read(use_threads=False)
        table.validate(full=True)
        if table.num_rows != size.num_rows:
            raise ValueError("the row groups do not hold as many rows as the file")
    return table


def read_ipc(path: Path) -> pa.Table:
    """Read an Arrow file or stream, which Feather files are too."""
    with path.open("rb") as file, explained("file is damaged or not Arrow; write it again"):
        is_stream = file.read(6) != b"ARROW1"
        if is_stream:
            _check_end(file)
        file.seek(0)
        reader = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file)
        batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
        table = pa.Table.from_batches(_within_limits(batches), reader.schema)
        if not is_stream:
            _check_footer(file, reader.num_record_batches)
        elif file.read(1):
            # a damaged length, or another stream after this one, hides the rest of the rows
            raise ValueError("the stream ends before the file does")
        return table


def _check_footer(file: IO[bytes], listed: int) -> None:
    # rows of batches that a damaged footer leaves out would be lost
    file.seek(_FILE_START)
    if file.read(len(_MESSAGE_START)) != _MESSAGE_START:
        return  # Polars writes the schema in a form of its own, and no reader can follow it
    file.seek(_FILE_START)
    messages = pa.ipc.MessageReader.open_stream(file)
    if sum(message.type == "record batch" for message in messages) != listed:
        raise ValueError("the footer does not list the batches of the file")


def _check_end(file: IO[bytes]) -> None:
    # a stream that was cut between two batches reads like a shorter one
    file.seek(max(file.seek(0, os.SEEK_END) - len(_STREAM_END), 0))
    if file.read() != _STREAM_END:
        raise ValueError("the stream is not ended")


def _within_limits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    cells = size = 0
    for batch in batches:
        batch.validate(full=True)
        cells, size = cells + batch.num_rows * batch.num_columns, size + batch.nbytes
        check_unpacked(cells, size)
        yield batch

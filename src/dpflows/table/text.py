"""Text files as cells of text, by what is declared about them.

Every cell is read as text; what it means is decided by the schema, elsewhere.
"""

import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dpflows.errors import InputError
from dpflows.table.cells import explained
from dpflows.table.columns import counted
from dpflows.table.records import MAX_LINE_BYTES, Records, grammar
from dpflows.table.schema import Schema
from dpflows.table.sources import MAX_BYTES, Source, check_cells, check_width
from dpflows.table.text_format import USUAL_DELIMITERS, TextFormat

_CHUNK_BYTES = 2**24
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_EMPTY = "file is empty; expected a header line and rows"
_BYTE_ORDERS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
_HEADER = "first line of the file cannot be split into names; check its quotes and encoding"


def read_text(path: Path, schema: Schema | None, header: bool | None, text: TextFormat) -> Source:
    """The cells of a delimited text file.

    Args:
        path: The file; an ending ``.gz`` says that it is compressed.
        schema: What is declared about the columns.
        header: Whether the first line holds names, if that is known for certain.
        text: How the file is written.

    Guarantee:
        What a row's cells are depends on the bytes of its own line and on what is declared.
        Every line after the header is a row, also an empty one; the last line end is not one.
    """
    has_header = text.header if header is None else header
    if not has_header and schema is None:
        raise InputError("a file without a header line needs a schema, which gives the names")
    content, defects = decoded(load(path, text), text)
    content = content if content.endswith(b"\n") else content + b"\n"
    if has_header:
        names, records = _with_header(content, defects, path, schema, header, text)
    else:
        names, records = _without_header(content, defects, path, schema, text)
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
    schema: Schema | None,
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
    names = _header_names(names, line, schema, delimiter, text, is_certain=header is True)
    if len(content) <= start:
        raise InputError("file has a header line but no rows")
    return names, Records(content, start, text, delimiter, defects)


def _without_header(
    content: bytes,
    defects: dict[int, str],
    path: Path,
    schema: Schema | None,
    text: TextFormat,
) -> tuple[tuple[str, ...], Records]:
    delimiter = text.delimiter_of(path)
    names = () if schema is None else schema.names
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
    schema: Schema | None,
    delimiter: str,
    text: TextFormat,
    *,
    is_certain: bool,
) -> tuple[str, ...]:
    declared = {} if schema is None else {name.strip(): name for name in schema.names}
    fits = bool(declared) and set(declared) <= set(names)
    if declared and not fits:
        _suggest_delimiter(set(declared), line, delimiter, text)
    if not (fits or is_certain) and any(_looks_like_a_cell(name) for name in names):
        raise InputError(
            "first line of the file looks like a row, not like names; add a header line, or "
            "declare the columns in a schema and pass header=False"
        )
    return tuple(declared.get(name, name) for name in names)


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

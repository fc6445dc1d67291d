"""Text files: delimiters, quotes, encodings and compression, told from the file itself.

Every cell is read as text; what it means is decided by the schema, elsewhere.
"""

import codecs
import csv
import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dpflows.errors import InputError
from dpflows.table.cells import MISSING, explained
from dpflows.table.columns import counted
from dpflows.table.schema import Schema
from dpflows.table.sources import MAX_BYTES, Source, check_cells

#: The longest line that is taken for a row rather than for something else.
MAX_LINE_BYTES = 2**22
#: A comma comes last: beside another delimiter it is more likely a decimal comma.
DELIMITERS = ";\t|,"

_CHUNK_BYTES = 2**24
_NUMERIC = r"^\s*[+-]?[0-9.,]+([eE][+-]?\d+)?\s*$"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OTHER_CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1f\x7f]")


def read_text(path: Path, schema: Schema | None, header: bool | None) -> Source:
    """The cells of a delimited text file.

    Args:
        path: The file; an ending ``.gz`` says that it is compressed.
        schema: What is declared, which helps to tell delimiters and headers.
        header: Whether the first line holds names; ``None`` looks at it.
    """
    if header is False and schema is None:
        raise InputError("a file without a header line needs a schema, which gives the names")
    content = _decode(_load(path))
    _check_lines(content)
    first, start = _first_record(content)
    delimiter = _delimiter(first, schema, has_header=header is not False)
    names = _split(first, delimiter)
    if header is False:
        names, start = _declared_names(schema, len(names)), 0
    else:
        names = _header_names(names, schema, is_certain=header is True)
    cells = _parse(content, start, delimiter, len(names))
    if delimiter == ";" and b"," in content:
        cells = _with_decimal_points(cells)
    return Source("arrow", names, cells, is_text=True)


def _load(path: Path) -> bytes:
    if path.suffix.lower() == ".gz":
        message = "compressed file is damaged or not gzip; get the file again"
        with path.open("rb") as packed, explained(message):
            return _load_chunks(gzip.GzipFile(fileobj=packed).read)
    with path.open("rb") as file:
        return _load_chunks(file.read)


def _load_chunks(read: Callable[[int], bytes]) -> bytes:
    content = bytearray()
    while chunk := read(_CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_BYTES:
            raise InputError(f"file must hold at most {MAX_BYTES} bytes of text; split it")
        # stops most bombs at once, which are long runs of one byte
        if not content.startswith(_UTF16) and b"\0" in chunk:
            raise InputError("file must be text, but holds NUL bytes; export it as CSV in UTF-8")
    return bytes(content)


def _decode(content: bytes) -> bytes:
    """The text as UTF-8 without a mark at its start."""
    if content.startswith(_UTF16):
        with explained("file starts like UTF-16 but is not; save it as UTF-8"):
            content = content.decode("utf-16").encode("utf-8")
        if b"\0" in content:
            raise InputError("file must be text, but holds NUL bytes; export it as CSV in UTF-8")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        content.isascii() or content.decode("utf-8")
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode("utf-8")
    return content


def _check_lines(content: bytes) -> None:
    if not content.strip():
        raise InputError("file is empty; expected a header line and rows")
    if _OTHER_CONTROLS.search(content, 0, _CHUNK_BYTES):
        raise InputError("file must be text, but holds control characters; export it as CSV")
    if content.count(b'"') % 2:
        raise InputError("file has a quote that is opened but not closed; correct it")
    start = 0
    while len(content) - start > MAX_LINE_BYTES:
        end = start + MAX_LINE_BYTES
        last = max(content.rfind(b"\n", start, end), content.rfind(b"\r", start, end))
        if last < 0:
            raise InputError(f"file has a line of more than {MAX_LINE_BYTES} bytes; is it a table?")
        start = last + 1


def _first_record(content: bytes) -> tuple[str, int]:
    """The first line that is not blank, with quoted line ends, and where the next starts."""
    begin = len(content) - len(content.lstrip(b" \r\n"))
    end = begin
    while end < len(content):
        found = re.compile(rb"\r\n|\r|\n").search(content, end)
        stop, end = found.span() if found else (len(content), len(content))
        if content.count(b'"', begin, stop) % 2 == 0:
            break
        if end - begin > MAX_LINE_BYTES:
            raise InputError("file has a quote in its first line that is not closed there")
    return content[begin:stop].decode("utf-8"), end


def _split(line: str, delimiter: str) -> tuple[str, ...]:
    with explained("first line of the file cannot be split into cells; check its quotes"):
        cells = next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter))
    return tuple(cell.strip() for cell in cells)


def _delimiter(line: str, schema: Schema | None, *, has_header: bool) -> str:
    """The delimiter under which the first line is what the schema says, or the commonest."""
    unquoted = re.sub(r'"[^"]*"', "", line)
    by_count = sorted(DELIMITERS, key=unquoted.count, reverse=True)
    names = [] if schema is None else [name.strip() for name in schema.names]
    for delimiter in (by_count if has_header else DELIMITERS) if names else ():
        cells = _split(line, delimiter)
        if set(names) <= set(cells) if has_header else len(names) == len(cells):
            return delimiter
    return by_count[0]


def _declared_names(schema: Schema | None, found: int) -> tuple[str, ...]:
    names = () if schema is None else schema.names
    if len(names) != found:
        raise InputError(
            f"file without a header line has {counted(found, 'column')}, but the schema declares "
            f"{len(names)}; declare every column in order"
        )
    return names


def _header_names(
    names: tuple[str, ...], schema: Schema | None, *, is_certain: bool
) -> tuple[str, ...]:
    declared = {} if schema is None else {name.strip(): name for name in schema.names}
    fits = bool(declared) and set(declared) <= set(names)
    if not (fits or is_certain) and any(_looks_like_a_cell(name) for name in names):
        raise InputError(
            "first line of the file looks like a row, not like names; add a header line, or "
            "declare the columns in a schema and pass header=False"
        )
    return tuple(declared.get(name, name) for name in names)


def _looks_like_a_cell(name: str) -> bool:
    try:
        float(name.replace(",", "."))
    except ValueError:
        return False
    return True


def _parse(content: bytes, start: int, delimiter: str, columns: int) -> list[pa.ChunkedArray]:
    if columns == 1:
        # a blank line is a missing cell, but not at the end of the file
        content = content.rstrip(b"\r\n")
    if not re.compile(rb"[^ \t\r\n]").search(content, start):
        raise InputError("file has a header line but no rows")
    ragged: list[int] = []
    with explained("file cannot be split into rows and cells; check its quotes and line ends"):
        rows = pa.py_buffer(content).slice(start)
        has_quotes = b'"' in content
        try:
            table = _parse_once(rows, delimiter, columns, has_quotes, None)
        except pa.ArrowInvalid:
            # once more in one thread, which knows the numbers of rows
            table = _parse_once(rows, delimiter, columns, has_quotes, ragged)
    _check_ragged(ragged, columns)
    check_cells(table.num_rows, columns)
    return table.columns


def _check_ragged(rows: list[int], columns: int) -> None:
    if rows:
        raise InputError(
            f"rows must have {counted(columns, 'cell')} as the first line has, got another number "
            f"in {counted(len(rows), 'row')}, the first is row {rows[0]}; correct them"
        )


def _parse_once(
    rows: pa.Buffer, delimiter: str, columns: int, has_quotes: bool, ragged: list[int] | None
) -> pa.Table:
    """Cells as text; rows of another length are counted, or refused if there is no list."""
    names = [str(i) for i in range(columns)]

    def note(row: pyarrow.csv.InvalidRow) -> str:
        if ragged is None:
            return "error"
        ragged.append(row.number)
        return "skip"

    return pyarrow.csv.read_csv(
        pa.BufferReader(rows),
        read_options=pyarrow.csv.ReadOptions(
            column_names=names, use_threads=ragged is None, block_size=2 * MAX_LINE_BYTES
        ),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=has_quotes,
            ignore_empty_lines=columns > 1,
            invalid_row_handler=note,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False
        ),
    )


def _with_decimal_points(cells: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    """Decimal commas as points, where no column of numbers uses points already."""
    numeric = [_all_match(column) for column in cells]
    numbers = [column for column, fits in zip(cells, numeric, strict=True) if fits]
    if any(pc.any(pc.match_substring(column, ".")).as_py() for column in numbers):
        return cells
    return [
        pc.replace_substring(column, ",", ".") if fits else column
        for column, fits in zip(cells, numeric, strict=True)
    ]


def _all_match(column: pa.ChunkedArray) -> bool:
    is_gap = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(MISSING, column.type))
    return bool(pc.all(pc.or_(is_gap, pc.match_substring_regex(column, _NUMERIC))).as_py())

"""Tables whose rows are known, written in many ways and then damaged in known ways.

What is known: how many rows the file holds, and which of them are as they were written. A
reader that accepts the file must give as many rows, and the untouched ones unchanged.
"""

import csv
import gzip
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from dpflows.table import Column, Schema, TextFormat

SCHEMA = Schema((Column("age", "integer"), Column("dose", "continuous")))
LABELLED = Schema((Column("age", "categorical", nullable=True), Column("dose", "continuous")))
TEXT = ("t.csv", "t.tsv", "t.txt", "t.csv.gz")
BINARY = ("t.parquet", "t.feather", "t.arrow")

#: What a cell may become. None of it may end a row, and nothing of it may be lost.
CELLS = [
    *("", " ", "NA", "nan", "inf", "-inf", "1e999", "x", "0x10", "1_000", "1 000", "١٢"),
    *("1e1", " 12 ", "+3", "012", "-0", ".5", "5.", "1e-400", "9" * 400, "true", "2020-01-01"),
    *('"', '""', '"x', 'a"b', ",", ";", "\t", "|", "\n", "\r\n", "#", "'", "\\", "=1+1"),
    *("\u2028", "\x0b", "\x1a", "\0", "\ufeff", "é", "\ud83d\ude00", "x" * 5000),
]


@dataclass
class Written:
    """A file, how to read it, how many rows it holds and which of them are untouched."""

    name: str
    content: bytes
    schema: Schema
    rows: int
    untouched: dict[int, tuple[float, float]] = field(default_factory=dict)
    planted: list[str] = field(default_factory=list)
    header: bool | None = None
    is_exact: bool = True
    text: TextFormat | None = None


def number(chance: random.Random, digits: int) -> str:
    """A number that no message would hold by chance."""
    return "".join(chance.choice("123456789") for _ in range(digits))


def written(chance: random.Random) -> Written:
    """A table of known rows, perhaps with touched cells, perhaps with damaged bytes."""
    rows = [_row(chance) for _ in range(chance.choice([1, 2, 3, 12]))]
    if chance.random() < 0.3:
        return _binary(chance, rows)
    return _text(chance, rows)


def _row(chance: random.Random) -> list[str]:
    return [number(chance, 9), f"{number(chance, 5)}.{number(chance, 6)}"]


def _text(chance: random.Random, rows: list[list[str]]) -> Written:
    planted = [cell for row in rows for cell in row]
    truth = {i: (float(age), float(dose)) for i, (age, dose) in enumerate(rows)}
    for i in chance.sample(range(len(rows)), chance.choice([0, 1, 1, len(rows)])):
        rows[i][chance.randrange(2)] = chance.choice(CELLS)
        del truth[i]
    way = chance.choice([_quoted, _quoted, _plain])
    lines = [way(chance, row) for row in [["age", "dose"], *rows]]
    delimiter, end = chance.choice(",;\t|"), chance.choice(["\n", "\r\n"])
    text = end.join(delimiter.join(line) for line in lines) + chance.choice(["", end, end * 3])
    name = chance.choice(TEXT)
    schema = chance.choice([SCHEMA, SCHEMA, LABELLED])
    encoding = chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"])
    case = Written(name, text.encode(encoding, "replace"), schema, len(rows), truth, planted)
    multiline = chance.random() < 0.5
    case.text = TextFormat(delimiter=delimiter, encoding=encoding, multiline=multiline)
    # without quotes a cell that holds a line end or a delimiter is no longer one cell
    case.is_exact = way is _quoted
    return _maybe_cut(chance, case)


def _quoted(chance: random.Random, row: list[str]) -> list[str]:
    """Cells as the csv module writes them: any content is one cell."""
    style = chance.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
    cells = []
    for cell in row:
        line = io.StringIO()
        csv.writer(line, quoting=style, lineterminator="").writerow([cell])
        special = style == csv.QUOTE_MINIMAL and set(cell) & set(",;\t|\n\r")
        cells.append('"' + cell.replace('"', '""') + '"' if special else line.getvalue())
    return cells


def _plain(chance: random.Random, row: list[str]) -> list[str]:
    """Cells as a careless program writes them."""
    return row


def _maybe_cut(chance: random.Random, case: Written) -> Written:
    if case.name.endswith("gz"):
        case.content = gzip.compress(case.content, mtime=0)
        if chance.random() < 0.3:
            case.content = damaged(chance, case.content)
    return case


def _binary(chance: random.Random, rows: list[list[str]]) -> Written:
    columns = {
        "age": pa.array([int(age) for age, _ in rows]),
        "dose": pa.array([float(dose) for _, dose in rows]),
    }
    name = chance.choice(BINARY)
    content = _WRITERS[name](pa.table(columns), chance)
    truth = {i: (float(age), float(dose)) for i, (age, dose) in enumerate(rows)}
    planted = [cell for row in rows for cell in row]
    if chance.random() < 0.7:
        # values may change where a format has no sums to check, but no row may be lost
        content, truth = damaged(chance, content), {}
    return Written(name, content, SCHEMA, len(rows), truth, planted)


def damaged(chance: random.Random, content: bytes) -> bytes:
    """Bits flipped, bytes exchanged, or the end cut off."""
    mutant = bytearray(content)
    if chance.random() < 0.3:
        return bytes(mutant[: chance.randrange(len(mutant))])
    for _ in range(chance.choice([1, 1, 3, 10])):
        at = chance.randrange(len(mutant))
        mutant[at] = chance.choice([mutant[at] ^ (1 << chance.randrange(8)), 0, 255, 127])
    return bytes(mutant)


def _parquet(table: pa.Table, chance: random.Random) -> bytes:
    sink = io.BytesIO()
    size = chance.choice([1, 5, 100])
    codec = chance.choice(["none", "snappy", "zstd", "gzip"])
    pyarrow.parquet.write_table(table, sink, row_group_size=size, compression=codec)
    return sink.getvalue()


def _feather(table: pa.Table, chance: random.Random) -> bytes:
    sink = io.BytesIO()
    codec = chance.choice(["uncompressed", "lz4", "zstd"])
    pyarrow.feather.write_feather(table, sink, chunksize=chance.choice([1, 5]), compression=codec)
    return sink.getvalue()


def _stream(table: pa.Table, chance: random.Random) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=chance.choice([1, 5])):
            writer.write_batch(batch)
    return sink.getvalue()


_WRITERS: dict[str, Callable[[pa.Table, random.Random], bytes]] = {
    "t.parquet": _parquet,
    "t.feather": _feather,
    "t.arrow": _stream,
}

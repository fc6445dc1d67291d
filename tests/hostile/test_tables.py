"""Damaged tables and schemas: a clear error, or every row; never a value in a message."""

import contextlib
import io
import os
import random
import re
import secrets
import time
import traceback
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from dpflows.errors import InputError
from dpflows.table import Schema, read_file
from dpflows.table.raw import Source
from figures import note
from hostile.tables import Written, written
from table.fuzzing import schema_case, table_case

SECONDS = 5.0
#: The name of a column in a schema file is public, wherever a mutation took it from.
NAMED = re.compile(r"""column ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def _judged(read, planted: list[str]) -> tuple[object, str]:
    """What a reader gives, and whether it is a refusal; a refusal quotes nothing."""
    given, shown, line = None, "", ""
    start = time.process_time()
    try:
        given = read()
    except InputError as error:
        line, shown = str(error), "".join(traceback.format_exception(error))
    assert time.process_time() - start < SECONDS
    assert "\n" not in line
    bare = NAMED.sub("", shown)
    assert [value for value in planted if value.strip("-") in bare] == []
    return given, "refused" if line else "read"


def _read_known(case: Written, folder: Path) -> str:
    """Every row is there, and those that nobody touched are as they were."""
    path = folder / case.name
    path.write_bytes(case.content)
    table, outcome = _judged(lambda: read_file(path, case.schema, text=case.text), case.planted)
    if outcome == "read" and case.is_exact:
        assert table.rows == case.rows
        for row, (age, dose) in case.untouched.items():
            assert float(table.columns["age"][row]) == age
            assert float(table.columns["dose"][row]) == dose
    return outcome


def _read_any(case, folder: Path) -> str:
    path = folder / case.name
    path.write_bytes(case.content)
    if case.name.startswith("s."):
        return _judged(lambda: Schema.read(path), case.planted)[1]
    return _judged(lambda: read_file(path, case.schema, **case.options), case.planted)[1]


def _fuzz(count: int, folder: Path) -> Counter[str]:
    """Four kinds of cases in turn: known rows twice, any bytes, schemas."""
    outcomes: Counter[str] = Counter()
    kinds = [(written, _read_known), (table_case, _read_any), (written, _read_known)]
    kinds.append((schema_case, _read_any))
    for number in range(count):
        seed = secrets.randbits(64)
        make, read = kinds[number % 4]
        case = make(random.Random(seed))
        try:
            outcomes[f"{make.__name__} {read(case, folder)}"] += 1
        except BaseException:
            print(f"{make.__name__} of seed {seed}: {case}")
            raise
    return outcomes


def _check(outcomes: Counter[str], count: int) -> None:
    assert sum(outcomes.values()) == count
    assert outcomes["written read"] > 0.1 * count
    assert outcomes["written refused"] > 0.1 * count


def test_a_thousand_damaged_tables_and_schemas(tmp_path):
    _check(_fuzz(1_000, tmp_path), 1_000)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_thousand_damaged_tables_and_schemas(tmp_path):
    outcomes = _fuzz(50_000, tmp_path)
    note("damaged tables and schemas", {"cases": 50_000, "faults": 0, "outcomes": outcomes})
    _check(outcomes, 50_000)


def _batches(rows: int) -> bytes:
    table = pa.table({"age": list(range(rows)), "dose": [0.5] * rows})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=10):
            writer.write_batch(batch)
    return sink.getvalue()


def test_a_stream_that_was_cut_between_two_batches_is_refused(tmp_path):
    """Wherever it is cut: without its end nobody knows whether rows are missing."""
    content, path = _batches(30), tmp_path / "t.arrow"
    path.write_bytes(content)
    assert read_file(path).rows == 30
    for length in range(0, len(content), 8):
        path.write_bytes(content[:length])
        with pytest.raises(InputError):
            read_file(path)


def test_a_stream_that_ends_before_its_file_is_refused(tmp_path):
    """Readers of Arrow stop at the first end: rows that come after it already exists."""
    content, path = _batches(30), tmp_path / "t.arrow"
    length = content.rindex(b"\xff\xff\xff\xff", 0, -8) + 4
    no_length = content[:length] + bytes(4) + content[length + 4 :]
    for damaged in (content + content, no_length):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged or not Arrow"):
            read_file(path)


def _parquet(rows: int) -> tuple[bytes, int]:
    """A file with one row in each group, and where its footer begins."""
    sink = io.BytesIO()
    table = pa.table({"age": list(range(rows))})
    plain = {"store_schema": False, "write_statistics": False}
    pyarrow.parquet.write_table(table, sink, row_group_size=1, **plain)
    content = sink.getvalue()
    return content, len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def _feather(rows: int) -> tuple[bytes, int]:
    """A file with one row in each batch, and where its footer begins."""
    sink = io.BytesIO()
    pyarrow.feather.write_feather(pa.table({"age": list(range(rows))}), sink, chunksize=1)
    content = sink.getvalue()
    return content, len(content) - 10 - int.from_bytes(content[-10:-6], "little")


@pytest.mark.parametrize(("name", "make"), [("t.parquet", _parquet), ("t.feather", _feather)])
def test_no_byte_of_a_footer_loses_a_row(tmp_path, name, make):
    """Readers leave out groups that claim to hold nothing and batches that are not listed."""
    (content, start), path = make(2), tmp_path / name
    for at in range(start, len(content)):
        for value in (0, 1):
            path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
            with contextlib.suppress(InputError):
                assert read_file(path).rows == 2


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_files_that_polars_wrote_are_read(tmp_path, compression):
    """Their first message has another form than that of Arrow's own files."""
    frame = pl.DataFrame({"age": range(1000), "dose": [0.5, 1.5] * 500})
    frame.write_ipc(tmp_path / "t.arrow", compression=compression)
    assert read_file(tmp_path / "t.arrow").rows == 1000


def _losing(monkeypatch) -> None:
    """A reader that leaves out the last row of every table."""
    made = Source.__init__

    def shorter(self, *arguments, **options):
        made(self, *arguments, **options)
        object.__setattr__(self, "cells", [cells[:-1] for cells in self.cells])

    monkeypatch.setattr(Source, "__init__", shorter)


def test_a_reader_that_loses_a_row_is_caught(tmp_path, monkeypatch):
    _losing(monkeypatch)
    with pytest.raises(AssertionError):
        _fuzz(200, tmp_path)


def test_a_message_that_quotes_a_cell_is_caught():
    def careless():
        raise InputError("cannot read 73819264")

    with pytest.raises(AssertionError, match="73819264"):
        _judged(careless, ["73819264"])


def test_nothing_but_the_case_is_left(tmp_path):
    _fuzz(40, tmp_path)
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} <= {"t", "s"}

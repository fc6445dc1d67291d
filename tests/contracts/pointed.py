"""Pairs by name: what a review once read off a table through one row, and what later did."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from contracts.neighbours import Pair
from contracts.text_files import Dialect
from dpflows.table.columns import Column
from dpflows.table.raw import TextFormat
from dpflows.table.schema import Schema

AGE = Column("age", "integer", min=0, max=120, nullable=True)
DOSE = Column("dose", "continuous", min=0, max=10, nullable=True)
GRADE = Column("grade", "categorical", categories=("0,5", "1,5", "none"), nullable=True)
TOWN = Column("town", "categorical", categories=("Zürich", "Bern"), nullable=True)
CODE = Column("code", "categorical", categories=("1", "2"), nullable=True)
DAY = Column("day", "date", min=0, max=4e9, nullable=True)
SEMICOLONS = Dialect(delimiter=";", unreadable="missing")
COMMAS = Dialect(unreadable="missing")


def _text(
    one: Dialect, columns: tuple[Column, ...], lines: list[str], row: int, changed: str | bytes
) -> Pair:
    schema = Schema(columns)
    first = [one.encode(line) for line in lines]
    new = one.encode(changed) if isinstance(changed, str) else changed
    second = [*first[:row], new, *first[row + 1 :]]
    sources = (one.file(schema.names, first), one.file(schema.names, second))
    return Pair(0, "text", "pointed", row, one.declare(schema), None, one, sources)


def _pandas(columns: tuple[Column, ...], cells: list[Any], row: int, changed: Any) -> Pair:
    schema = Schema(columns, text=TextFormat(unreadable="missing"))
    second = [*cells[:row], changed, *cells[row + 1 :]]
    frames = tuple(pd.DataFrame({schema.names[0]: values}) for values in (cells, second))
    return Pair(0, "pandas", "pointed", row, schema, None, None, frames)


def _with_bounds(pair: Pair) -> Pair:
    return dataclasses.replace(pair, schema=None, bounds=(0.0, 120.0))


def _numpy() -> Pair:
    first = np.array([[1, 2], [3, 4], [5, 6]])
    second = np.array([[1, 2], [3, 4], [5.5, 6]])
    schema = Schema((AGE, dataclasses.replace(AGE, name="other")))
    schema = dataclasses.replace(schema, text=TextFormat(unreadable="missing"))
    return Pair(0, "numpy", "pointed", 2, schema, None, None, (first, second))


def _large(changed: str | bytes) -> Pair:
    """A file that is parsed in blocks, with the change in one behind the first."""
    lines = [f"{i % 120},{i % 7}.{i % 1000:03d}{'0' * 20}" for i in range(400_000)]
    return _text(COMMAS, (AGE, DOSE), lines, 399_000, changed)


#: Each is read, both tables of it, and one row changes nothing else.
POINTED = {
    "one label makes a column look numeric": lambda: _text(
        SEMICOLONS, (GRADE, AGE), ["0,5;1", "1,5;2", "none;3", "0,5;4"], 2, "0,5;3"
    ),
    "one decimal comma": lambda: _text(
        dataclasses.replace(SEMICOLONS, decimal=","), (DOSE,), ["1,5", "2,5", "3"], 2, "3.5"
    ),
    "one byte that is not UTF-8": lambda: _text(
        COMMAS, (TOWN, AGE), ["Zürich,1", "Bern,2", "Zürich,3"], 1, b"Z\xfcrich,2"
    ),
    "one quote": lambda: _text(COMMAS, (TOWN, AGE), ["Bern,1", "Bern,2", '"Bern",3'], 0, '"Bern,1'),
    "one blank line": lambda: _text(COMMAS, (AGE, DOSE), ["1,1", "2,2", "3,3"], 1, ""),
    # were blank lines at the end no rows, the last row would decide whether those before it are
    "one blank line at the end": lambda: _text(COMMAS, (AGE, DOSE), ["1,1", "2,2", "3,3"], 2, ""),
    "one row behind blank lines": lambda: _text(COMMAS, (AGE, DOSE), ["1,1", "", "3,3"], 2, ""),
    "one row in place of names": lambda: _text(
        dataclasses.replace(COMMAS, header=False), (AGE, DOSE), ["1,1", "2,2", "3,3"], 0, "age,dose"
    ),
    "one fraction, with bounds alone": lambda: _with_bounds(
        _text(Dialect(), (AGE, DOSE), ["1,1", "2,2", "3,3"], 1, "33.5,2")
    ),
    "one fraction in a frame, with bounds alone": lambda: _with_bounds(
        _pandas((AGE,), [1, 2, 3], 1, 33.5)
    ),
    "one fraction in a frame": lambda: _pandas((AGE,), [1, 2, 3], 1, 33.5),
    "one gap in a frame": lambda: _pandas((AGE,), [1, 2, 3], 1, None),
    "one gap beside whole labels": lambda: _pandas((CODE,), [1, 2, 1], 1, None),
    "one word in a frame": lambda: _pandas((DOSE,), [1.5, 2.5, 3.5], 1, "a lot"),
    "one moment with a zone": lambda: _text(
        COMMAS, (DAY,), ["2020-01-01", "2020-01-02", "2020-01-03"], 1, "2020-01-02T00:00Z"
    ),
    "one fraction in an array": _numpy,
}
#: Each is read or refused, and if it is read one row changes nothing else.
REFUSABLE = {
    # the library makes the whole column complex; reading none of it is telling from one row
    "one complex number in a frame": lambda: _pandas((DOSE,), [1.5, 2.5, 3.5], 1, 1 + 2j),
    # without a header the first bytes are a row's, so no mark among them may be asked
    "one mark that turns the byte order": lambda: _text(
        dataclasses.replace(COMMAS, header=False, encoding="utf-16", codec="utf-16-le"),
        *((AGE, DOSE), ["1,1", "2,2", "3,3"], 0),
        b"\xfe\xff" + "1,1".encode("utf-16-le"),
    ),
}
LARGE = {
    "bytes": lambda: _large(b"1,\xff"),
    "quote": lambda: _large('1,"'),
    "cells": lambda: _large("1,2,3"),
    "blank": lambda: _large(""),
}

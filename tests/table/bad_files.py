"""Bad files, each with the one line that it must give."""

import gzip
import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from dpflows.table import Column, Schema, TextFormat

TWO = Schema((Column("age", "integer", min=0, max=120), Column("dose", "continuous", min=0, max=9)))
ONE = Schema((Column("dose", "continuous", min=0, max=9),))
MIXED = Schema(
    (
        Column("sex", "categorical", categories=("F", "M")),
        Column("alive", "boolean"),
        Column("seen", "date"),
    )
)


@dataclass(frozen=True)
class Bad:
    """A file's name and content, how it is read, and the message it gives."""

    name: str
    content: bytes
    message: str
    schema: Schema | None = TWO
    header: bool | None = None
    drop_extra: bool = False
    text: TextFormat | None = None


def parquet(**columns) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def feather(**columns) -> bytes:
    file = io.BytesIO()
    pyarrow.feather.write_feather(pa.table(columns), file)
    return file.getvalue()


def twice(make) -> bytes:
    """A binary file with two columns of one name."""
    file = io.BytesIO()
    arrays = [pa.array([1]), pa.array([2]), pa.array([3.0])]
    make(pa.table(arrays, names=["age", "age", "dose"]), file)
    return file.getvalue()


def stream(**columns) -> bytes:
    file = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


GOOD = b"age,dose\n" + b"30,1.5\n" * 1000

EMPTY = "file is empty; expected a header line and rows"
NO_ROWS = "file has a header line but no rows"
NUL = "file must be text, but holds NUL bytes; export it as CSV in UTF-8"
UNREADABLE = 'correct them, or declare unreadable = "missing" in [text]'
CONTROL = (
    "file has 1 line with control characters, the first is row 1; export the file as CSV, "
    + UNREADABLE
)
QUOTE = (
    "file has 1 line with a quote that is not closed where it should be, the first is row 1; "
    "declare multiline = true in [text] if cells hold line ends, " + UNREADABLE
)
MULTILINE = (
    "file has a quote that is not closed or stands inside a cell, and multiline = true needs "
    "quotes as in RFC 4180; correct the file"
)
HEADER = "first line of the file cannot be split into names; check its quotes and encoding"
ROW_FIRST = (
    "first line of the file looks like a row, not like names; add a header line, or "
    "declare the columns in a schema and pass header=False"
)
NOT_GZIP = "compressed file is damaged or not gzip; get the file again"
NOT_PARQUET = "file is damaged or not Parquet; get the file again"
NOT_ARROW = "file is damaged or not Arrow; write it again"
RAGGED = (
    "rows must have 2 cells as the first line has, got another number in {}, "
    "the first is row {}; " + UNREADABLE
)
ADVICE = (
    "correct them, or declare in the schema their kind, how they are written ([text]), or "
    'unreadable = "missing"'
)
FILL = "fill them, drop their rows, or declare nullable = true (DPDensity models missing cells)"
EXTRA = (
    "table has {} that the schema does not declare; declare or "
    "drop them: unused columns are dropped only with drop_extra=True"
)
LACKS = "table lacks columns that the schema declares: {}; add them or take them out of the schema"


def number(column: str, cells: str, row: int) -> str:
    return (
        f"column '{column}' must hold numbers, got {cells} of another form, "
        f"the first in row {row}; {ADVICE}"
    )


def filled(column: str, cells: str, row: int) -> str:
    return (
        f"column '{column}' must be filled, got {cells} without a value (NaN), "
        f"the first in row {row}; {FILL}"
    )


def finite(column: str, cells: str, row: int) -> str:
    return (
        f"column '{column}' must hold finite numbers, got {cells} that are infinite (inf), "
        f"the first in row {row}; correct them"
    )


def whole(cells: str, row: int) -> str:
    return (
        f"column 'age' is declared integer, got {cells} with a fraction, the first in row {row}; "
        'round them or declare kind = "continuous"'
    )


BAD = {
    # nothing there
    "empty": Bad("t.csv", b"", EMPTY),
    "blank": Bad("t.csv", b"  \n\r\n \n", EMPTY),
    "only a mark": Bad("t.csv", b"\xef\xbb\xbf", EMPTY),
    "empty inside gzip": Bad("t.csv.gz", gzip.compress(b""), EMPTY),
    "header only": Bad("t.csv", b"age,dose\n", NO_ROWS),
    "header without line end": Bad("t.csv", b"age,dose", NO_ROWS),
    "header and blanks": Bad(
        "t.csv",
        b"age,dose\n\n\r\n",
        "file has 2 lines without cells, the first is row 1; remove blank lines, " + UNREADABLE,
    ),
    "header only in utf-16": Bad(
        "t.csv", "age,dose\n".encode("utf-16"), NO_ROWS, text=TextFormat(encoding="utf-16")
    ),
    # not text
    "nul byte": Bad("t.csv", b"age,dose\n1,\x002\n", NUL),
    "nul bytes throughout": Bad("t.csv", bytes(1000), NUL),
    "utf-16 without a mark": Bad("t.csv", "age,dose\n1,2\n".encode("utf-16-le"), NUL),
    "nul inside utf-16": Bad(
        "t.csv",
        "age,dose\n1,\x002\n".encode("utf-16"),
        CONTROL,
        text=TextFormat(encoding="utf-16"),
    ),
    "half of utf-16": Bad(
        "t.csv",
        b"\xff\xfea\x00\x00\xd8b\x00",
        "file is not utf-16; declare its encoding in [text]",
        text=TextFormat(encoding="utf-16"),
    ),
    "utf-16 that is not declared": Bad(
        "t.csv",
        "age,dose\n1,2\n".encode("utf-16"),
        'file starts like UTF-16; declare encoding = "utf-16" in [text], or pass --encoding utf-16',
    ),
    "latin-1 that is not declared": Bad(
        "t.csv",
        "age,dose\n1,2\n1,é\n3,é\n".encode("latin-1"),
        "file has 2 lines with bytes that are not utf-8, the first is row 2; declare the encoding "
        "in [text] (--encoding), " + UNREADABLE,
    ),
    "a name that is not utf-8": Bad("t.csv", "é,dose\n1,2\n".encode("latin-1"), HEADER),
    "old line ends": Bad(
        "t.csv",
        b"age,dose\r1,2\r",
        "file has line ends of an old kind (carriage returns); save it anew",
    ),
    "a carriage return": Bad("t.csv", b"age,dose\n1,2\r3,4\n", CONTROL),
    "blank lines": Bad(
        "t.csv",
        b"age,dose\n1,2\n\n3,4\n\r\n5,6\n",
        "file has 2 lines without cells, the first is row 2; remove blank lines, " + UNREADABLE,
    ),
    "controls": Bad("t.csv", b"age,dose\n1,\x072\n", CONTROL),
    "a picture": Bad("t.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(1, 256)), HEADER),
    "long line": Bad(
        "t.csv",
        b"age,dose\n1," + b"2" * 2**22 + b"\n",
        "file has 1 line of more than 4194304 bytes, the first is row 1; is it a table? "
        + UNREADABLE,
    ),
    # compression
    "not gzip": Bad("t.csv.gz", GOOD, NOT_GZIP),
    "truncated gzip": Bad("t.csv.gz", gzip.compress(GOOD)[:-9], NOT_GZIP),
    "gzip with a flipped byte": Bad(
        "t.csv.gz", gzip.compress(GOOD)[:-6] + b"\x55\x55" + gzip.compress(GOOD)[-4:], NOT_GZIP
    ),
    "gzip bomb of zeros": Bad("t.csv.gz", gzip.compress(bytes(2**24)), NUL),
    "packed parquet": Bad(
        "t.parquet.gz",
        b"x",
        "file must end in .csv, .tsv, .txt, .parquet, .feather, .arrow, or in .csv.gz, .tsv.gz "
        "or .txt.gz, got {path}; rename or export it",
    ),
    "unknown ending": Bad(
        "t.xlsx",
        GOOD,
        "file must end in .csv, .tsv, .txt, .parquet, .feather, .arrow, or in .csv.gz, .tsv.gz "
        "or .txt.gz, got {path}; rename or export it",
    ),
    # headers
    "no header": Bad("t.csv", b"30,1.5\n40,2.5\n", ROW_FIRST),
    "no header and no schema": Bad("t.csv", b"30,1.5\n40,2.5\n", ROW_FIRST, schema=None),
    "one name is a number": Bad("t.csv", b"smith,2.5\n40,2.5\n", ROW_FIRST, schema=None),
    "no header with decimal commas": Bad("t.csv", b"30;1,5\n40;2,5\n", ROW_FIRST),
    "header denied without schema": Bad(
        "t.csv",
        b"30,1.5\n",
        "a file without a header line needs a schema, which gives the names",
        schema=None,
        header=False,
    ),
    "header denied and too narrow": Bad(
        "t.csv",
        b"30\n40\n",
        'file without a header line has 1 column under the delimiter ",", but the schema declares '
        "2; declare every column in order, and the delimiter in [text] (--delimiter)",
        header=False,
    ),
    "header denied but there": Bad(
        "t.csv", b"age,dose\n30,1.5\n", number("age", "1 cell", 1), header=False
    ),
    "header claimed but absent": Bad(
        "t.csv", b"30,1.5\n40,2.5\n", LACKS.format("'age', 'dose'"), header=True
    ),
    "header for parquet": Bad(
        "t.parquet",
        parquet(age=[1], dose=[1.0]),
        "header is for text files; leave it out for Parquet and Arrow files",
        header=True,
    ),
    "unnamed column": Bad(
        "t.csv",
        b",dose\n1,2\n",
        "columns must have names, got 1 unnamed column; name",
        schema=None,
    ),
    # columns
    "missing column": Bad("t.csv", b"age,other\n1,2\n", LACKS.format("'dose'")),
    "wrong case": Bad("t.csv", b"Age,Dose\n1,2\n", LACKS.format("'age', 'dose'")),
    "extra column": Bad("t.csv", b"age,dose,name\n1,2,x\n", EXTRA.format("1 column")),
    "extra columns in parquet": Bad(
        "t.parquet", parquet(age=[1], dose=[1.0], a=[1], b=[2]), EXTRA.format("2 columns")
    ),
    "repeated name": Bad(
        "t.csv",
        b"age,dose,age\n1,2,3\n",
        "table has more than one column of the name 'age'; rename",
    ),
    "repeated name without schema": Bad(
        "t.csv",
        b"age,dose,age\n1,2,3\n",
        "names must differ, got 1 repeated name; rename",
        schema=None,
    ),
    "repeated name in parquet": Bad(
        "t.parquet",
        twice(pyarrow.parquet.write_table),
        "table has more than one column of the name 'age'; rename",
    ),
    "missing column in feather": Bad("t.feather", feather(age=[1]), LACKS.format("'dose'")),
    # rows
    "short row": Bad("t.csv", b"age,dose\n1,2\n3\n4,5\n", RAGGED.format("1 row", 2)),
    "long rows": Bad("t.csv", b"age,dose\n1,2,3\n3,4\n4,5,6\n", RAGGED.format("2 rows", 1)),
    "other delimiter in rows": Bad("t.csv", b"age,dose\n1;2\n", RAGGED.format("1 row", 1)),
    "open quote": Bad("t.csv", b'age,dose\n1,"2\n3,4\n', QUOTE),
    "open quote in header": Bad("t.csv", b'age,"dose\n1,2\n3,4\n', HEADER),
    "text behind a quote": Bad("t.csv", b'age,dose\n1,"2"0\n3,4\n', QUOTE),
    "quoted line end": Bad("t.csv", b'age,dose\n"\n1",2\n3,4\n', QUOTE),
    "open quote among line ends": Bad(
        "t.csv", b'age,dose\n1,"2\n3,4\n', MULTILINE, text=TextFormat(multiline=True)
    ),
    "a quote inside a cell among line ends": Bad(
        "t.csv", b'age,dose\n1,2"\n3,"4"\n', MULTILINE, text=TextFormat(multiline=True)
    ),
    # cells
    "a word": Bad("t.csv", b"age,dose\n1,2\n3,many\n", number("dose", "1 cell", 2)),
    "two words": Bad("t.csv", b"age,dose\n1,few\n3,many\n", number("dose", "2 cells", 1)),
    "underscores": Bad("t.csv", b"age,dose\n1_0,2\n", number("age", "1 cell", 1)),
    "hexadecimal": Bad("t.csv", b"age,dose\n0x10,2\n", number("age", "1 cell", 1)),
    "wide digits": Bad("t.csv", "age,dose\n１,2\n".encode(), number("age", "1 cell", 1)),
    "thousands": Bad("t.csv", b'age,dose\n1,"1,234.5"\n', number("dose", "1 cell", 1)),
    "other delimiter": Bad(
        "t.csv",
        b"age;dose\n1;1.5\n",
        'first line of the file holds the declared names between ";", not between ","; declare '
        'delimiter = ";" in [text], or pass --delimiter ";"',
    ),
    "comma and point": Bad(
        "t.csv",
        b"age;dose\n1;1.5\n2;2,5\n",
        number("dose", "1 cell", 2),
        text=TextFormat(delimiter=";"),
    ),
    "thousands of points": Bad(
        "t.csv",
        b"age;dose\n1;1.234,5\n",
        number("dose", "1 cell", 1),
        text=TextFormat(delimiter=";", decimal=","),
    ),
    "missing": Bad("t.csv", b"age,dose\n1,2\n,3\n", filled("age", "1 cell", 2)),
    "missing by many words": Bad(
        "t.csv", b"age,dose\n1,NA\n2,NaN\n3,null\n4, \n5,None\n6,1\n", filled("dose", "5 cells", 1)
    ),
    "blank line in one column": Bad(
        "t.csv", b"dose\n1\n\n2\n\n", filled("dose", "2 cells", 2), schema=ONE
    ),
    "infinite": Bad("t.csv", b"age,dose\n1,inf\n2,-Infinity\n", finite("dose", "2 cells", 1)),
    "too large for a double": Bad(
        "t.csv", b"age,dose\n1,2\n2,1e400\n", finite("dose", "1 cell", 2)
    ),
    "fractions": Bad("t.csv", b"age,dose\n1,2\n1.5,3\n2.5,3\n", whole("2 cells", 2)),
    "a word without schema": Bad(
        "t.csv",
        b"smith,jones\n1,2\n,3\n",
        "column number 1 must be filled, got 1 cell without a value (NaN), the first in row 2; "
        + FILL,
        schema=None,
    ),
    # binary files
    "not parquet": Bad("t.parquet", GOOD, NOT_PARQUET),
    "truncated parquet": Bad("t.parquet", parquet(age=[1], dose=[1.0])[:-20], NOT_PARQUET),
    "parquet of two marks": Bad("t.parquet", b"PAR1\xff\xff\xff\x7fPAR1", NOT_PARQUET),
    "parquet without rows": Bad(
        "t.parquet",
        parquet(age=pa.array([], pa.int64()), dose=pa.array([], pa.float64())),
        "table has no rows; expected at least one",
    ),
    "parquet with text": Bad(
        "t.parquet", parquet(age=[1, 2], dose=["1.5", "x"]), number("dose", "1 cell", 2)
    ),
    "parquet with lists": Bad(
        "t.parquet",
        parquet(age=[1], dose=[[1.0]]),
        "column 'dose' has a type that tables may not have; convert it",
    ),
    "parquet with dates": Bad(
        "t.parquet",
        parquet(age=[1], dose=np.array(["2020-01-01"], "datetime64[s]")),
        number("dose", "1 cell", 1),
    ),
    "parquet with gaps": Bad(
        "t.parquet", parquet(age=[1, None], dose=[1.0, 2.0]), filled("age", "1 cell", 2)
    ),
    "parquet all missing": Bad(
        "t.parquet", parquet(age=pa.nulls(2), dose=[1.0, 2.0]), filled("age", "2 cells", 1)
    ),
    "not arrow": Bad("t.arrow", GOOD, NOT_ARROW),
    "truncated arrow": Bad("t.arrow", feather(age=[1], dose=[1.0])[:-30], NOT_ARROW),
    "truncated stream": Bad("t.arrow", stream(age=[1], dose=[1.0])[:200], NOT_ARROW),
    "not feather": Bad("t.feather", b"FEA1" + bytes(40), NOT_ARROW),
    "nan in feather": Bad(
        "t.feather", feather(age=[1, 2], dose=[1.0, float("nan")]), filled("dose", "1 cell", 2)
    ),
    # the other kinds
    "gap among labels": Bad(
        "t.csv",
        b"sex,alive,seen\nF,yes,2020-01-01\n,no,2020-01-01\n",
        filled("sex", "1 cell", 2),
        schema=MIXED,
    ),
    "not a boolean": Bad(
        "t.csv",
        b"sex,alive,seen\nF,maybe,2020-01-01\n",
        "column 'alive' must hold booleans, got 1 cell of another form, the first in row 1; "
        + ADVICE,
        schema=MIXED,
    ),
    "not a date": Bad(
        "t.csv",
        b"sex,alive,seen\nF,1,2020-01-01\nM,0,31.12.2020\n",
        "column 'seen' must hold dates such as 2020-12-31, got 1 cell of another form, "
        "the first in row 2; " + ADVICE,
        schema=MIXED,
    ),
    "numbers for labels": Bad(
        "t.parquet",
        parquet(sex=[1.5], alive=[True], seen=["2020-01-01"]),
        "column 'sex' must hold labels of text, got 1 cell of another form, the first in row 1; "
        + ADVICE,
        schema=MIXED,
    ),
    "two is no boolean": Bad(
        "t.parquet",
        parquet(sex=["F"], alive=[2], seen=["2020-01-01"]),
        "column 'alive' must hold booleans, got 1 cell of another form, the first in row 1; "
        + ADVICE,
        schema=MIXED,
    ),
    "numbers for dates": Bad(
        "t.parquet",
        parquet(sex=["F"], alive=[1], seen=[5]),
        "column 'seen' must hold dates such as 2020-12-31, got 1 cell of another form, "
        "the first in row 1; " + ADVICE,
        schema=MIXED,
    ),
}

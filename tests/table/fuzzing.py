"""Generated bad files and schemas, with values planted in them that nothing may repeat."""

import gzip
import random
from dataclasses import dataclass

from dpflows.table import Column, Schema
from table.bad_files import feather, parquet, stream

SCHEMAS = [
    None,
    Schema((Column("age", "integer", min=0, max=120), Column("dose", "continuous", min=0, max=9))),
    Schema((Column("age", "integer", nullable=True), Column("dose", "categorical"))),
    Schema((Column("age", "boolean"), Column("dose", "date"))),
    Schema((Column("dose", "continuous"),)),
]
NAMES = ["t.csv", "t.tsv", "t.txt.gz", "t.csv.gz", "t.parquet", "t.arrow", "t.feather"]
PIECES = [
    *(bytes([i]) for i in b'",;\t|\n\r\0\x1a+-eE._ #'),
    *(b"\r\n", b"\n\n", b'""', b"NaN", b"inf", b"1e999", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe9"),
    *(b"age", b"dose", b"true", b"2020-01-01", b"[" * 50, b"=", b"{", b"}", b"columns"),
]


@dataclass(frozen=True)
class Case:
    """A file to write, how to read it, and the values planted in it."""

    name: str
    content: bytes
    schema: Schema | None
    options: dict
    planted: list[str]


def plant(chance: random.Random) -> str:
    digits = "".join(chance.choice("123456789") for _ in range(10))
    return chance.choice([digits, f"{digits[:5]}.{digits[5:]}", f"zq{digits}", f"-{digits}"])


def table_case(chance: random.Random) -> Case:
    planted = [plant(chance) for _ in range(6)]
    name = chance.choice(NAMES)
    content = _binary(name, planted) or _text(chance, planted)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        content = mutated(chance, content, planted)
    if name.endswith("gz"):
        content = gzip.compress(content)
        content = mutated(chance, content, planted) if chance.random() < 0.3 else content
    options = {"drop_extra": chance.random() < 0.3}
    if name.endswith(("csv", "tsv", "gz")):
        options["header"] = chance.choice([None, None, True, False])
    return Case(name, content, chance.choice(SCHEMAS), options, planted)


def schema_case(chance: random.Random) -> Case:
    planted = [plant(chance) for _ in range(4)]
    a, b, c, d = planted
    toml = (
        f'[columns.age]\nkind = "integer"\nmin = {a}\nmax = {b}\n[columns.sex]\n'
        f'kind = "categorical"\ncategories = ["{c}", "{d}"]\nunit = "{a}"\nother = "{c}"\n'
    )
    if chance.random() < 0.5:
        rules = f"""target = "sex"\nconstraints = ["age >= {a}", "sex = '{c}' -> age < {b}"]\n"""
        toml = rules + toml + f"[columns.gain]\nkind = 'continuous'\nspikes = [{a}, {b}]\n"
    json = (
        f'{{"columns": {{"age": {{"kind": "continuous", "min": {a}, "max": {b}}},\n'
        f'"sex": {{"kind": "categorical", "categories": ["{c}", "{d}"]}}}}}}'
    )
    # a table where a schema is expected
    rows = f"age,dose\n{a},{b}\n{c},{d}\n"
    name = chance.choice(["s.toml", "s.json"])
    text = rows if chance.random() < 0.2 else {"s.toml": toml, "s.json": json}[name]
    content = text.encode()
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        content = mutated(chance, content, planted)
    return Case(name, content, None, {}, planted)


def mutated(chance: random.Random, content: bytes, planted: list[str]) -> bytes:
    at = chance.randrange(len(content) + 1)
    until = min(len(content), at + chance.choice([0, 1, 1, 3, 20, 1000]))
    piece = chance.choice(
        [
            chance.choice(PIECES),
            chance.choice(PIECES),
            chance.choice(planted).encode(),
            chance.randbytes(chance.choice([1, 2, 8])),
            content[at:until] * chance.choice([2, 3, 50]),
            b"",
        ]
    )
    return content[:at] + piece + content[until:]


def _text(chance: random.Random, planted: list[str]) -> bytes:
    delimiter = chance.choice(",;\t|")
    rows = [["age", "dose"], *([chance.choice(planted), chance.choice(planted)] for _ in range(5))]
    if chance.random() < 0.3:
        # without a header the first line is a row
        del rows[0]
    if chance.random() < 0.3:
        rows[-1] = ["30", "1.5"]
    end = chance.choice(["\n", "\r\n", "\r"])
    text = "".join(delimiter.join(row) + end for row in rows)
    return text.encode(chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le"]))


def _binary(name: str, planted: list[str]) -> bytes:
    columns = {"age": planted[:3], "dose": planted[3:], planted[0]: planted[:3]}
    makers = {"t.parquet": parquet, "t.arrow": stream, "t.feather": feather}
    return makers[name](**columns) if name in makers else b""

"""Whatever a file holds, one line comes out, and nothing that was planted in it."""

import random
import re
import secrets
import time
import traceback

import pytest

from dpflows.errors import InputError
from dpflows.table import Schema, read_file
from table.bad_files import MIXED, ONE, TWO, feather, parquet
from table.fuzzing import Case, plant, schema_case, table_case

SECONDS = 5.0

#: The name of a column in a schema file is public, wherever a mutation took it from.
NAMED = re.compile(r"""column ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def _message(read, *arguments, **options) -> str:
    """What a reader says, with all that a traceback would show; nothing if it succeeds."""
    shown = line = ""
    start = time.perf_counter()
    try:
        read(*arguments, **options)
    except InputError as error:
        line, shown = str(error), "".join(traceback.format_exception(error))
    assert time.perf_counter() - start < SECONDS
    assert "\n" not in line
    return shown


def _run(case: Case, folder) -> str:
    path = folder / case.name
    path.write_bytes(case.content)
    if case.name.startswith("s."):
        message = NAMED.sub("", _message(Schema.read, path))
    else:
        message = _message(read_file, path, case.schema, **case.options)
    repeated = [value for value in case.planted if value.strip("-") in message]
    assert repeated == []
    return message


def _fuzz(count: int, folder) -> float:
    """The share of cases that were refused."""
    refused = 0
    for number in range(count):
        seed = secrets.randbits(64)
        chance = random.Random(seed)
        case = (schema_case if number % 4 == 0 else table_case)(chance)
        try:
            refused += bool(_run(case, folder))
        except BaseException:
            print(f"case {number} of seed {seed}: {case}")
            raise
    return refused / count


def test_generated_files_and_schemas(tmp_path):
    assert _fuzz(1_500, tmp_path) > 0.5


@pytest.mark.long
def test_many_generated_files_and_schemas(tmp_path):
    assert _fuzz(10_000, tmp_path) > 0.5


def _quoting(path, schema):
    raise InputError(f"could not read {path.read_text().splitlines()[1]}")


def _chaining(path, schema):
    try:
        float(path.read_text().splitlines()[1])
    except ValueError:
        raise InputError("could not read")  # noqa: B904 - the planted bug


@pytest.mark.parametrize("careless", [_quoting, _chaining])
def test_the_search_for_planted_values_has_power(careless, tmp_path, monkeypatch):
    """A reader that passes on its library's words, or lets them cling on, is caught."""
    monkeypatch.setitem(globals(), "read_file", careless)
    with pytest.raises(AssertionError, match="4711"):
        _run(Case("t.csv", b"age,dose\n4711,x\n", TWO, {}, ["4711"]), tmp_path)


#: Ways in which a planted value makes a file bad.
TRAPS = {
    "a bad cell": lambda v: ("t.csv", f"age,dose\n1,2\n{v}x,3\n", TWO),
    "a bad cell beside": lambda v: ("t.csv", f"age,dose\n{v},many\n", TWO),
    "a first line that is a row": lambda v: ("t.csv", f"{v},2\n1,2\n", TWO),
    "the same without schema": lambda v: ("t.csv", f"x{v},{v.strip('zq')}\n1,2\n", None),
    "a first line of words": lambda v: ("t.csv", f"x{v},y\n1,2\n", TWO),
    "extra columns": lambda v: ("t.csv", f"age,dose,x{v}\n1,2,{v}\n", TWO),
    "repeated names": lambda v: ("t.csv", f"x{v},x{v}\n1,2\n", None),
    "a long row": lambda v: ("t.csv", f"age,dose\n1,2,{v}\n", TWO),
    "an open quote": lambda v: ("t.csv", f'age,dose\n1,"{v}\n', TWO),
    "a fraction": lambda v: ("t.csv", f"age,dose\n0.{v.strip('zq-')},1\n", TWO),
    "an infinity": lambda v: ("t.csv", f"age,dose\n1,1e{v.strip('zq-').replace('.', '')}\n", TWO),
    "a gap beside": lambda v: ("t.csv", f"age,dose\n{v.strip('zq-').replace('.', '')},\n", TWO),
    "gaps without schema": lambda v: ("t.csv", f"x{v},y\n,2\n1,2\n", None),
    "a bad label": lambda v: ("t.csv", f"sex,alive,seen\n{v},{v},{v}\n", MIXED),
    "a bad date": lambda v: ("t.csv", f"sex,alive,seen\nF,1,{v}\n", MIXED),
    "a control": lambda v: ("t.csv", f"age,dose\n1,{v}\x01\n", TWO),
    "one column": lambda v: ("t.csv", f"dose\n{v}y\n", ONE),
    "parquet": lambda v: ("t.parquet", parquet(age=[v + "x"], dose=[v]), TWO),
    "parquet names": lambda v: ("t.parquet", parquet(**{v: [1], "age": [1], "dose": [1]}), TWO),
    "feather": lambda v: ("t.feather", feather(age=[1], dose=[v + "x"]), TWO),
    "gzip": lambda v: ("t.csv.gz", f"age,dose\n{v},1\n", TWO),
    "toml": lambda v: ("s.toml", f'[columns.a]\nkind = "x{v}"\n', None),
    "toml keys": lambda v: ("s.toml", f'[columns.a]\nkind = "boolean"\n"k{v}" = 1\n', None),
    "toml rows": lambda v: ("s.toml", f"a,b\n{v},{v}\n", None),
    "json": lambda v: ("s.json", f'{{"columns": {{"a": {{"kind": ["{v}"]}}}}}}', None),
    "json rows": lambda v: ("s.json", f"[{{'a': {v}}}]", None),
}


def test_planted_values_never_come_back(tmp_path):
    """Three hundred values, each in a trap in turn; every trap must spring."""
    chance = random.Random(secrets.randbits(64))
    for number in range(300):
        value = plant(chance)
        trap = list(TRAPS)[number % len(TRAPS)]
        name, content, schema = TRAPS[trap](value)
        content = content if isinstance(content, bytes) else content.encode()
        case = Case(name, content, schema, {}, [value.strip("zq-")])
        assert _run(case, tmp_path), f"{trap} did not spring"

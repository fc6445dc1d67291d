"""Schema files: what is written is read back, and mistakes are named."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from dpflows.errors import InputError
from dpflows.table import Column, Schema, TextFormat
from dpflows.table.columns import Constraint
from dpflows.table.schema import MAX_BYTES
from table.generated import build, schemas


# files are synced to the disk, which takes as long as it takes
@settings(deadline=None)
@given(parts=schemas())
def test_toml_round_trip(parts, tmp_path_factory):
    schema = build(parts)
    path = tmp_path_factory.mktemp("schemas") / "s.toml"
    schema.write(path)
    assert Schema.read(path) == schema


@settings(deadline=None)
@given(parts=schemas())
def test_json_round_trip(parts, tmp_path_factory):
    schema = build(parts)
    path = tmp_path_factory.mktemp("schemas") / "s.json"
    schema.write(path)
    assert Schema.read(path) == schema


@given(parts=schemas())
def test_dictionary_round_trip_keeps_order_when_keys_are_sorted(parts):
    schema = build(parts)
    text = json.dumps(schema.to_dict(), sort_keys=True)
    assert Schema.from_dict(json.loads(text)) == schema


def test_the_file_of_the_documentation(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        """
        [columns.age]
        kind = "integer"        # continuous | integer | categorical | boolean | date
        min = 0
        max = 120
        nullable = false
        [columns.sex]
        kind = "categorical"
        categories = ["F", "M"]
        [columns.seen]
        kind = "date"
        min = 2020-01-01
        max = 2021-01-01T12:00:00
        [columns.born]
        kind = "date"
        min = "1900-01-01"
        max = 2021-01-01T02:00:00+02:00
        """
    )
    assert Schema.read(path) == Schema(
        (
            Column("age", "integer", min=0, max=120),
            Column("sex", "categorical", categories=("F", "M")),
            Column("seen", "date", min=1577836800, max=1609502400),
            Column("born", "date", min=-2208988800, max=1609459200),
        )
    )


RICH = Schema(
    (
        Column("sex", "categorical", categories=("F", "M", "rest"), other="rest"),
        Column("gain", "continuous", min=0, max=9, spikes=(0, 4.5)),
        Column("age", "integer", min=0, max=120, spikes=()),
        Column("seen", "date", min=0, max=86400, spikes=(0, 3600), nullable=True),
    ),
    target="sex",
    constraints=(Constraint("age >= 18 -> gain > 0"), Constraint("\"sex\" != 'rest'")),
)


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_spikes_target_and_constraints_survive_their_file(ending, tmp_path):
    RICH.write(tmp_path / f"s.{ending}")
    assert Schema.read(tmp_path / f"s.{ending}") == RICH
    assert Schema.from_dict(json.loads(json.dumps(RICH.to_dict()))) == RICH


WRITTEN = TextFormat(
    delimiter="\t",
    decimal=",",
    thousands="\u202f",
    encoding="latin-1",
    quote="",
    header=False,
    missing=("", "-9", 'a"b'),
    date_formats=("%d.%m.%Y",),
)


@pytest.mark.parametrize("ending", ["toml", "json"])
@pytest.mark.parametrize("text", [WRITTEN, TextFormat(multiline=True)], ids=["many", "one"])
def test_what_is_declared_about_text_survives_its_file(ending, text, tmp_path):
    schema = dataclasses.replace(RICH, text=text)
    schema.write(tmp_path / f"s.{ending}")
    assert Schema.read(tmp_path / f"s.{ending}") == schema
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert schema != RICH


def test_a_schema_that_makes_missing_cells_must_allow_them():
    described = {"columns": {"a": {"kind": "integer"}}, "text": {"unreadable": "missing"}}
    with pytest.raises(
        InputError, match="column 'a'; declare nullable = true there, or unreadable"
    ):
        Schema.from_dict(described)
    described["columns"]["a"]["nullable"] = True
    assert Schema.from_dict(described).text.makes_missing


def test_a_proposal_says_that_it_was_read_off_the_rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("age;dose\n1;2,5\n")
    written = Schema.from_frame(path).to_toml()
    assert "# read off the rows of the file: check every line\n[text]\ndelimiter" in written
    assert written.startswith("# proposed: kinds were told from the table")


def test_what_is_not_declared_is_not_written():
    plain = Schema((Column("age", "integer", min=0, max=120),))
    assert plain.to_toml() == '[columns.age]\nkind = "integer"\nmin = 0\nmax = 120\n'
    assert list(plain.to_dict()) == ["columns", "values_read"]


def test_too_many_rules_are_refused():
    rules = {"columns": {"a": {"kind": "integer"}}, "constraints": ["a > 0"] * 101}
    with pytest.raises(InputError, match="at most 100 rules"):
        Schema.from_dict(rules)


def test_the_schema_of_the_page_on_tables_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    path = tmp_path / "s.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    schema = Schema.read(path)
    assert schema.target == "ill"
    assert len(schema.constraints) == 2
    assert schema.undeclared() == ()


def test_an_undeclared_column_leaves_a_gap_to_fill():
    schema = Schema((Column("dose", "continuous", unit="mg"), Column("sex", "categorical")))
    assert schema.to_toml() == (
        '[columns.dose]\nkind = "continuous"\nunit = "mg"\n'
        "# min =    declare from public knowledge\n# max =    declare from public knowledge\n"
        '\n[columns.sex]\nkind = "categorical"\n'
        "# categories =    declare from public knowledge\n"
    )


def test_values_read_from_rows_are_said_so():
    schema = Schema((Column("dose", "continuous", min=0, max=1),), values_read=True)
    assert schema.to_toml().startswith("# bounds or categories below were read from the rows")
    assert json.loads(schema.to_json())["values_read"] is True


def test_a_file_with_a_mark_at_its_start(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('\ufeff{"columns": {"x": {"kind": "boolean"}}}')
    assert Schema.read(path).names == ("x",)


KEYS = "kind, min, max, nullable, unit, categories, spikes, other"
KNOWN = f"known keys are {KEYS}"
BAD = {
    '[columns.age]\nkind = "integer"\nmn = 4': f"column 'age': unknown key 'mn'; {KNOWN}",
    '[columns.age]\nkind = "integer"\n4711 = 4': f"column 'age': unknown key; {KNOWN}",
    '[column.age]\nkind = "integer"': (
        "schema: unknown key 'column'; known keys are columns, values_read, target, "
        "constraints, text"
    ),
    "[columns.age]\nmin = 1": "column 'age': kind is missing; declare what the column holds",
    "[columns.age]\nkind = 4711": "column 'age': kind must be text",
    "[columns]\nage = 4711": f"column 'age': must be a table of keys: {KEYS}",
    "columns = 4711": "schema must have a part named columns, as in [columns.age]",
    "columns = []": "schema must declare 1 to 50000 columns under [columns.NAME]",
    "columns = [4711]": "schema must have a part named columns, as in [columns.age]",
    'columns = [{kind = "boolean"}]': "column names must be text of 1 to 1000 characters",
    "": "schema must have a part named columns, as in [columns.age]",
    "[columns.age]\nkind = 'integer": "schema file is not valid TOML; correct it",
    "age,dose\n4711,4712": "schema file is not valid TOML at line 1; correct it",
    "[columns.a]\n[columns.a]": "schema file is not valid TOML at line 2; correct it",
    "x = " + "[" * 100_000: "schema file is not valid TOML; correct it",
    '[columns.age]\nkind = "integer"\nmin = nan\nmax = 1': "column 'age': min must be finite",
    '[columns.age]\nkind = "integer"\nmin = [4711]\nmax = 1': "column 'age': min must be a number",
    '[columns.age]\nkind = "integer"\nmin = 4711-01-01\nmax = 1': (
        "column 'age': min must be a number"
    ),
    '[columns.age]\nkind = "integer"\nnullable = 1': "column 'age': nullable must be true or false",
    '[columns.age]\nkind = "integer"\nunit = 1': "column 'age': unit must be text",
    '[columns.age]\nkind = "categorical"\ncategories = "4711"': (
        "column 'age': categories must be a list of labels"
    ),
    '[columns.age]\nkind = "categorical"\ncategories = [4711]': (
        "column 'age': categories must be labels of text"
    ),
    '[columns.age]\nkind = "date"\nmin = 4711\nmax = 4712': (
        "column 'age': min must be a date such as 2020-12-31"
    ),
    '[columns.age]\nkind = "date"\nmin = "2020-01-01"\nmax = "then"': (
        "column 'age': max must be a date such as 2020-12-31"
    ),
    '[columns.age]\nkind = "date"\nmin = 07:30:00\nmax = 2020-01-01': (
        "column 'age': min must be a date such as 2020-12-31"
    ),
    '[columns.age]\nkind = "integer"\nspikes = 4711': (
        "column 'age': spikes must be a list of values"
    ),
    '[columns.age]\nkind = "integer"\nspikes = [4711, true]': (
        "column 'age': spikes must be numbers"
    ),
    '[columns.age]\nkind = "date"\nspikes = [4711]': (
        "column 'age': spikes must be a date such as 2020-12-31"
    ),
    '[columns.age]\nkind = "categorical"\nother = 4711': "column 'age': other must be text",
    'target = 4711\n[columns.age]\nkind = "boolean"': "target must be the name of a column",
    'target = "4711"\n[columns.age]\nkind = "boolean"': "target must be a column of the schema",
    'constraints = "age > 4711"\n[columns.age]\nkind = "integer"': (
        'constraints must be a list of rules such as "start <= end"'
    ),
    'constraints = [4711]\n[columns.age]\nkind = "integer"': (
        'constraints must be a list of rules such as "start <= end"'
    ),
    'constraints = ["4711 > age"]\n[columns.age]\nkind = "integer"': (
        "constraint 1: what stands before '>' must be a column of the schema"
    ),
    'constraints = ["age 4711"]\n[columns.age]\nkind = "integer"': (
        "constraint must read like: start <= end, or: pregnant = true -> sex = F"
    ),
    'values_read = 1\n[columns.age]\nkind = "boolean"': "values_read must be true or false",
    "#" * (MAX_BYTES + 1): "schema file must hold at most 8388608 bytes; is it the table?",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:40])
def test_a_bad_file_gives_its_line(text, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Schema.read(path)
    assert str(caught.value) == BAD[text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"columns": {}, "columns": {}}', "schema file is not valid JSON; correct it"),
        (b'{"columns"', "schema file is not valid JSON at line 1; correct it"),
        (b"[4711]", "schema must be a table with a part named columns"),
        (b"\xff\xff", "schema file must be UTF-8 text; save it as such"),
        (b'{"columns": {"": {"kind": "boolean"}}}', "column names must be text"),
        (b'{"columns": {"\\ud800": {"kind": "boolean"}}}', "column names must be text"),
        (b'{"columns": {"a": {"kind": "integer", "min": 1e999, "max": 1}}}', "min must be finite"),
        (b'{"columns": {"a": {"kind": "integer", "min": ' + b"9" * 5000 + b"}}}", "not valid JSON"),
        (b"[" * 100_000, "schema file is not valid JSON; correct it"),
    ],
)
def test_bad_json(content, message, tmp_path):
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Schema.read(path)


def test_paths_that_are_no_schema_files(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    cases = {
        "s.yaml": "must end in .toml or .json",
        "absent.toml": "no such file; check the path",
        "folder.toml": "not a regular file; check the path",
        "nul\0.toml": "check the path",
    }
    for name, message in cases.items():
        with pytest.raises(InputError, match=message):
            Schema.read(tmp_path / name)


def test_a_schema_that_could_not_be_read_back_is_not_written(tmp_path):
    labels = tuple(f"{i:0>900}" for i in range(10_000))
    schema = Schema((Column("x", "categorical", categories=labels),))
    with pytest.raises(InputError, match="schema is too large"):
        schema.write(tmp_path / "s.toml")
    assert list(tmp_path.iterdir()) == []

"""A kind of column from outside the package is read, fitted, drawn and judged like any other.

Durations, written ``HH:MM:SS``, and sizes, which are labels with an order, touch nothing but the
registry of kinds.
"""

import re
from typing import final

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpflows import DPAutoregressive, load
from dpflows.errors import InputError
from dpflows.evaluation.measures import Subject
from dpflows.evaluation.report import evaluate
from dpflows.privacy.randomness import Entropy
from dpflows.table import Column, Schema, read_file, read_table
from dpflows.table.bins import LabelBins
from dpflows.table.kinds import KINDS, register
from dpflows.table.kinds.base import marked, words_of
from dpflows.table.kinds.labels import Labelled
from dpflows.table.kinds.numbers import Whole
from dpflows.table.raw import TEXT

HOUR = 3600


@final
class Duration(Whole):
    """How long something took, in whole seconds."""

    name = "duration"
    dtype = np.float64
    nothing = np.nan
    precedence = 35
    widest = (0.0, 1e9)
    range_form = "between 0 and 1e9 seconds"
    unit_form = "whole seconds"
    bound_form = spikes_form = "a duration such as 01:30:00"
    operand_form = "a duration such as 01:30:00 or a column of durations"

    @property
    def readers(self):
        return {TEXT: self._of_text}

    @classmethod
    def _of_text(cls, cells, text):
        words, places = words_of(cells, text)
        seconds = np.array([np.nan, *(_seconds(word) for word in words)])
        values = seconds[places + 1]
        return marked(values, (places >= 0) & np.isnan(values))

    def expected(self, text):
        return "durations such as 01:30:00"

    @classmethod
    def read_bound(cls, value):
        seconds = _seconds(value) if isinstance(value, str) else np.nan
        return None if np.isnan(seconds) else seconds

    def describe_bound(self, value):
        return _written(value)

    def operand(self, text):
        return self.read_bound(text)

    def to_arrow(self, values):
        words = [None if np.isnan(value) else _written(value) for value in values]
        return pa.array(words, pa.large_string())

    @property
    def pandas_type(self):
        return "str"

    @classmethod
    def proposed_by_text(cls, cells, text):
        return None if cls._of_text(cells, text)[1].any() else {}

    def shown(self, number):
        return "any" if np.isinf(number) else _written(number)


@final
class Size(Labelled):
    """The size of a shirt."""

    name = "size"
    operand_form = "a size"

    @property
    def readers(self):
        return {TEXT: lambda cells, text: self._of_words(*words_of(cells, text))}

    def _of_words(self, words, places):
        known = np.array([None, *(word if word in self.labels else None for word in words)], object)
        return marked(known[places + 1], (places >= 0) & (known[places + 1] == None))  # noqa: E711

    def expected(self, text):
        return "sizes"

    def numbers(self, values):
        ranks = [np.nan if v is None else self.labels.index(v) for v in values.tolist()]
        return np.array(ranks, np.float64)

    def bins(self):
        return LabelBins(self.column.name, self.labels, nullable=self.column.nullable)

    @property
    def labels(self):
        return ("S", "M", "L")

    def operand(self, text):
        return text if text in self.labels else None

    def to_arrow(self, values):
        return pa.array(values, pa.large_string())


def _seconds(word):
    found = re.fullmatch(r"(\d{1,5}):([0-5]\d):([0-5]\d)", word, re.ASCII)
    return np.nan if found is None else float(np.dot([HOUR, 60, 1], list(map(int, found.groups()))))


def _written(seconds):
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


SCHEMA = """
target = "ill"
constraints = ["stay >= '00:00:10'"]

[columns.stay]
kind = "duration"
min = "00:00:00"
max = "48:00:00"
nullable = true
spikes = ["24:00:00"]

[columns.shirt]
kind = "size"

[columns.ill]
kind = "boolean"
"""


@pytest.fixture(scope="module", autouse=True)
def _registered():
    for kind in (Duration, Size):
        register(kind)
    yield
    for kind in (Duration, Size):
        del KINDS[kind.name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A schema file and a text file of rows."""
    place, rng = tmp_path_factory.mktemp("durations"), np.random.default_rng()
    stays = [_written(s) for s in rng.integers(10, 48 * HOUR, 400)]
    stays[3], stays[5] = "24:00:00", ""
    rows = {"stay": stays, "shirt": rng.choice(["S", "M", "L"], 400), "ill": rng.random(400) < 0.3}
    pd.DataFrame(rows).to_csv(place / "rows.csv", index=False)
    (place / "schema.toml").write_text(SCHEMA)
    return place


@pytest.fixture(scope="module")
def model(folder):
    schema = Schema.read(folder / "schema.toml")
    fitted = DPAutoregressive(2.0, 1e-5, schema=schema, steps=3, insecure_test_seed=1)
    fitted.fit(folder / "rows.csv").save(folder / "model.dpflow")
    return load(folder / "model.dpflow")


def test_a_schema_file_knows_the_kind(folder, tmp_path):
    schema = Schema.read(folder / "schema.toml")
    stay = schema.column("stay")
    assert (stay.min, stay.max, stay.spikes) == (0.0, 48.0 * HOUR, (24.0 * HOUR,))
    for ending in (".toml", ".json"):
        schema.write(tmp_path / f"again{ending}")
        assert Schema.read(tmp_path / f"again{ending}") == schema
    gap = Schema((Column("stay", "duration"),))
    assert gap.undeclared() == ("stay",)
    assert "# min =" in gap.to_toml()


def test_cells_are_read_one_by_one(folder):
    table = read_file(folder / "rows.csv", Schema.read(folder / "schema.toml"))
    stays = table.columns["stay"]
    assert stays[3] == 24 * HOUR
    assert np.isnan(stays[5])
    assert np.isfinite(np.delete(stays, 5)).all()
    assert set(table.columns["shirt"]) == {"S", "M", "L"}


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["01:61:00"], "must hold durations such as 01:30:00, got 1 cell of another form"),
        ([None], "must be filled, got 1 cell without a value"),
        ([5.0], "must hold durations"),
    ],
)
def test_what_is_no_duration_is_refused_without_quoting_it(cells, message):
    schema = Schema((Column("stay", "duration", min=0, max=HOUR),))
    with pytest.raises(InputError, match=message) as refused:
        read_table(pd.DataFrame({"stay": np.array(cells, object)}), schema)
    assert "61" not in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"min": 0, "max": 0.5}, "whole seconds"),
        ({"min": -1, "max": 5}, "must lie between 0 and 1e9 seconds"),
        ({"categories": ("a",)}, "categories do not belong to a duration column"),
        ({"min": 0, "max": 9, "spikes": (10,)}, "between min and max"),
    ],
)
def test_a_declaration_is_checked(parts, message):
    with pytest.raises(InputError, match=message):
        Column("stay", "duration", **parts)


def test_a_table_without_a_schema_is_proposed_one(folder):
    proposed = Schema.from_frame(folder / "rows.csv")
    assert [column.kind for column in proposed.columns] == ["duration", "categorical", "boolean"]
    read = Schema.from_frame(folder / "rows.csv", read_values=True).column("stay")
    assert 10 <= read.min < read.max < 48 * HOUR


def test_bounds_are_found_for_a_share_of_the_budget(folder):
    schema = Schema((Column("stay", "duration", nullable=True), Column("ill", "boolean")))
    rows = pd.read_csv(folder / "rows.csv")[["stay", "ill"]]
    rows = pd.concat([rows] * 20)
    model = DPAutoregressive(5.0, 1e-5, schema=schema, steps=2, discover=0.2).fit(rows)
    found = model.encoding_.schema.column("stay")
    assert found.min.is_integer()
    assert 0 <= found.min < found.max


def test_rows_come_out_as_they_went_in(model, folder):
    drawn = model.sample(300).to_pandas()
    table = read_table(drawn, model.encoding_.schema)
    assert table.outside == 0
    assert np.nanmin(table.columns["stay"]) >= 10
    assert set(drawn["shirt"]) <= {"S", "M", "L"}
    given = model.sample(20, conditions={"stay": "24:00:00", "shirt": "M"}).to_pandas()
    assert set(given["stay"]) == {"24:00:00"}
    scores = model.score_samples(folder / "rows.csv")
    assert np.isfinite(scores).all()


def test_a_fit_is_judged(model, folder):
    table = read_table(folder / "rows.csv", model.encoding_.schema)
    subject = Subject.of(model, table, Entropy.from_os())
    figures = evaluate(subject)
    assert set(figures["total-variation"]) == {"stay", "shirt", "ill"}
    names = subject.codings(4)["stay"].names
    assert all(re.search(r"\d\d:\d\d:\d\d|missing", name) for name in names)
    assert subject.codings(4)["shirt"].names == ("S", "M", "L")


def test_a_name_is_registered_once():
    with pytest.raises(InputError, match="already; choose another"):
        register(Duration)

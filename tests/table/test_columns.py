"""What a column may declare."""

import math

import pytest

from dpflows.errors import InputError
from dpflows.table import KINDS, Column


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_declared_later(kind):
    column = Column("x", kind)
    assert column.is_declared == (kind == "boolean")


def test_bounds_are_numbers_however_they_came():
    column = Column("x", "integer", min=-0.0, max=3)
    assert (column.min, column.max) == (0.0, 3.0)
    assert math.copysign(1, column.min) == 1


def test_declared_by_bounds_or_categories():
    assert Column("x", "continuous", min=0, max=1).is_declared
    assert Column("x", "date", min=0, max=86400).is_declared
    assert Column("x", "categorical", categories=("a", "b")).is_declared


@pytest.mark.parametrize("kind", ["integer", "date"])
def test_whole_numbers_and_dates_may_be_constant(kind):
    assert Column("x", kind, min=5, max=5).is_declared


def test_spikes_are_numbers_however_they_came():
    column = Column("x", "integer", min=-1, max=3, spikes=(-0.0, 3))
    assert column.spikes == (0.0, 3.0)
    assert math.copysign(1, column.spikes[0]) == 1


def test_spikes_and_other_may_come_before_what_is_discovered():
    assert Column("x", "integer", spikes=(0, 99)).within(-5, 5).spikes == (0.0,)
    assert Column("x", "integer", spikes=()).within(-5, 5).spikes == ()
    assert Column("x", "integer").within(-5, 5).spikes is None
    assert not Column("x", "categorical", other="rest").is_declared


BAD = {
    "kind must be one of continuous, integer, categorical, boolean, date": {"kind": "number"},
    "min equals max, so the column is constant; drop the column": {"min": 1, "max": 1},
    "min must be below max": {"min": 2, "max": 1},
    "min and max must be declared together": {"min": 2},
    "min must be finite": {"min": -math.inf, "max": 1},
    "max must be finite": {"min": 0, "max": 10**400},
    "max must be a number": {"min": 0, "max": True},
    "min must be a number": {"min": "0", "max": 1},
    "max - min must lie between 1e-300 and 1e308": {"min": -1.7e308, "max": 1.7e308},
    "min and max of integer columns must be whole numbers": {
        "kind": "integer",
        "min": 0.5,
        "max": 2,
    },
    "min and max of integer columns must lie within 1e15 of zero": {
        "kind": "integer",
        "min": 0,
        "max": 1e16,
    },
    "min and max of date columns must be whole seconds": {"kind": "date", "min": 0, "max": 0.5},
    "min and max must lie in the years 1 to 9999": {"kind": "date", "min": 0, "max": 1e12},
    "min does not belong to a categorical column; remove it": {"kind": "categorical", "min": 0},
    "max does not belong to a boolean column; remove it": {"kind": "boolean", "max": 0},
    "categories do not belong to a continuous column; remove them": {"categories": ("a",)},
    "categories must not repeat a label": {"kind": "categorical", "categories": ("a", "a")},
    "categories must hold 1 to 10000 labels": {"kind": "categorical", "categories": ()},
    "categories must be labels of text": {"kind": "categorical", "categories": ("\ud800",)},
    "spikes do not belong to a boolean column; remove them": {"kind": "boolean", "spikes": (0,)},
    "spikes must be at most 100 values": {"min": 0, "max": 999, "spikes": tuple(range(101))},
    "spikes must be finite": {"min": 0, "max": 1, "spikes": (math.inf,)},
    "spikes must not repeat a value": {"min": 0, "max": 1, "spikes": (0, -0.0)},
    "spikes must lie between min and max": {"min": 0, "max": 1, "spikes": (0, 2)},
    "spikes of integer columns must be whole numbers": {"kind": "integer", "spikes": (0.5,)},
    "spikes of date columns must be whole seconds": {"kind": "date", "spikes": (0.5,)},
    "other does not belong to a continuous column; remove it": {"other": "rest"},
    "other must be one of the categories": {
        "kind": "categorical",
        "categories": ("a",),
        "other": "rest",
    },
    "other must be a label of 1 to 1000 characters": {"kind": "categorical", "other": ""},
    "unit must be text of at most 1000 characters": {"unit": "m" * 1001},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_column_says_what_is_wrong(message):
    # from a description, as a file would give it: types are the file's, not ours
    from dpflows.table import Schema

    entry = {"kind": "continuous"} | BAD[message]
    if entry["kind"] == "date":
        with pytest.raises(InputError) as caught:
            Column("x", **entry)
    else:
        entry = {k: list(v) if isinstance(v, tuple) else v for k, v in entry.items()}
        with pytest.raises(InputError) as caught:
            Schema.from_dict({"columns": {"x": entry}})
    assert str(caught.value) == f"column 'x': {message}"


@pytest.mark.parametrize("name", ["", "x" * 1001, "\ud800"])
def test_a_bad_name(name):
    with pytest.raises(InputError, match="column names must be text of 1 to 1000 characters"):
        Column(name, "boolean")

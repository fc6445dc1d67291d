"""Schemas in memory."""

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.table import Column, Schema
from dpflows.table.columns import Constraint

AGE = Column("age", "integer", min=0, max=120)
DOSE = Column("dose", "continuous")


def test_names_bounds_and_gaps():
    schema = Schema((AGE, DOSE, Column("sex", "categorical")))
    assert schema.names == ("age", "dose", "sex")
    assert schema.undeclared() == ("dose", "sex")
    np.testing.assert_array_equal(schema.lows(), [0, np.nan, np.nan])
    np.testing.assert_array_equal(schema.highs(), [120, np.nan, np.nan])


def test_with_bounds_changes_one_column_and_nothing_else():
    schema = Schema((AGE, DOSE), values_read=True).with_bounds("dose", -1, 1)
    assert schema.column("dose") == Column("dose", "continuous", min=-1, max=1)
    assert schema.column("age") == AGE
    assert schema.values_read


@pytest.mark.parametrize(
    ("schema", "is_mixed"),
    [
        (Schema((AGE, DOSE)), False),
        (Schema((Column("age", "integer", min=5, max=5),)), False),
        (Schema((Column("age", "integer", spikes=()),)), False),
        (Schema((Column("age", "integer", spikes=(0,)),)), True),
        (Schema((Column("age", "integer", nullable=True),)), True),
        (Schema((AGE,), target="age"), False),
        (Schema((DOSE,), target="dose"), False),
        (Schema((Column("ill", "integer", min=0, max=1),), target="ill"), True),
        (Schema((AGE,), constraints=(Constraint("age > 3"),)), True),
        *((Schema((Column("x", kind),)), True) for kind in ("categorical", "boolean", "date")),
    ],
)
def test_what_makes_a_schema_mixed(schema, is_mixed):
    assert schema.is_mixed == is_mixed


def test_hints_pass_estimators_of_numbers_and_promises_do_not():
    Schema((Column("age", "integer", spikes=(0,)),), target="age").require_numeric()
    promising = Schema((AGE,), constraints=(Constraint("age > 3"),))
    promising.require_numbers()
    with pytest.raises(InputError, match="constraints are not yet supported by this estimator"):
        promising.require_numeric()


def test_a_target_is_a_column():
    with pytest.raises(InputError, match="target must be a column of the schema"):
        Schema((AGE,), target="dose")


def test_an_unknown_column_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match="no such column; it has 'age', 'dose'"):
        Schema((AGE, DOSE)).column("height")


def test_labels_name_declared_columns_and_count_the_others():
    assert Schema((AGE, DOSE)).label("dose") == "column 'dose'"
    assert Schema((AGE, DOSE), names_read=True).label("dose") == "column number 2"


@pytest.mark.parametrize(
    ("columns", "message"),
    [((), "at least one column"), ((AGE, AGE), "two columns of one name")],
)
def test_bad_schemas(columns, message):
    with pytest.raises(InputError, match=message):
        Schema(columns)


@pytest.mark.parametrize(
    ("low", "high", "names", "expected"),
    [
        ([0, 1], [2, 3], None, ("x0", "x1")),
        (0, [2, 3], ["a", "b"], ("a", "b")),
        (0, 1, ["a", "b", "c"], ("a", "b", "c")),
        (np.zeros(2), 1.5, ("a", "b"), ("a", "b")),
    ],
)
def test_from_bounds(low, high, names, expected):
    schema = Schema.from_bounds(low, high, names)
    assert schema.names == expected
    assert (schema.lows() < schema.highs()).all()
    assert not schema.values_read


@pytest.mark.parametrize(
    ("low", "high", "names", "message"),
    [
        (0, 1, None, "for plain numbers, pass names too"),
        ([0, 1], [1, 2, 3], None, "numbers or one per column"),
        ([0, 1], 2, ["a"], "numbers or one per column"),
        ("low", "high", None, "numbers or one per column"),
        ([[0]], 1, None, "one per column"),
        ([0, 1], [1, 1], None, "column 'x1': min equals max"),
        ([0, np.nan], 1, None, "column 'x1': min must be finite"),
        ([], [], None, "at least one column"),
        ([0, 0], 1, [1, 2], "column names must be text"),
    ],
)
def test_bad_bounds(low, high, names, message):
    with pytest.raises(InputError, match=message):
        Schema.from_bounds(low, high, names)

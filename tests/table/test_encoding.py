"""Rows become points of the declared box, and come back."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.table import Column, Encoding, Schema, read_table
from table.generated import build, numeric_schemas

SCHEMA = Schema(
    (
        Column("age", "integer", min=0, max=120),
        Column("dose", "continuous", min=0, max=9),
        Column("visits", "integer", min=1, max=3),
    )
)


def _uniforms(count: int) -> np.ndarray:
    return np.random.default_rng().random(count)


def _table(rows, schema=SCHEMA):
    return read_table(np.array(rows, dtype=float), schema)


def test_the_box_is_the_bounds_and_half_a_unit_for_integers():
    encoding = Encoding(SCHEMA)
    assert encoding.low.tolist() == [-0.5, 0, 0.5]
    assert encoding.high.tolist() == [120.5, 9, 3.5]
    with pytest.raises(ValueError, match="read-only"):
        encoding.low[0] = 1


def test_cells_outside_move_to_the_nearest_bound():
    table = _table([[-5, -1, 0], [500, 1e308, 9]])
    points = Encoding(SCHEMA).encode(table, lambda count: np.full(count, 0.5))
    assert points.tolist() == [[0, 0, 1], [120, 9, 3]]
    assert table.outside == 6


def test_uniforms_are_asked_once_and_dealt_row_by_row():
    asked = []

    def uniforms(count):
        asked.append(count)
        return np.arange(count) / count

    points = Encoding(SCHEMA).encode(_table([[10, 1, 2]] * 2), uniforms)
    assert asked == [4]
    np.testing.assert_allclose(points, [[9.5, 1, 1.75], [10, 1, 2.25]])


def test_other_rows_do_not_change_a_row():
    """Only the rows' order decides who gets which random number."""
    fixed = np.random.default_rng().random(1000)
    rows = np.array([[10, 1.0, 2], [20, 2, 3], [30, 3, 1]])
    changed = rows.copy()
    changed[1] = [120, 1e9, -7]
    encoding = Encoding(SCHEMA)
    first, second = (encoding.encode(_table(r), lambda n: fixed[:n]) for r in (rows, changed))
    np.testing.assert_array_equal(first[[0, 2]], second[[0, 2]])


def test_continuous_tables_ask_for_no_random_numbers():
    def refuse(count):
        raise AssertionError

    schema = Schema.from_bounds([0, 0], 1)
    points = Encoding(schema).encode(_table([[0.5, 2]], schema), refuse)
    assert points.tolist() == [[0.5, 1]]


def test_scores_are_read_at_the_centres_and_outside_the_box_if_the_row_is():
    rows = [[10, 1.5, 2], [500, -1, 0]]
    assert Encoding(SCHEMA).score_points(_table(rows)).tolist() == rows


def test_the_dither_is_even():
    """Kolmogorov-Smirnov at 1e-6 false alarms; halving the dither must be rejected."""
    from scipy import stats

    schema = Schema((Column("x0", "integer", min=0, max=9),))
    points = Encoding(schema).encode(_table([[4]] * 20_000, schema), _uniforms)[:, 0] - 3.5
    assert stats.kstest(points, "uniform").pvalue > 1e-6
    assert stats.kstest(0.25 + points / 2, "uniform").pvalue < 1e-6


@given(parts=numeric_schemas(), data=st.data())
def test_encode_and_decode(parts, data):
    schema = build(parts)
    encoding = Encoding(schema)
    rows = np.array(
        [[data.draw(_cells(column)) for column in parts[0]] for _ in range(data.draw(_COUNT))]
    )
    extreme = data.draw(st.sampled_from([0.0, 0.5, np.nextafter(0.5, 0), np.nextafter(1.0, 0)]))
    points = encoding.encode(_table(rows, schema), lambda count: np.full(count, extreme))
    assert ((encoding.low <= points) & (points <= encoding.high)).all()
    cells = np.column_stack(list(encoding.decode(points).values()))
    np.testing.assert_array_equal(cells, np.clip(rows, schema.lows(), schema.highs()))


_COUNT = st.integers(1, 4)


def _cells(column):
    if column["kind"] == "integer":
        return st.integers(int(column["min"]) - 2, int(column["max"]) + 2).map(float)
    return st.floats(-1e305, 1e305) | st.sampled_from([column["min"], column["max"]])


@given(parts=numeric_schemas(), fraction=st.floats(-1, 2))
def test_whatever_is_decoded_lies_inside_the_bounds(parts, fraction):
    schema = build(parts)
    encoding = Encoding(schema)
    wide = encoding.low / 4 + fraction * (encoding.high / 4 - encoding.low / 4)
    columns = encoding.decode(4 * wide[None])
    assert read_table(pd.DataFrame(columns), schema).outside == 0


def test_halves_are_rounded_upward_and_numbers_just_below_are_not():
    schema = Schema((Column("x0", "integer", min=-5, max=5),))
    points = np.array([[0.5], [np.nextafter(0.5, 0)], [-0.5], [np.nextafter(-0.5, -1)], [5.5]])
    assert Encoding(schema).decode(points)["x0"].tolist() == [1, 0, 0, -1, 5]


def test_undeclared_columns_fail_closed():
    schema = Schema((Column("age", "integer"), Column("dose", "continuous")))
    with pytest.raises(InputError) as caught:
        Encoding(schema)
    assert str(caught.value) == (
        "bounds are not declared for column 'age', 'dose', and must not be read from private "
        "rows: declare min and max in the schema (or bounds=(low, high)), or let a share of "
        "epsilon discover them (discover=0.1, --discover 0.1)"
    )


def test_names_that_came_with_a_table_are_not_shown():
    schema = read_table(pd.DataFrame({"smith": [1.0]})).schema
    with pytest.raises(InputError, match="not declared for column number 1, and"):
        Encoding(schema)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("sex", "categorical", categories=("F",)), "column 'sex' is categorical: not yet"),
        (Column("x", "integer", min=0, max=1, nullable=True), "column 'x' is nullable: not yet"),
    ],
)
def test_what_is_not_yet_modelled_is_said(column, message):
    with pytest.raises(InputError, match=message):
        Encoding(Schema((column,)))


def test_a_table_of_another_schema():
    other = Schema.from_bounds([0, 0, 0], 9)
    with pytest.raises(InputError, match="read with the schema of the encoding"):
        Encoding(SCHEMA).encode(_table([[1, 2, 3]], other), _uniforms)
    with pytest.raises(InputError, match="points must have 3 columns"):
        Encoding(SCHEMA).decode(np.zeros((2, 2)))


@pytest.mark.parametrize("drawn", [np.zeros(1), np.full(2, 1.0), np.full(2, -0.1)])
def test_wrong_random_numbers_are_refused(drawn):
    with pytest.raises(InputError, match="uniforms must give"):
        Encoding(SCHEMA).encode(_table([[1, 2, 3]]), lambda count: drawn)

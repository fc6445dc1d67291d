"""The box comes from declarations or from paid discovery, never from the rows alone."""

import numpy as np
import pandas as pd
import pytest

from dpflows import BudgetError, DPGaussian, InputError, Schema
from dpflows.estimators.intake import VALUES_READ_STAMP, Declarations
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column

BUDGET = Budget(1.0, 1e-5)
ROWS = np.random.default_rng(4).normal(3.0, 1.0, size=(2000, 2))
AGES = pd.DataFrame({"age": np.arange(2000) % 90, "dose": ROWS[:, 0]})


def take_in(told, source, budget=BUDGET, seed=1):
    return told.take_in(told.read(source), budget, Entropy.insecure(seed))


def test_an_undeclared_column_is_refused_with_the_two_ways_out():
    with pytest.raises(InputError, match="declare min and max.*discover"):
        take_in(Declarations(None, None, None), ROWS)


def test_discovered_bounds_enclose_the_rows_and_are_paid_for():
    told = Declarations(None, None, 0.2)
    intake = take_in(told, ROWS)
    assert (intake.encoding.low <= np.quantile(ROWS, 0.05)).all()
    assert (intake.encoding.high >= np.quantile(ROWS, 0.95)).all()
    events = told.events(BUDGET, 2)
    assert len(events) == 2
    assert sum(1 / event.scale for event in events) == pytest.approx(0.2)


def test_only_what_is_not_declared_is_discovered():
    schema = Schema((Column("age", "integer", min=0, max=120), Column("dose", "continuous")))
    told = Declarations(schema, None, 0.1)
    assert [event.purpose for event in told.events(BUDGET, 2)] == ["bounds of column 2"]
    assert take_in(told, AGES).encoding.high[0] == 120.5


def test_discovery_that_finds_nothing_says_that_it_is_spent():
    with pytest.raises(BudgetError, match="is spent"):
        take_in(Declarations(None, None, 0.01), ROWS[:3])


def test_a_discovered_fit_stays_within_the_budget():
    model = DPGaussian(1.0, 1e-5, discover=0.2).fit(AGES)
    assert model.guarantee_.is_private
    assert model.guarantee_.epsilon <= 1.0
    assert "bounds of column 1" in {event.purpose for event in model.guarantee_.events}
    assert model.sample(20)["age"].dtype == AGES["age"].dtype


def test_discovered_bounds_are_kept_when_a_run_goes_on():
    told = Declarations(None, None, 0.2)
    table = told.read(ROWS)
    first = told.take_in(table, BUDGET, Entropy.from_os())
    again = told.take_in(table, BUDGET, Entropy.from_os(), found=first.encoding.schema)
    assert again.encoding == first.encoding


def test_bounds_read_from_the_rows_are_stamped():
    schema = Schema.from_frame(AGES, read_values=True)
    model = DPGaussian(1.0, 1e-5, schema=schema).fit(AGES)
    assert VALUES_READ_STAMP in model.guarantee_.stamps
    assert not model.guarantee_.is_private


def test_a_schema_may_be_named_by_its_file(tmp_path):
    path = tmp_path / "schema.toml"
    Schema.from_bounds([0, -5], [120, 10], names=["age", "dose"]).write(path)
    assert DPGaussian(1.0, 1e-5, schema=path).fit(AGES).sample(3).shape == (3, 2)


def test_whole_bounds_keep_integers_and_others_do_not():
    whole, broken = (
        take_in(Declarations(None, bounds, None), AGES).encoding.schema.column("age").kind
        for bounds in ((-10, 120), (-10.5, 120))
    )
    assert (whole, broken) == ("integer", "continuous")


def test_a_dithered_row_does_not_depend_on_its_neighbours():
    told = Declarations(None, (-10, 120), None)
    other = AGES.copy()
    other.loc[0, "age"] = 7
    one, two = (take_in(told, frame).rows for frame in (AGES, other))
    np.testing.assert_array_equal(one[1:], two[1:])


@pytest.mark.parametrize(
    ("schema", "bounds", "discover", "message"),
    [
        (Schema.from_bounds([0], [1]), (0, 1), None, "declare the bounds once"),
        (None, None, 0.0, "discover must be a share"),
        (None, None, 1.0, "discover must be a share"),
    ],
)
def test_contradictions_are_refused(schema, bounds, discover, message):
    with pytest.raises(InputError, match=message):
        Declarations(schema, bounds, discover)

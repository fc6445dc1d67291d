"""The box comes from declarations or from paid discovery, never from the rows alone."""

import numpy as np
import pandas as pd
import pytest

from dpflows import BudgetError, DPGaussian, InputError, Schema
from dpflows.pipeline.domain import VALUES_READ_STAMP, TableSpec
from dpflows.pipeline.plan import Work
from dpflows.privacy.accounting import ACCOUNTANTS
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import statistics
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column

BUDGET = Budget(1.0, 1e-5)
ROWS = np.random.default_rng(4).normal(3.0, 1.0, size=(2000, 2))
AGES = pd.DataFrame({"age": np.arange(2000) % 90, "dose": ROWS[:, 0]})


def spec(*declared, **options):
    return TableSpec.resolve(*declared, **options)


def take_in(told, source, budget=BUDGET, seed=1):
    table = told.read(source)
    stage = told.domain(budget, len(table.schema.columns))
    return stage.run(Work(table, Entropy.insecure(seed)))


def test_an_undeclared_column_is_refused_with_the_two_ways_out():
    with pytest.raises(InputError, match="declare min and max.*discover"):
        take_in(spec(None, None, None), ROWS)


def test_discovered_bounds_enclose_the_rows_and_are_paid_for():
    told = spec(None, None, 0.2)
    intake = take_in(told, ROWS)
    assert (intake.encoding.low <= np.quantile(ROWS, 0.05)).all()
    assert (intake.encoding.high >= np.quantile(ROWS, 0.95)).all()
    events = told.domain(BUDGET, 2).events
    assert len(events) == 2
    assert sum(1 / event.scale for event in events) == pytest.approx(0.2)


def test_only_what_is_not_declared_is_discovered():
    schema = Schema((Column("age", "integer", min=0, max=120), Column("dose", "continuous")))
    told = spec(schema, None, 0.1)
    assert [event.purpose for event in told.domain(BUDGET, 2).events] == ["bounds of column 2"]
    assert take_in(told, AGES).encoding.high[0] == 120.5


def test_discovery_that_finds_nothing_says_that_it_is_spent():
    with pytest.raises(BudgetError, match="is spent"):
        take_in(spec(None, None, 0.01), ROWS[:3])


def test_a_discovered_fit_stays_within_the_budget():
    model = DPGaussian(1.0, 1e-5, discover=0.2).fit(AGES)
    assert model.guarantee_.is_private
    assert model.guarantee_.epsilon <= 1.0
    assert "bounds of column 1" in {event.purpose for event in model.guarantee_.events}
    assert model.sample(20)["age"].dtype == np.float64


def test_discovered_bounds_are_kept_when_a_run_goes_on():
    told = spec(None, None, 0.2)
    stage, work = told.domain(BUDGET, 2), Work(told.read(ROWS), Entropy.from_os())
    first = stage.run(work)
    again = stage.resume(work, stage.keep(first))
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


@pytest.mark.parametrize("last", [5, 5.5, None])
def test_with_bounds_every_column_is_continuous(last):
    """One fraction, or one gap, changes the type that a frame gives all its rows."""
    told = spec(None, (-10, 120), None)
    frames = (pd.DataFrame({"age": [1, 2, last]}), pd.DataFrame({"age": [1, 2, 3]}))
    if last is None:
        with pytest.raises(InputError, match="must be filled"):
            told.read(frames[0])
        return
    one, two = (take_in(told, frame) for frame in frames)
    assert one.encoding == two.encoding
    assert one.table.form == two.table.form
    assert one.encoding.schema.column("age").kind == "continuous"
    np.testing.assert_array_equal(one.rows[:2], two.rows[:2])


def test_lists_are_read_cell_by_cell():
    """An array of one type would write 1.0 where another cell is a word."""
    schema = Schema((Column("a", "categorical"), Column("b", "categorical")))
    one, two = (
        spec(schema, None, 0.1, mixed=True).read([[1.0, True], [2, last]]).columns
        for last in (False, "x")
    )
    assert one["a"].tolist() == two["a"].tolist() == ["1", "2"]
    assert one["b"][0] == two["b"][0] == "true"


def test_a_dithered_row_does_not_depend_on_its_neighbours():
    dose = Column("dose", "continuous", min=-10, max=10)
    schema = Schema((Column("age", "integer", min=-10, max=120), dose))
    told = spec(schema, None, None)
    other = AGES.copy()
    other.loc[0, "age"] = 7
    one, two = (take_in(told, frame).rows for frame in (AGES, other))
    np.testing.assert_array_equal(one[1:], two[1:])


@pytest.mark.parametrize(
    ("schema", "bounds", "discover", "message"),
    [
        (Schema.from_bounds([0], [1]), (0, 1), None, "bounds must be declared only once"),
        (None, None, 0.0, "discover must be a share"),
        (None, None, 1.0, "discover must be a share"),
    ],
)
def test_contradictions_are_refused(schema, bounds, discover, message):
    with pytest.raises(InputError, match=message):
        spec(schema, bounds, discover)


SENTINEL = "one person's label"
PATIENTS = pd.DataFrame(
    {
        "sex": ["F", "M"] * 1000,
        "town": [SENTINEL, *["north", "south", "east", None] * 499, *["west"] * 3],
        "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(2000) % 900, unit="D"),
        "age": pd.array([None, *range(80)] * 24 + [30] * 56, dtype="Int64"),
    }
)
OPEN = Schema(
    (
        Column("sex", "categorical", categories=("F", "M")),
        Column("town", "categorical", nullable=True),
        Column("seen", "date"),
        Column("age", "integer", nullable=True),
    )
)


def settled(schema, *, budget=BUDGET, discover=0.5, seed=3, rows=PATIENTS):
    told = spec(schema, None, discover, mixed=True)
    stage = told.domain(budget, len(schema.columns), mixed=True)
    return stage.run(Work(told.read(rows), Entropy.insecure(seed))).table.schema


def with_other(label):
    return OPEN.with_columns([Column("town", "categorical", nullable=True, other=label)])


def test_categories_and_dates_are_discovered_where_they_are_not_declared():
    found = settled(OPEN)
    assert found.column("town") == Column(
        "town", "categorical", categories=("east", "north", "south"), nullable=True
    )
    seen, age = found.column("seen"), found.column("age")
    first, last = (
        moment.timestamp() for moment in (PATIENTS["seen"].min(), PATIENTS["seen"].max())
    )
    assert seen.min <= first < last <= seen.max
    assert age.nullable
    assert (age.min, age.max) >= (0, 79)
    assert found.column("sex") == OPEN.column("sex")


def test_what_discovery_costs_is_public_and_within_its_share():
    events = spec(OPEN, None, 0.5, mixed=True).domain(BUDGET, 4).events
    assert [event.purpose for event in events] == [
        "categories of column 2",
        "bounds of column 3",
        "bounds of column 4",
    ]
    assert sum(getattr(event, "delta", 0) for event in events) == pytest.approx(0.5e-5)
    profile = ACCOUNTANTS["pld"].profile(events, BUDGET.neighbours)
    # the accountant cuts off tails of its own
    assert profile.epsilon(0.51e-5) <= 0.5 + 1e-3


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_the_releases_of_a_search_are_those_of_its_plan(neighbours, monkeypatch):
    """What the mechanisms say they cost is what the plan said before."""
    from dpflows.pipeline import domain as discovering

    made = []
    for name in ("discover_categories", "private_bounds"):
        mechanism = getattr(discovering, name)
        monkeypatch.setattr(
            discovering,
            name,
            lambda *args, mechanism=mechanism, **options: (
                made.append(mechanism(*args, **options)) or made[-1]
            ),
        )
    budget = Budget(1.0, 1e-5, neighbours)
    settled(OPEN, budget=budget)
    planned = spec(OPEN, None, 0.5, mixed=True).domain(budget, 4).events
    assert tuple(release.event for release in made) == planned


def test_one_persons_label_is_never_found():
    """A label of one row shows with a chance of 5e-6 per run: false alarms in 1 of 10,000."""
    for seed in range(20):
        found = settled(OPEN, seed=seed).column("town").categories
        assert SENTINEL not in found


def test_a_search_without_its_threshold_is_caught(monkeypatch):
    monkeypatch.setattr(statistics, "discovery_threshold", lambda scale, delta: 1)
    found = [settled(OPEN, seed=seed).column("town").categories for seed in range(20)]
    assert any(SENTINEL in labels for labels in found)


def test_rare_labels_count_as_other_only_where_that_is_declared():
    found = settled(with_other("elsewhere")).column("town")
    assert found.categories == ("east", "north", "south", "elsewhere")
    assert found.other == "elsewhere"
    assert settled(with_other("north")).column("town").categories == ("east", "south", "north")


def test_too_many_labels_are_refused_with_advice_or_cut_to_the_frequent_ones(monkeypatch):
    from dpflows.pipeline import domain as discovering

    monkeypatch.setattr(discovering, "MOST_LABELS", 2)
    with pytest.raises(BudgetError, match='more than 2 categories.*declare other = "a label"'):
        settled(OPEN)
    assert len(settled(with_other("elsewhere")).column("town").categories) == 2


def test_categories_that_do_not_stand_out_are_said_to_be_paid_for():
    few = PATIENTS.head(20)
    with pytest.raises(
        BudgetError, match="no categories of column 'town' could be found .*is spent"
    ):
        settled(OPEN, rows=few)
    only = settled(with_other("elsewhere"), rows=few, budget=Budget(1e4, 1e-5))
    assert "elsewhere" in only.column("town").categories


def test_without_privacy_everything_is_read():
    found = settled(OPEN, budget=Budget(float("inf"), 1e-5))
    assert SENTINEL in found.column("town").categories
    assert (found.column("age").min, found.column("age").max) == (0, 79)


def test_undeclared_categories_are_refused_with_the_two_ways_out():
    with pytest.raises(InputError) as caught:
        settled(
            Schema((Column("town", "categorical"),)),
            discover=None,
            rows=PATIENTS[["town"]].dropna(),
        )
    assert "categories are not declared for column 'town'" in str(caught.value)
    assert "declare categories in the schema, or let a share of epsilon" in str(caught.value)
    with pytest.raises(InputError, match="bounds and categories are not.*min and max and categor"):
        settled(OPEN, discover=None)


def test_only_an_estimator_of_mixed_rows_lets_them_in():
    with pytest.raises(InputError, match="not yet supported by this estimator; use DPDensity"):
        spec(OPEN, None, 0.5).read(PATIENTS)
    with pytest.raises(InputError, match="column number 1 must hold numbers, got 2000 cells"):
        spec(None, None, 0.5, mixed=True).read(PATIENTS[["sex"]])


def test_a_constant_integer_column_is_one_of_numbers():
    schema = Schema((Column("one", "integer", min=1, max=1), Column("x", "continuous", -9, 9)))
    rows = pd.DataFrame({"one": 1, "x": ROWS[:, 0]})
    assert not schema.is_mixed
    model = DPGaussian(1.0, 1e-5, schema=schema).fit(rows)
    assert model.sample(50)["one"].tolist() == [1] * 50
    assert np.isfinite(model.score_samples(rows)).all()

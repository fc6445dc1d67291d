"""A flow over mixed kinds: right densities, conditions, constraints, resumed runs."""

import dataclasses
import functools
import time

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pandas as pd
import pytest

from contracts.tables import EVERY_KIND, frame
from dpflows import DPAutoregressive, DPDensity, Ledger, load
from dpflows.errors import BudgetError, InputError
from dpflows.estimators import autoregressive
from dpflows.files import read_model, write_model
from dpflows.models.autoregressive import cell_network
from dpflows.models.mixed import BinShares, MixedDensity
from dpflows.pipeline.marginals import CountMarginals, order_of
from dpflows.privacy.guarantee import Budget
from dpflows.table.columns import Column, Constraint
from dpflows.table.reading import MixedEncoding
from dpflows.table.schema import Schema
from dpflows.training.dp_sgd import Callbacks

FEW = {"steps": 3, "batch_size": 50}
TOY = Schema(
    (
        Column("ill", "boolean"),
        Column("ward", "categorical", categories=("a", "b", "c")),
        Column("visits", "integer", min=0, max=3),
        Column("dose", "continuous", min=0.0, max=10.0, spikes=(0.0,)),
    ),
    target="ill",
)


def toy(rows, rng):
    """Rows whose distribution is known: see ``toy_log_density``."""
    ill = rng.random(rows) < 0.3
    ward = np.where(ill, rng.choice(3, rows, p=[0.6, 0.3, 0.1]), rng.choice(3, rows))
    visits = np.where(ward == 2, 3, rng.integers(0, 3, rows))
    dose = np.where(
        ill, 5 + 5 * rng.random(rows), np.where(rng.random(rows) < 0.5, 0.0, 5 * rng.random(rows))
    )
    return pd.DataFrame(
        {
            "ill": ill,
            "ward": np.array(["a", "b", "c"], object)[ward],
            "visits": visits,
            "dose": dose,
        }
    )


def toy_log_density(rows):
    """Probability of the labels and numbers, times the density or probability of the dose."""
    ill, ward, dose = rows["ill"].to_numpy(), rows["ward"].to_numpy(), rows["dose"].to_numpy()
    chance = np.where(ill, 0.3, 0.7)
    by_ward = np.select([ward == "a", ward == "b"], [0.6, 0.3], 0.1)
    chance = chance * np.where(ill, by_ward, 1 / 3)
    chance = chance * np.where(ward == "c", 1.0, 1 / 3)
    return np.log(chance * np.where(ill, 0.2, np.where(dose == 0, 0.5, 0.1)))


@functools.cache
def learnt():
    """The toy fitted without privacy."""
    rng = np.random.default_rng()
    model = DPAutoregressive(
        np.inf, 1e-6, schema=TOY, steps=400, batch_size=1000, learning_rate=1e-2
    )
    return model.fit(toy(20_000, rng)), toy(4_000, rng)


@pytest.mark.long
def test_the_density_matches_the_generator():
    """Within Monte-Carlo error of 20,000 rows: the excess loss is about parameters / rows."""
    model, fresh = learnt()
    gap = toy_log_density(fresh) - model.score_samples(fresh)
    assert abs(gap.mean()) < 0.05
    assert np.quantile(np.abs(gap), 0.9) < 0.35


def test_the_density_test_rejects_a_forgotten_volume(monkeypatch):
    model, fresh = learnt()
    right = model.density_.columns
    for column in right:
        monkeypatch.setitem(column.__dict__, "log_volumes", np.zeros_like(column.log_volumes))
    gap = toy_log_density(fresh) - model.score_samples(fresh)
    assert abs(gap.mean()) > 0.05


def test_a_spike_is_a_probability():
    model, _ = learnt()
    rows = model.sample(20_000)
    share = (rows["dose"] == 0).mean()
    assert share == pytest.approx(0.35, abs=0.03)


def test_conditions_on_the_target_keep_every_draw():
    model, _ = learnt()
    rows = model.sample(3_000, conditions={"ill": True})
    assert rows["ill"].all()
    assert model.acceptance_ == 1.0
    assert (rows["ward"] == "a").mean() == pytest.approx(0.6, abs=0.08)


def test_conditions_on_later_columns_are_weighted():
    model, _ = learnt()
    rows = model.sample(3_000, conditions={"ward": "c", "visits": 3})
    assert (rows["ward"] == "c").all()
    assert (rows["visits"] == 3).all()
    assert 0 < model.acceptance_ < 1
    # 0.3 * 0.1 against 0.7 / 3: without weights it would be the prior chance, 0.3
    assert rows["ill"].mean() == pytest.approx(0.114, abs=0.06)


def test_the_condition_test_rejects_unweighted_draws(monkeypatch):
    model, _ = learnt()
    monkeypatch.setattr(autoregressive, "_patience", lambda key, size: np.full(size, np.inf))
    rows = model.sample(3_000, conditions={"ward": "c", "visits": 3})
    assert abs(rows["ill"].mean() - 0.114) > 0.06


def test_a_condition_is_drawn_as_it_is_given():
    model, _ = learnt()
    rows = model.sample(20, conditions={"dose": 7.125})
    assert (rows["dose"] == 7.125).all()


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"ward": "zz"}, "a value that the schema declares"),
        ({"nothing": 1}, "no such column"),
        ({"dose": 11.0}, "a value that the schema declares"),
        ({"visits": "many"}, "must hold numbers"),
        ({"ward": None}, "must be filled"),
        ({"ill": object()}, "must hold booleans"),
    ],
)
def test_conditions_that_nothing_can_meet_are_refused(conditions, words):
    model, _ = learnt()
    with pytest.raises(InputError, match=words):
        model.sample(5, conditions=conditions)


@pytest.mark.long
def test_conditions_need_mixed_kinds():
    rows = np.random.default_rng().normal(size=(200, 2)).clip(-4, 4)
    model = DPDensity(1.0, 1e-4, bounds=(-4, 4)).fit(rows)
    with pytest.raises(InputError, match="mixed column kinds"):
        model.sample(5, conditions={"x0": 1.0})


def drawn_by_rule(text, n):
    """Rows of the learnt toy under one more rule."""
    model, _ = learnt()
    schema = Schema(TOY.columns, target="ill", constraints=(Constraint(text),))
    return autoregressive.draw_rows(model.density_, MixedEncoding(schema), n, {}, jr.key(0))


def test_constraints_hold_in_every_row():
    drawn = drawn_by_rule("visits <= 1 -> ward = a", 500)
    assert len(drawn.columns["ward"]) == 500
    assert (drawn.columns["ward"][drawn.columns["visits"] <= 1] == "a").all()
    assert 0 < drawn.acceptance < 1


def test_constraints_that_nothing_keeps_end_in_bounded_time(monkeypatch):
    monkeypatch.setattr(autoregressive, "MOST_TRIES", 2)
    with pytest.raises(InputError, match="relax"):
        drawn_by_rule("visits > 3", 10)


@pytest.mark.parametrize(
    "settings",
    [
        {"architecture": "maf"},
        {"prior": "mixture"},
        {"normalisation": "moments"},
        {"initialisation": "private"},
    ],
)
def test_settings_of_flows_are_refused(settings):
    with pytest.raises(TypeError, match="unexpected keyword"):
        DPAutoregressive(1.0, 1e-4, schema=TOY, **settings)


def test_a_mixed_table_without_a_schema_is_refused():
    with pytest.raises(InputError, match="must hold numbers, .* declare in the schema their kind"):
        DPAutoregressive(1.0, 1e-4).fit(toy(100, np.random.default_rng()))


def test_the_target_comes_first():
    assert order_of(TOY) == (0, 1, 2, 3)
    assert order_of(EVERY_KIND)[0] == EVERY_KIND.names.index("sex")


def test_labels_are_discovered_and_rare_ones_are_not():
    """A label of one row passes the threshold with chance delta, which is far below 1e-6."""
    columns = (Column("ward", "categorical"), Column("ill", "boolean"))
    rows = pd.DataFrame({"ward": ["a"] * 3000 + ["b"] * 3000 + ["alone"], "ill": [True] * 6001})
    model = DPAutoregressive(4.0, 1e-6, schema=Schema(columns), discover=0.2, **FEW).fit(rows)
    assert set(model.sample(500)["ward"]) == {"a", "b"}
    assert model.encoding_.schema.column("ward").categories == ("a", "b")
    assert any("categories" in event.purpose for event in model.plan_.before)


def test_the_steps_stop_at_the_budget_when_noise_is_given():
    plan = DPAutoregressive(1.0, 1e-5, schema=TOY, noise_multiplier=4.0, batch_size=100).plan(2_000)
    more = DPAutoregressive(2.0, 1e-5, schema=TOY, noise_multiplier=4.0, batch_size=100).plan(2_000)
    assert 0 < plan.steps < more.steps


@pytest.mark.long
def test_a_killed_run_goes_on_with_the_same_cells(tmp_path, monkeypatch):
    """What was bought before training is not bought again."""
    rows, path = toy(1_000, np.random.default_rng()), tmp_path / "run.part"
    flow = DPAutoregressive(1.0, 1e-4, schema=TOY, steps=40, batch_size=50)

    class Killed(Exception):
        pass

    def kill(_):
        raise Killed

    with pytest.raises(Killed):
        flow.fit(rows, checkpoint=path, callbacks=Callbacks(on_progress=kill))
    monkeypatch.setattr(CountMarginals, "run", lambda *_: pytest.fail("bought again"))
    model = flow.fit(rows, checkpoint=path)
    assert model.sample(5).shape == (5, 4)


@pytest.mark.long
def test_a_ledger_is_charged_for_all_releases(tmp_path):
    ledger = Ledger(tmp_path / "ward.ledger", cap=Budget(2.0, 1e-5))
    model = DPAutoregressive(1.0, 1e-6, schema=EVERY_KIND, **FEW).fit(frame(300), ledger=ledger)
    assert model.receipt_ is not None
    assert ledger.charged("fit") == sum(event.count for event in model.plan_.events)


@pytest.mark.long
def test_a_test_seed_repeats_a_fit_and_is_stamped():
    rows = toy(500, np.random.default_rng())
    one, two = (
        DPAutoregressive(1.0, 1e-4, schema=TOY, insecure_test_seed=3, **FEW).fit(rows) for _ in "ab"
    )
    pd.testing.assert_frame_equal(one.sample(20), two.sample(20))
    assert "NOT PRIVATE" in one.guarantee_.stamps[-1]


@pytest.mark.long
def test_values_read_from_the_rows_are_stamped():
    schema = Schema(TOY.columns, values_read=True, target="ill")
    model = DPAutoregressive(1.0, 1e-4, schema=schema, **FEW).fit(toy(300, np.random.default_rng()))
    assert "read from the rows" in model.guarantee_.stamps[0]


def test_a_plan_tells_what_each_release_costs():
    plan = DPAutoregressive(1.0, 1e-6, schema=TOY).plan(10_000)
    assert set(plan.shares()) == {"histograms", "marginals", "training"}
    assert plan.seconds > 0
    assert plan.megabytes > 0


@pytest.mark.parametrize("kind", ["boolean", pytest.param("integer", marks=pytest.mark.long)])
def test_a_single_column_can_be_fitted(kind):
    bounds = {"min": 0, "max": 1} if kind == "integer" else {}
    schema = Schema((Column("ill", kind, **bounds),), target="ill")
    rows = pd.DataFrame({"ill": np.arange(200) % 4 == 0}).astype("int64" if bounds else bool)
    model = DPAutoregressive(4.0, 1e-4, schema=schema, **FEW).fit(rows)
    assert model.sample(2_000)["ill"].mean() == pytest.approx(0.25, abs=0.2)


RARE = np.array([0.002, 0.9, 1e-4])


def rare_density():
    """P(a) = 0.002, P(c | a) = 0.9, P(c | not a) = 0.0001: of all c, 94.7% are a."""
    a, c_given_a, c_otherwise = RARE
    network = cell_network((2, 2), width=4, depth=1, key=jr.key(0))
    links = np.zeros((4, 4), np.float32)
    links[3] = [logit(c_otherwise), logit(c_given_a), 0, 0]
    weight = eqx.tree_at(lambda w: w.args[1], network.direct.weight, jnp.asarray(links))
    bias = jnp.array([0.0, logit(a), 0.0, 0.0])
    flat = eqx.tree_at(
        lambda n: n.out.weight.args[1], network, jnp.zeros_like(network.out.weight.args[1])
    )
    moved = eqx.tree_at(lambda n: (n.direct.weight, n.out.bias), flat, (weight, bias))
    each = BinShares(np.arange(2), np.ones(2), np.zeros(2))
    return MixedDensity(moved, (each, each), (0, 1))


def logit(chance):
    return float(np.log(chance / (1 - chance)))


def drawn_share(n, seed):
    schema = Schema((Column("a", "boolean"), Column("c", "boolean")))
    encoding, wanted = MixedEncoding(schema), {"c": True}
    return (
        autoregressive.draw_rows(rare_density(), encoding, n, wanted, jr.key(seed))
        .columns["a"]
        .mean()
    )


def test_rows_that_are_rare_without_the_condition_are_found():
    """One draw in 500 decides: 16,384 draws miss it with a chance of 6e-15.

    Fifty rows of a share of 0.947 average below 0.75 with a chance below 1e-6.
    """
    assert min(drawn_share(50, seed) for seed in range(3)) > 0.75


def test_the_test_rejects_a_bound_from_a_short_look(monkeypatch):
    monkeypatch.setattr(autoregressive, "FIRST_LOOK", 64)
    monkeypatch.setattr(autoregressive._Kept, "joined", lambda self, other: other)
    assert min(drawn_share(50, seed) for seed in range(3)) < 0.75


@pytest.mark.parametrize("n", [0, -1, 2.5, "3", None])
def test_only_whole_numbers_of_rows_are_drawn(n):
    with pytest.raises(InputError, match="n_samples"):
        drawn_by_rule("visits >= 0", n)


def test_a_search_that_failed_stays_failed(tmp_path):
    """Noise decided it; another start must not roll it again."""
    schema = Schema((Column("ward", "categorical"), Column("ill", "boolean")))
    names = [f"w{i}" for i in range(60)]
    rows = pd.DataFrame({"ward": names, "ill": [True] * 60})
    ledger = Ledger(tmp_path / "ward.ledger", cap=Budget(1.0, 1e-5))
    flow = DPAutoregressive(1.0, 1e-6, schema=schema, discover=0.1, **FEW)
    for _ in range(2):
        with pytest.raises(BudgetError, match="could be found above the noise"):
            flow.fit(rows, ledger=ledger, checkpoint=tmp_path / "run.part")
    plenty = pd.DataFrame({"ward": ["a"] * 30 + ["b"] * 30, "ill": [True] * 60})
    with pytest.raises(InputError, match="belongs to another table"):
        flow.fit(plenty, ledger=ledger, checkpoint=tmp_path / "run.part")


@pytest.mark.long
def test_a_run_goes_on_only_under_its_own_schema(tmp_path):
    rows, path = toy(300, np.random.default_rng()), tmp_path / "run.part"
    DPAutoregressive(1.0, 1e-4, schema=TOY, **FEW).fit(rows, checkpoint=path)
    stricter = dataclasses.replace(TOY, constraints=(Constraint("visits < 3"),))
    with pytest.raises(InputError, match="another schema"):
        DPAutoregressive(1.0, 1e-4, schema=stricter, **FEW).fit(rows, checkpoint=path)


def forged(tmp_path, change):
    """A model file with some arrays changed."""
    model, path = learnt()[0], tmp_path / "model.dpflow"
    model.save(path)
    header, arrays = read_model(path)
    arrays, plan = dict(arrays), header["plan"]
    change(arrays, plan["architecture"])
    kept = {name: value for name, value in header.items() if name not in ("format", "digest")}
    write_model(path, header=kept, arrays=arrays)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, shape: arrays.update({"cells-0": np.array([0, 3_000_000_000])}),
        lambda arrays, shape: arrays.update({"cells-0": np.array([0, -1])}),
        lambda arrays, shape: arrays.update({"shares-0": np.array([np.nan, 1.0])}),
        lambda arrays, shape: (
            arrays.update({"pad": np.zeros(10**6, bool)}) or shape.update(width=4096, depth=32)
        ),
        lambda arrays, shape: shape.update(depth=32),
        lambda arrays, shape: arrays.update(
            {"parameter-0": np.full_like(arrays["parameter-0"], 3e38)}
        ),
        lambda arrays, shape: arrays.update(
            {"parameter-0": arrays["parameter-0"].astype(np.int64)}
        ),
        lambda arrays, shape: arrays.pop("cells-1"),
    ],
)
def test_forged_models_are_refused_at_once(tmp_path, change):
    path = forged(tmp_path, change)
    began = time.process_time()
    with pytest.raises(InputError, match="is inconsistent"):
        load(path)
    assert time.process_time() - began < 2

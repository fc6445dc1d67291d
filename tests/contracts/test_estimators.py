"""Every estimator: scikit-learn manners, honest densities, honest prices, files that last.

A new name in ``ESTIMATORS`` is tested at once, with default settings unless ``CHEAP`` has
cheaper ones. Statistical tests state their false-alarm rate, over the draws of a seed.
"""

import functools
import importlib
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2
from sklearn.base import clone

from dpflows.errors import InputError
from dpflows.estimators.base import NON_PRIVATE_STAMP
from dpflows.estimators.persistence import ESTIMATORS, load
from dpflows.models.architectures import Architecture
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.randomness import TEST_SEED_STAMP

#: A flow on noisy histograms of 400 rows has spikes that the quadrature below would miss.
CHEAP = {
    "DPFlow": {
        "architecture": Architecture("nsf", width=8, depth=1, blocks=1, knots=4),
        "normalisation": "bounds",
        "steps": 5,
        "batch_size": 2,
    },
    "DPAutoregressive": {"steps": 5, "batch_size": 2},
    "DPKernelDensity": {"bandwidth": 0.05},
}
FALSE_ALARM = 1e-6
_RNG = np.random.default_rng(3)
_SKEWED = _RNG.normal(size=(400, 2)) @ np.array([[1.0, 0.6], [0.0, 0.5]]) + [0.5, -1.0]
ROWS = _SKEWED.clip(-4, 4)

every_estimator = pytest.mark.parametrize("name", ESTIMATORS)
#: The density of a mixed row is in part a probability of single values, which no quadrature
#: finds; tests/estimators/test_mixed.py compares it with samples.
of_numbers = pytest.mark.parametrize("name", [n for n in ESTIMATORS if n != "DPAutoregressive"])


def make(name, **changes):
    settings = {"epsilon": 1.0, "delta": 1e-4, "bounds": (-4, 4), "insecure_test_seed": 1}
    cls = getattr(importlib.import_module(ESTIMATORS[name]), name)
    return cls(**(settings | CHEAP.get(name, {}) | changes))


@functools.cache
def fitted(name):
    return make(name).fit(ROWS)


@functools.cache
def cell_chances(name, coarse=6, fine=40):
    """The density summed over the cells of a coarse grid, from midpoints of a fine one."""
    places = -4 + 8 * (np.arange(coarse * fine) + 0.5) / (coarse * fine)
    points = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(fitted(name).score_samples(points)) * (8 / (coarse * fine)) ** 2
    return density.reshape(coarse, fine, coarse, fine).sum(axis=(1, 3))


def surprise(name, samples):
    """The chance of counts as unlike the density as those of the samples; chi-square."""
    chances = cell_chances(name)
    edges = np.linspace(-4, 4, len(chances) + 1)
    counts = np.histogram2d(*samples.T, bins=(edges, edges))[0].ravel()
    expected = chances.ravel() / chances.sum() * len(samples)
    full = expected >= 10
    counts = np.append(counts[full], counts[~full].sum())
    expected = np.append(expected[full], expected[~full].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))


@every_estimator
def test_parameters_are_only_stored(name):
    estimator = make(name, bounds="anything")
    assert clone(estimator).get_params() == estimator.get_params()


@every_estimator
def test_samples_are_rows_inside_the_bounds(name):
    rows = fitted(name).sample(2000)
    assert rows.shape == (2000, 2)
    assert rows.dtype == np.float64
    assert np.abs(rows).max() <= 4
    assert fitted(name).n_features_in_ == 2


@every_estimator
def test_scores_are_finite_inside_and_nothing_outside(name):
    inside = np.vstack([ROWS, [[4.0, 4.0], [-4.0, -4.0], [-4.0, 4.0]]])
    assert np.isfinite(fitted(name).score_samples(inside)).all()
    assert (fitted(name).score_samples(np.array([[4.1, 0.0], [0.0, -1e9]])) == -np.inf).all()
    assert fitted(name).score(ROWS) == pytest.approx(fitted(name).score_samples(ROWS).mean())


@of_numbers
def test_the_density_integrates_to_one(name):
    """The mass inside the bounds is known to 0.002 (65,536 draws); the rest is quadrature."""
    assert cell_chances(name).sum() == pytest.approx(1.0, abs=0.02)


@of_numbers
def test_samples_follow_the_density(name):
    """False alarms: one in a million seeds."""
    assert surprise(name, fitted(name).sample(4000)) > FALSE_ALARM


@of_numbers
@pytest.mark.parametrize(
    "bug", [lambda rows: 0.8 * rows, lambda rows: np.clip(rows + [0.3, 0.0], -4, 4)]
)
def test_the_test_rejects_samples_of_another_density(name, bug):
    assert surprise(name, bug(fitted(name).sample(4000))) < FALSE_ALARM


@every_estimator
def test_the_guarantee_is_what_the_events_cost(name):
    promise = fitted(name).guarantee_
    prices = {"delta": promise.delta, "neighbours": promise.neighbours}
    priced = epsilon_of(promise.events, accountant=promise.accountant, **prices)
    assert priced == promise.epsilon
    assert 0.9 <= promise.epsilon <= 1.0
    assert promise.replace_one_epsilon >= promise.epsilon


@every_estimator
def test_the_budget_holds_if_a_row_may_become_any_other(name):
    promise = make(name, neighbours="replace-one").plan(400, 2).guarantee()
    assert promise.neighbours == "replace-one"
    assert promise.epsilon <= 1.0


@every_estimator
def test_the_number_of_rows_cannot_be_hidden(name):
    with pytest.raises(InputError, match="zero-out or replace-one"):
        make(name, neighbours="add-remove").plan(400, 2)


@every_estimator
def test_the_plan_is_what_fit_does(name):
    assert make(name).plan(*ROWS.shape) == fitted(name).plan_


@every_estimator
def test_finding_bounds_is_paid_inside_the_budget(name):
    estimator = make(name, bounds=None, discover=0.5, epsilon=20.0).fit(ROWS)
    promise = estimator.guarantee_
    assert promise.epsilon <= 20.0
    assert promise.events == estimator.plan(400, 2).events
    assert {event.purpose for event in promise.events} >= {"bounds of column 1"}


@every_estimator
def test_a_test_seed_is_stamped_and_reproducible(name):
    again = make(name).fit(ROWS)
    np.testing.assert_array_equal(again.score_samples(ROWS), fitted(name).score_samples(ROWS))
    assert TEST_SEED_STAMP in again.guarantee_.stamps
    assert not again.guarantee_.is_private


@every_estimator
def test_without_a_seed_the_guarantee_stands_and_fits_differ(name):
    estimator = make(name, insecure_test_seed=None).fit(ROWS)
    assert estimator.guarantee_.is_private
    assert not np.array_equal(estimator.score_samples(ROWS), fitted(name).score_samples(ROWS))


@every_estimator
def test_infinite_epsilon_is_stamped(name, tmp_path):
    estimator = make(name, epsilon=math.inf, insecure_test_seed=None).fit(ROWS)
    estimator.save(tmp_path / "model.dpflow")
    for model in (estimator, load(tmp_path / "model.dpflow")):
        assert NON_PRIVATE_STAMP in model.guarantee_.stamps
        assert model.guarantee_.events == ()
        assert np.isfinite(model.score_samples(ROWS)).all()


@every_estimator
def test_a_saved_model_comes_back_the_same(name, tmp_path):
    fitted(name).save(tmp_path / "model.dpflow")
    again = load(tmp_path / "model.dpflow")
    assert type(again) is type(fitted(name))
    np.testing.assert_allclose(again.score_samples(ROWS), fitted(name).score_samples(ROWS), 1e-6)
    assert again.guarantee_ == fitted(name).guarantee_
    again.save(tmp_path / "again.dpflow")
    assert load(tmp_path / "again.dpflow").guarantee_ == fitted(name).guarantee_


@every_estimator
def test_frames_in_frames_out(name, tmp_path):
    estimator = make(name).fit(pd.DataFrame(ROWS, columns=["weight", "height"]))
    estimator.save(tmp_path / "model.dpflow")
    assert list(estimator.feature_names_in_) == ["weight", "height"]
    for model in (estimator, load(tmp_path / "model.dpflow")):
        rows = model.sample(3)
        assert isinstance(rows, pd.DataFrame)
        assert list(rows.columns) == ["weight", "height"]
        assert np.isfinite(model.score_samples(rows)).all()


@every_estimator
def test_polars_in_polars_out(name):
    polars = pytest.importorskip("polars")
    rows = make(name).fit(polars.DataFrame(ROWS, schema=["weight", "height"])).sample(3)
    assert isinstance(rows, polars.DataFrame)
    assert rows.columns == ["weight", "height"]


@every_estimator
def test_a_neighbouring_table_leaves_the_public_part_alone(name):
    neighbour = ROWS.copy()
    neighbour[0] = [4.0, -4.0]
    headers = [model.to_file()[0] for model in (fitted(name), make(name).fit(neighbour))]
    for header in headers:
        header.pop("log_inside", None)
    assert headers[0] == headers[1]


HOSTILE = {
    "beyond the bounds": np.vstack([ROWS, [[1e300, -1e300], [5.0, np.finfo(float).max]]]),
    "all in a corner": np.full((400, 2), 4.0),
    "hardly any": np.array([[0.0, 1.0], [1.0, 0.0]]),
}


@every_estimator
@pytest.mark.parametrize(
    "table",
    ["beyond the bounds", *(pytest.param(t, marks=pytest.mark.long) for t in list(HOSTILE)[1:])],
)
def test_hostile_rows_do_not_break_it(name, table):
    estimator = make(name).fit(HOSTILE[table])
    assert np.isfinite(estimator.score_samples(ROWS)).all()
    assert np.abs(estimator.sample(100)).max() <= 4


@every_estimator
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": None}, "bounds are not declared"),
        ({"bounds": (1, 1)}, "low below high"),
        ({"bounds": (0, 1, 2)}, "bounds must be"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"delta": 0.0}, "delta must be in"),
        ({"neighbours": "friends"}, "neighbours must be"),
        ({"accountant": "guess"}, "accountant must be"),
        ({"discover": 2.0}, "discover must be a share"),
        ({"schema": "missing.toml", "bounds": None}, "missing.toml"),
        ({"schema": "missing.toml"}, "bounds must be declared only once"),
    ],
)
def test_mistakes_are_one_line(name, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        make(name, **changes).fit(ROWS)
    assert "\n" not in str(caught.value)


@every_estimator
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros(5), "rows and columns"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "must be filled"),
        (np.array([["secret", "1"], ["2", "3"]]), "must hold numbers, got 1 cell"),
        (np.zeros((1, 2)), "rows must be at least 2"),
    ],
)
def test_bad_tables_are_refused_without_quoting_them(name, table, message):
    with pytest.raises(InputError, match=message) as caught:
        make(name).fit(table)
    assert "secret" not in str(caught.value)


@every_estimator
def test_wrong_questions_are_refused(name):
    with pytest.raises(InputError, match="is expecting 2 features"):
        fitted(name).score_samples(np.zeros((3, 5)))
    with pytest.raises(InputError, match="n_samples must be at least 1"):
        fitted(name).sample(0)


@every_estimator
@pytest.mark.parametrize("part", ["guarantee", "schema", "form", "plan"])
def test_files_that_lack_a_part_are_refused(name, part, tmp_path):
    from dpflows.files import write_model

    header, arrays = fitted(name).to_file()
    left = {key: value for key, value in header.items() if key != part}
    write_model(tmp_path / "forged.dpflow", header=left | {"estimator": name}, arrays=arrays)
    with pytest.raises(InputError):
        load(tmp_path / "forged.dpflow")


@every_estimator
def test_files_with_damaged_numbers_are_refused(name, tmp_path):
    from dpflows.files import write_model

    header, arrays = fitted(name).to_file()
    for damaged in arrays:
        if not np.issubdtype(arrays[damaged].dtype, np.floating):
            continue
        forged = arrays | {damaged: np.full_like(arrays[damaged], np.nan)}
        write_model(tmp_path / "forged.dpflow", header=header | {"estimator": name}, arrays=forged)
        with pytest.raises(InputError):
            load(tmp_path / "forged.dpflow")

"""Histograms: joint where they can be, honest about independence where they cannot."""

import numpy as np
import pytest

from dpflows import DPHistogram, InputError
from dpflows.estimators.histogram import INDEPENDENT, JOINT, bins_rule, halved
from dpflows.models.density import Grid, ProductGrid, fitting_masses

TWINS = np.repeat(np.random.default_rng(6).uniform(size=(5000, 1)), 5, axis=1)


def make(**changes):
    settings = {"epsilon": 1.0, "delta": 1e-5, "bounds": (0, 1), "insecure_test_seed": 4}
    return DPHistogram(**(settings | changes))


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_few_columns_are_joint(columns):
    fit = make().fit(TWINS[:, :columns])
    assert fit.plan_.details["independence"] == JOINT
    if columns > 1:
        assert np.corrcoef(fit.sample(4000).T)[0, 1] > 0.7


def test_more_columns_are_independent_and_it_says_so():
    fit = make().fit(TWINS)
    assert fit.plan_.details["independence"] == INDEPENDENT
    assert abs(np.corrcoef(fit.sample(4000).T)[0, 1]) < 0.1


def test_a_product_follows_its_columns_in_a_wide_box():
    rows = np.random.default_rng(2).normal(size=(20_000, 4))
    found = make(bounds=(-50, 50)).fit(rows).sample(4000)
    np.testing.assert_allclose(np.median(found, axis=0), 0.0, atol=0.3)
    assert (np.abs(found) < 5).mean() > 0.9


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_bins_grow_with_rows_and_shrink_with_noise(columns):
    few = bins_rule(rows=1000, columns=columns, scale=1.0)
    assert bins_rule(rows=100_000, columns=columns, scale=1.0) > few
    assert bins_rule(rows=1000, columns=columns, scale=20.0) < few
    assert bins_rule(rows=2, columns=columns, scale=1e6) == 1
    assert bins_rule(rows=10**15, columns=columns, scale=0.0) ** columns <= 2**20


def test_bins_may_be_given():
    assert make(bins=7).fit(TWINS[:, :2]).parameters_["masses"].shape == (7, 7)


@pytest.mark.parametrize(
    ("bins", "columns", "message"),
    [(0, 2, "at least 1"), (2000, 2, "1,048,576"), (8, 5, "applies to at most 3 columns")],
)
def test_impossible_bins_are_refused(bins, columns, message):
    with pytest.raises(InputError, match=message):
        make(bins=bins).plan(100, columns)


def test_noise_on_empty_cells_is_taken_back():
    """Cutting off alone would leave the empty cells nearly half of the mass."""
    values = np.random.default_rng(1).laplace(scale=2.0, size=1000)
    values[:10] += 100
    assert fitting_masses(values, total=1000.0)[:10].sum() > 0.9
    assert np.maximum(values, 0)[:10].sum() / np.maximum(values, 0).sum() < 0.6


@pytest.mark.parametrize("values", [[-1.0, -2.0], [0.0, 0.0]])
def test_a_table_that_noise_has_swallowed_is_even(values):
    assert fitting_masses(np.array(values), total=1e-9).sum() == pytest.approx(1.0)
    assert halved(np.zeros(5), 1.0).tolist() == [0.25] * 4


@pytest.mark.parametrize("masses", [[[0.0, 0.0]], [[-1.0, 2.0]], [[np.nan, 1.0]]])
def test_masses_from_a_file_must_make_sense(masses):
    for grid in (Grid, ProductGrid):
        with pytest.raises(InputError, match="masses must"):
            grid(np.array(masses))

"""Measures that compare a model with rows: right on known laws, and they notice a change."""

import dataclasses

import numpy as np
import pytest

from dpflows import DPGaussian
from dpflows.evaluation.fidelity import BINS, largest_gap, total_variation
from dpflows.evaluation.measures import Measure, Subject, public_range
from dpflows.evaluation.report import MEASURES, evaluate
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import read_table

OS = Entropy.from_os()
ROWS = 4000


def correlated(rows=ROWS) -> np.ndarray:
    z = np.random.default_rng().normal(size=(rows, 3))
    z[:, 1] = 0.8 * z[:, 0] + 0.6 * z[:, 1]
    return z.clip(-5, 5)


@pytest.fixture(scope="module")
def model():
    return DPGaussian(float("inf"), 1e-5, bounds=(-5, 5)).fit(correlated())


def judged(model, rows) -> Subject:
    return Subject.of(model, read_table(rows, model.encoding_.schema), OS)


def test_rows_of_the_same_law_are_close(model):
    """False alarms below 1e-6: each limit is more than six standard errors away."""
    found = evaluate(judged(model, correlated()))
    entropy_of_law = 1.5 * np.log(2 * np.pi * np.e) + np.log(0.6)
    assert abs(found["log-likelihood"]["mean"] + entropy_of_law) < 0.15
    assert max(found["kolmogorov"].values()) < 0.06
    assert max(found["total-variation"].values()) < 0.12
    assert max(found["correlations"].values()) < 0.06
    assert max(found["pair-cells"].values()) < 0.12


def shifted(rows):
    return rows + np.array([0.0, 0.0, 0.5])


def shuffled(rows):
    return np.column_stack([np.random.default_rng().permutation(rows[:, 0]), rows[:, 1:]])


@pytest.mark.parametrize(
    ("change", "noticed", "column"),
    [
        (shifted, "kolmogorov", "x2"),
        (shifted, "total-variation", "x2"),
        (shuffled, "correlations", "x0, x1"),
        (shuffled, "pair-cells", "x0, x1"),
    ],
)
def test_each_measure_notices_the_change_it_is_for(model, change, noticed, column):
    """The twins: rows of another law are far, in the column or pair that was changed."""
    found = MEASURES[noticed].of(judged(model, change(correlated())))
    assert max(found, key=found.get) == column
    assert found[column] > 0.15


def test_another_law_is_less_likely(model):
    mean = MEASURES["log-likelihood"].of(judged(model, shuffled(correlated())))["mean"]
    assert mean < MEASURES["log-likelihood"].of(judged(model, correlated()))["mean"] - 0.3


def test_bins_and_ranges_are_functions_of_the_model_alone(model):
    """Whatever the rows are, the public part is the same, byte for byte."""
    ours = judged(model, correlated(50))
    theirs = dataclasses.replace(judged(model, np.full((9, 3), 4.9)), key=ours.key)
    assert public_range(ours) == public_range(theirs)
    for name, coding in ours.codings(BINS).items():
        assert coding.cuts == theirs.codings(BINS)[name].cuts
        assert len(coding.cuts) == BINS - 1


def test_rows_beyond_the_bounds_are_moved_and_counted(model):
    found = MEASURES["log-likelihood"].of(judged(model, np.array([[0.0, 0.0, 9.0], [0, 0, 0]])))
    assert np.isfinite(found["mean"])
    assert found["cells_beyond_bounds"] == 1


@pytest.mark.long
def test_one_column_has_no_pairs():
    rows = correlated()[:300, :1]
    model = DPGaussian(float("inf"), 1e-5, bounds=(-5, 5)).fit(rows)
    found = evaluate(judged(model, rows))
    assert found["correlations"] == found["pair-cells"] == {}


def test_a_constant_column_correlates_with_nothing(model):
    rows = correlated()
    rows[:, 2] = 1.0
    found = MEASURES["correlations"].of(judged(model, rows))
    assert all(np.isfinite(value) for value in found.values())


def test_counts_that_noise_left_empty_are_no_error():
    nothing = np.array([-3, -1])
    assert total_variation(nothing, np.array([1, 0])) == 0.5
    assert largest_gap(nothing, np.array([1, 1])) == 0.0


@pytest.mark.parametrize("measure", MEASURES.values(), ids=list(MEASURES))
def test_every_measure_says_what_it_is(measure):
    assert isinstance(measure, Measure)
    assert measure.title
    assert measure.each in ("", "column", "pair", "triple")

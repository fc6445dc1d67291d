"""Anomalies of the paper, ranks, and the expected accuracy of a private vote."""

import numpy as np
import pytest
from scipy import stats

from dpflows.experiments.anomalies import (
    BASELINES,
    EnsembleVotes,
    expected_accuracy,
    in_the_tails,
    trial,
)
from dpflows.experiments.catalogue import EXPERIMENTS, experiments_called
from dpflows.experiments.data import RealTable
from dpflows.experiments.likelihoods import distances, prediction_errors
from dpflows.experiments.methods import METHODS
from dpflows.experiments.running import Job, Workspace

ALPHA = 1e-6


@pytest.fixture
def rows():
    return np.random.default_rng().normal(size=(4000, 3)) * [1, 10, 100]


def uniform_in_bands(made, rows):
    """A p-value: whether cells lie in the four percentile bands evenly and by halves.

    The false-alarm rate is ALPHA by construction of the test that calls it.
    """
    low, below, above, high = np.quantile(rows, [0.05, 0.30, 0.70, 0.95], axis=0)
    upper = made > (below + above) / 2
    place = np.where(upper, (made - above) / (high - above), (made - low) / (below - low))
    halves = stats.binomtest(int(upper.sum()), upper.size).pvalue
    return min(1.0, 2 * min(halves, stats.kstest(place.ravel(), "uniform").pvalue))


def test_anomalies_lie_in_the_papers_bands(rows):
    assert uniform_in_bands(in_the_tails(rows, 4000), rows) > ALPHA


def test_other_bands_would_be_noticed(rows):
    random = np.random.default_rng()
    low, high = np.quantile(rows, [0.05, 0.95], axis=0)
    assert uniform_in_bands(random.uniform(low, high, size=rows.shape), rows) < ALPHA


def test_a_trial_has_the_folds_rows_and_the_known_anomalies(rows):
    fold = np.arange(len(rows)) % 10 + 1
    known = RealTable(rows, rows.min(0), rows.max(0), 1e-5, fold, anomalies=rows[:7] + 1)
    tried, normal = trial(known, 3)
    assert (tried[~normal] == rows[:7] + 1).all()
    assert (tried[normal] == rows[fold == 3]).all()
    made, is_normal = trial(RealTable(rows, rows.min(0), rows.max(0), 1e-5, fold), 3)
    assert is_normal.sum() == len(made) - is_normal.sum() == 400


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 3.0])
def test_a_geometric_vote_is_at_least_as_accurate(epsilon):
    votes = np.random.default_rng().integers(0, 11, size=500)
    normal = votes > 5
    votes, normal = votes[votes != 5], normal[votes != 5]
    better, usual = (expected_accuracy(votes, normal, law, epsilon)
                     for law in ("geometric", "exponential"))  # fmt: skip
    assert better >= usual
    assert expected_accuracy(votes, ~normal, "geometric", epsilon) == pytest.approx(1 - better)


def test_learners_and_distances_see_what_is_wrong(rows):
    rows = rows[:1500]
    noise = np.random.default_rng().normal(size=(1500, 1))
    real = np.column_stack([rows[:, :2] / [1, 10], rows[:, :1] + 0.1 * noise])
    shuffled = np.column_stack([real[:, :2], np.random.default_rng().permutation(real[:, 2])])
    good, bad = (prediction_errors(train, real[:500]) for train in (real[500:], shuffled))
    assert all(good[name] < 0.1 < 0.8 < bad[name] for name in good)
    near, far = distances(real, shuffled), distances(real, real + 1)
    assert near["marginal distance"] < 0.01 < 0.1 < near["pair distance"]
    assert far["pair distance"] < 1e-9 < 0.2 < far["marginal distance"]


def test_the_names_of_the_paper_are_all_there():
    wanted = (
        "life-science power gowalla half-moons gaussians pinwheel accountants downstream "
        "histograms pca anomaly-roc ensemble"
    )
    assert set(wanted.split()) <= set(EXPERIMENTS)
    assert experiments_called("all") == list(EXPERIMENTS.values())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_job_names_a_method_that_exists(name):
    experiment = EXPERIMENTS[name]
    jobs = experiment.jobs(2, experiment.epsilons)
    assert len({job.key for job in jobs}) == len(jobs) > 0
    if name not in ("accountants", "adult", "ensemble", "recipe-parts"):
        assert {job.method for job in jobs} <= {*METHODS, *BASELINES, "real-rows"}


def test_an_ensemble_of_a_small_table_is_measured(tmp_path):
    """End to end on few rows: votes of mixtures beat chance, and noise only costs."""
    (tmp_path / "toy").mkdir()
    from sklearn.datasets import make_moons

    moons = make_moons(1500, noise=0.05)[0]
    standard = (moons - moons.mean(0)) / moons.std(0)
    np.savetxt(tmp_path / "toy" / "moons.csv", standard, delimiter=",")
    job = Job("half-moons", "mixture", 1, (0.1, 2.0))
    found = EnsembleVotes().measure(job, Workspace(tmp_path, tmp_path))
    values = {(f.method.split(", ")[1], f.epsilon): f.value for f in found}
    assert values["no noise", None] > 0.65
    assert values["geometric", 2.0] > values["geometric", 0.1] >= values["exponential", 0.1] > 0.5

"""The generated sets follow the published laws, in public units and bounds.

The tests draw fresh rows each time. Each states how often it would fail by chance,
and has a twin that must catch a planted mistake.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import make_moons

from dpflows.errors import InputError
from dpflows.experiments import data
from dpflows.experiments.data import DATASETS, generate

ROWS = 100_000
ALPHA = 1e-6


def _moment_p_values(rows: np.ndarray) -> np.ndarray:
    """Two-sided p-values of "mean 0" and "variance 1", by the central limit theorem."""
    powers = np.concatenate([rows, rows**2 - 1], axis=1)
    scores = powers.mean(axis=0) / (powers.std(axis=0) / math.sqrt(len(rows)))
    return 2 * stats.norm.sf(np.abs(scores))


@pytest.mark.parametrize("name", DATASETS)
def test_units_are_standardised_by_the_law_itself(name):
    """False alarms: 4 tests at 1e-6 per set."""
    assert _moment_p_values(generate(name, ROWS, rng=np.random.default_rng())).min() > ALPHA


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(("shift", "factor"), [(0.03, 1.0), (0.0, 1.03)])
def test_units_three_percent_off_are_noticed(monkeypatch, name, shift, factor):
    law = DATASETS[name]
    wrong = dataclasses.replace(
        law,
        shift=tuple(s + shift * sd for s, sd in zip(law.shift, law.scale, strict=True)),
        scale=tuple(factor * sd for sd in law.scale),
    )
    monkeypatch.setitem(data.DATASETS, name, wrong)
    assert _moment_p_values(generate(name, ROWS, rng=np.random.default_rng())).min() < ALPHA


@pytest.mark.parametrize("name", DATASETS)
def test_rows_keep_to_the_declared_bounds(name):
    rows = generate(name, ROWS, rng=np.random.default_rng())
    assert rows.dtype == np.float64
    assert (rows >= DATASETS[name].low).all()
    assert (rows <= DATASETS[name].high).all()


def test_the_bounds_are_passed_with_probability_below_one_in_a_billion():
    gap = {
        "pinwheel": (4 * data._PINWHEEL_SD / 10 - 1) / data.PINWHEEL_RADIAL,
        "half-moons": (2.5 * data._MOONS_SD[1] - 0.75) / data.MOONS_NOISE,
        "gaussians": (2.5 * data._GAUSSIANS_SD - 2) / data.GAUSSIANS_SPREAD,
    }
    assert gap.keys() == DATASETS.keys()
    # four sides; the pinwheel's radius is its first coordinate up to a spread of 0.05
    assert all(4 * stats.norm.sf(distance) < 1e-9 for distance in gap.values())


def _moons_p_value(rows: np.ndarray) -> float:
    """Compare with scikit-learn's half moons: both coordinates and the distance to an arc."""
    expected = make_moons(ROWS, noise=0.05)[0]
    return min(
        stats.ks_2samp(ours, theirs).pvalue
        for ours, theirs in zip(_moon_features(rows), _moon_features(expected), strict=True)
    )


def _moon_features(rows: np.ndarray) -> tuple[np.ndarray, ...]:
    upper = np.linalg.norm(rows, axis=1) - 1
    lower = np.linalg.norm(rows - [1.0, 0.5], axis=1) - 1
    return rows[:, 0], rows[:, 1], np.where(np.abs(upper) < np.abs(lower), upper, lower)


def _raw(name: str, **constants: float) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in constants.items():
            patch.setattr(data, constant, value)
        return DATASETS[name].draw(ROWS, np.random.default_rng())


def test_half_moons_are_those_of_scikit_learn():
    """False alarms: 3 Kolmogorov-Smirnov tests at 1e-6."""
    assert _moons_p_value(_raw("half-moons")) > ALPHA


def test_half_moons_with_ten_percent_more_noise_are_noticed():
    assert _moons_p_value(_raw("half-moons", MOONS_NOISE=0.055)) < ALPHA


def _pinwheel_p_value(rows: np.ndarray) -> float:
    """Untwist the arms: what is left has the stated spreads and equal shares."""
    radius = np.linalg.norm(rows, axis=1) / 10
    angle = np.arctan2(-rows[:, 1], rows[:, 0]) - 0.25 * np.exp(radius)
    turns = angle / (2 * math.pi / 5)
    arm = np.rint(turns)
    across = radius * np.sin((turns - arm) * (2 * math.pi / 5))
    shares = np.unique(arm.astype(int) % 5, return_counts=True)[1]
    # near the centre arms touch and radius is no longer the first coordinate
    far = radius > 1
    expected = stats.norm(0, 0.05).cdf
    return min(
        float(stats.chisquare(shares).pvalue), float(stats.kstest(across[far], expected).pvalue)
    )


def test_pinwheel_untwists_to_five_equal_arms():
    """False alarms: 2 tests at 1e-6, and the untwisting is exact to 1e-3 beyond radius 1."""
    assert _pinwheel_p_value(_raw("pinwheel")) > ALPHA


@pytest.mark.parametrize(
    "mistake", [{"PINWHEEL_TANGENTIAL": 0.055}, {"PINWHEEL_RATE": 0.26}, {"PINWHEEL_ARMS": 4}]
)
def test_another_pinwheel_is_noticed(mistake):
    assert _pinwheel_p_value(_raw("pinwheel", **mistake)) < ALPHA


def _gaussians_p_value(rows: np.ndarray) -> float:
    """Distances to the nearest of the eight centres, and equal shares."""
    angle = np.arange(8) * math.pi / 4
    centres = 3 + 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    distances = np.linalg.norm(rows[:, None] - centres, axis=2)
    shares = np.bincount(distances.argmin(axis=1), minlength=8)
    spread = stats.rayleigh(scale=0.2).cdf
    return min(
        float(stats.chisquare(shares).pvalue),
        float(stats.kstest(distances.min(axis=1), spread).pvalue),
    )


def test_gaussians_are_eight_of_equal_share():
    """False alarms: 2 tests at 1e-6; neighbouring centres are 7.7 spreads apart."""
    assert _gaussians_p_value(_raw("gaussians")) > ALPHA


@pytest.mark.parametrize("mistake", [{"GAUSSIANS_SPREAD": 0.21}, {"GAUSSIANS_COUNT": 7}])
def test_other_gaussians_are_noticed(mistake):
    assert _gaussians_p_value(_raw("gaussians", **mistake)) < ALPHA


def test_rows_depend_on_the_generator_alone():
    first, again = (generate("pinwheel", 9, rng=np.random.default_rng(3)) for _ in range(2))
    other = generate("pinwheel", 9, rng=np.random.default_rng())
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("name", "rows"), [("moon", 10), ("pinwheel", 0)])
def test_mistakes_are_explained(name, rows):
    with pytest.raises(InputError, match=r"data set must be one of|rows must be at least 1"):
        generate(name, rows, rng=np.random.default_rng())

"""No row moves what a density is made of further than claimed, and some row moves it that far."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.privacy.events import NEIGHBOURS
from dpflows.privacy.mechanisms import statistics
from dpflows.privacy.mechanisms.statistics import (
    COUNTING,
    KERNEL,
    KernelAxis,
    Weights,
    grid_counts,
    kernel_sums,
    noisy_covariance,
    noisy_grid,
    noisy_kernel_sum,
    weighted_sums,
)
from dpflows.privacy.randomness import Entropy

OS = Entropy.from_os()
BOX = (np.array([-2.0, 0.0]), np.array([3.0, 1e-3]))
AXIS = KernelAxis(points=24, bandwidth=0.05)
RADIUS = 3.0
CELL = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.floats(-4, 4),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 3.0]),
)
ROW = st.tuples(CELL, CELL).map(list)
TABLE = st.lists(ROW, min_size=1, max_size=6)


def l1(difference):
    return float(np.abs(difference).sum())


def l2(difference):
    return float(np.linalg.norm(difference))


STATISTICS = {
    "covariance": (
        lambda rows: weighted_sums(rows, radius=RADIUS),
        l2,
        Weights.best(radius=RADIUS, columns=2).sensitivity,
    ),
    "grid": (lambda rows: grid_counts(rows, *BOX, bins=3), l1, COUNTING),
    "kernels": (lambda rows: kernel_sums(rows, *BOX, AXIS), l2, KERNEL),
    "distributions": (
        lambda rows: np.concatenate(
            [level.ravel() for level in statistics.nested_counts(rows, *BOX)]
        ),
        l2,
        statistics.trees_sensitivity(2),
    ),
}


def neighbour(rows, place, other, neighbours):
    """The table after one row was blanked out, removed or replaced."""
    middle = {"zero-out": [[math.nan] * 2], "add-remove": [], "replace-one": [other]}[neighbours]
    return [*rows[:place], *middle, *rows[place + 1 :]]


def moved(name, rows, other):
    compute, norm, _ = STATISTICS[name]
    before, after = (np.array(table, dtype=float).reshape(-1, 2) for table in (rows, other))
    return norm(compute(before) - compute(after))


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=60, deadline=None)
@given(rows=TABLE, other=ROW, data=st.data())
def test_no_row_moves_a_statistic_by_more_than_claimed(name, neighbours, rows, other, data):
    place = data.draw(st.integers(0, len(rows) - 1))
    claimed = STATISTICS[name][2].under(neighbours)
    assert moved(name, rows, neighbour(rows, place, other, neighbours)) <= claimed * (1 + 1e-12)


def worst_pair():
    """Two rows of full length at the angle where replacing one by the other counts most."""
    cosine = -(Weights.best(radius=RADIUS, columns=2).mean ** 2) / 2
    return [[1e9, 0.0]], [[1e9 * cosine, 1e9 * math.sqrt(1 - cosine**2)]]


NOBODY = [[math.nan, math.nan]]
WORST = {
    "covariance": (worst_pair()[0], NOBODY, "zero-out"),
    "covariance, replaced": (*worst_pair(), "replace-one"),
    "grid": ([[0.0, 0.0]], NOBODY, "zero-out"),
    "grid, replaced": ([[-2.0, 0.0]], [[3.0, 0.0]], "replace-one"),
    "kernels": ([[0.5, 5e-4]], NOBODY, "zero-out"),
    "kernels, replaced": ([[-1.0, 1e-4]], [[2.0, 9e-4]], "replace-one"),
    "distributions": ([[0.5, 5e-4]], NOBODY, "zero-out"),
    "distributions, replaced": ([[-2.0, 0.0]], [[3.0, 1e-3]], "replace-one"),
}


@pytest.mark.parametrize("case", WORST)
def test_the_worst_row_attains_the_claim(case):
    """Up to what the lattice takes: a claim that is not attained wastes budget."""
    rows, other, neighbours = WORST[case]
    name = case.split(",")[0]
    claimed = STATISTICS[name][2].under(neighbours)
    assert moved(name, rows, other) == pytest.approx(claimed, rel=3e-3)


@pytest.mark.parametrize(("radius", "columns"), [(0.5, 1), (3.0, 2), (8.3, 10)])
def test_the_replacement_bound_of_covariances_holds_on_a_fine_search(radius, columns):
    """Over lengths and angles of both rows, not only where the derivation says the worst is."""
    mean = Weights.best(radius=radius, columns=columns).mean
    one, two = np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101))
    bound = Weights.best(radius=radius, columns=columns).sensitivity.under("replace-one") ** 2
    for cosine in np.linspace(-1, 1, 201):
        line = mean**2 * (one**2 + two**2 - 2 * one * two * cosine)
        square = one**4 + two**4 - 2 * (one * two * cosine) ** 2
        assert (line + square).max() <= bound


@pytest.mark.parametrize("bandwidth", [0.004, 0.02, 0.25])
def test_kernel_coordinates_are_never_longer_than_one(bandwidth):
    axis = KernelAxis(points=256, bandwidth=bandwidth)
    lengths = np.linalg.norm(axis.coordinates(np.linspace(0, 1, 3001)), axis=1)
    assert lengths.max() <= 1
    assert lengths.mean() > 0.9


def test_kernel_noise_is_a_path_of_the_gaussian_process():
    """Empty tables show the noise alone; its covariance at the grid is the kernel's.

    400 paths give each of 16 x 16 covariances to 0.07; false alarms below one in a million
    for a deviation of 0.4. Independent noise of the same strength is rejected.
    """
    axis, rows = KernelAxis(points=16, bandwidth=0.1), np.empty((0, 1))
    box = (np.zeros(1), np.ones(1))
    paths = [
        noisy_kernel_sum(rows, *box, axis=axis, noise=1.0, entropy=OS).value for _ in range(400)
    ]
    expected = axis._kernel(axis.points)
    assert np.abs(np.cov(np.array(paths).T) - expected).max() < 0.4
    assert np.abs(np.eye(16) - expected).max() > 0.4


def test_kernel_values_are_sums_of_kernels_but_for_the_lattice():
    rows = np.random.default_rng(1).uniform(size=(500, 2))
    axis, box = KernelAxis(points=40, bandwidth=0.08), (np.zeros(2), np.ones(2))
    found = axis.values @ kernel_sums(rows, *box, axis) @ axis.values.T
    exact = axis._kernel(rows[:, 0]).T @ axis._kernel(rows[:, 1])
    np.testing.assert_allclose(found, exact, atol=0.02 * exact.max())


@pytest.mark.parametrize(
    "rows", [[], [[math.nan, 0.0]], [[math.inf, -math.inf]], [[1e308, 5e-324]]]
)
def test_hostile_rows_are_answered_not_refused(rows):
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    found = noisy_covariance(table, radius=2.0, noise=1.0, entropy=OS).value
    assert np.isfinite([*found.mean, *found.covariance.ravel(), found.count]).all()
    assert noisy_grid(table, *BOX, bins=3, scale=1.0, entropy=OS).value.shape == (3, 3)
    values = noisy_kernel_sum(table, *BOX, axis=AXIS, noise=1.0, entropy=OS).value
    assert np.isfinite(values).all()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: noisy_covariance(t, radius=0.0, noise=1.0, entropy=OS), "radius must be"),
        (lambda t: noisy_covariance(t, radius=1.0, noise=0.0, entropy=OS), "noise must be"),
        (lambda t: noisy_grid(t, *BOX, bins=0, scale=1.0, entropy=OS), "bins must be at least"),
        (lambda t: noisy_grid(t, *BOX, bins=1025, scale=1.0, entropy=OS), "1,048,576 cells"),
        (lambda t: KernelAxis(points=257, bandwidth=0.1), "points must be from 2 to 256"),
        (lambda t: KernelAxis(points=9, bandwidth=0.0), "bandwidth must be"),
        (
            lambda t: noisy_kernel_sum(
                np.ones((2, 3)), np.zeros(3), np.ones(3), axis=AXIS, noise=1.0, entropy=OS
            ),
            "at most 2 columns",
        ),
    ],
)
def test_public_parameters_are_checked(ask, message):
    with pytest.raises(InputError, match=message):
        ask(np.zeros((2, 2)))

"""Normalisers undo what they do, and know their Jacobian."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.models import Curve, Curves, Scaling, normaliser_from

STEPS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


def curve(x_steps, z_steps):
    size = min(len(x_steps), len(z_steps))
    x, z = (np.concatenate([[-3.0], -3.0 + np.cumsum(s[:size])]) for s in (x_steps, z_steps))
    return Curve(x, z)


def places(found):
    """Inside, at the knots and beyond both ends."""
    reach = found.x[-1] - found.x[0]
    return np.concatenate([np.linspace(found.x[0] - reach, found.x[-1] + reach, 301), found.x])


@given(STEPS, STEPS)
def test_a_curve_is_undone(x_steps, z_steps):
    found = curve(x_steps, z_steps)
    x = places(found)
    assert found.inverse(found.value(x)) == pytest.approx(x, rel=1e-6, abs=1e-6)


@given(STEPS, STEPS)
def test_a_curve_climbs_and_meets_its_knots(x_steps, z_steps):
    found = curve(x_steps, z_steps)
    assert found.value(found.x) == pytest.approx(found.z, rel=1e-9, abs=1e-9)
    # places may be a rounding apart, and so may their values
    rounding = 1e-12 * np.abs(found.value(places(found))).max()
    assert (np.diff(found.value(np.sort(places(found)))) >= -rounding).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_log_slope_is_the_derivative(seed):
    rng = np.random.default_rng(seed)
    found = curve(list(rng.uniform(0.1, 2, 8)), list(rng.uniform(0.1, 2, 8)))
    x = rng.uniform(found.x[0] - 2, found.x[-1] + 2, 500)
    x = x[np.abs(x[:, None] - found.x).min(axis=1) > 1e-4]
    slope = (found.value(x + 1e-6) - found.value(x - 1e-6)) / 2e-6
    assert np.exp(found.log_slope(x)) == pytest.approx(slope, rel=1e-4)


def test_curves_work_column_by_column():
    rng = np.random.default_rng(1)
    curves = Curves([curve([1.0, 2.0], [0.5, 3.0]), curve([0.1], [5.0])])
    rows = rng.normal(size=(50, 2))
    assert curves.undo(curves.apply(rows)) == pytest.approx(rows)
    apart = sum(c.log_slope(rows[:, j]) for j, c in enumerate(curves.curves))
    assert curves.log_det(rows) == pytest.approx(apart)


@pytest.mark.parametrize(
    "normaliser",
    [Scaling([1.0, 2.0], [3.0, 4.0]), Curves([curve([1.0, 2.0], [0.5, 3.0]), curve([0.1], [5.0])])],
)
def test_a_normaliser_comes_back_from_its_arrays(normaliser):
    rows = np.random.default_rng(2).normal(size=(20, 2))
    again = normaliser_from(normaliser.arrays())
    assert again.apply(rows) == pytest.approx(normaliser.apply(rows))
    assert again.dim == normaliser.dim == 2


@pytest.mark.parametrize(
    "change",
    [
        {"curve-lengths": np.array([2, 9])},
        {"curve-lengths": np.array([[2, 2]])},
        {"curve-lengths": np.array([1, 3])},
        {"curve-knots": np.array([0.0, 1.0, 1.0, 0.0])},
        {"curve-knots": np.array([0.0, np.nan, 0.0, 1.0])},
        {"curve-heights": np.zeros(4)},
    ],
)
def test_forged_curves_are_refused(change):
    arrays = {
        "curve-lengths": np.array([2, 2]),
        "curve-knots": np.array([0.0, 1.0, 0.0, 1.0]),
        "curve-heights": np.array([0.0, 1.0, 0.0, 1.0]),
    }
    normaliser_from(arrays)
    with pytest.raises(InputError):
        normaliser_from(arrays | change)

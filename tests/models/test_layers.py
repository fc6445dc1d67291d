import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.models.architectures import Spline
from dpflows.models.bijections import BoundedAffine, TriangularLinear, bounded

finite = st.floats(-1e6, 1e6, width=32)


def test_bounded_is_the_identity_near_zero():
    raw = jnp.linspace(-0.1, 0.1, 11)
    np.testing.assert_allclose(bounded(raw), raw, atol=1e-4)


@pytest.mark.parametrize("raw", [-1e30, -100.0, 100.0, 1e30])
def test_scales_never_overflow(raw):
    y, log_det = BoundedAffine(jnp.zeros(1), jnp.full(1, raw)).transform_and_log_det(jnp.ones(1))
    assert float(jnp.abs(log_det)) <= 4
    assert bool(jnp.isfinite(y).all())


_spline = jax.jit(
    lambda raw, x: (
        Spline(raw, 4.0).transform_and_log_det(x),
        Spline(raw, 4.0).inverse_and_log_det(x),
    )
)


@settings(max_examples=300, deadline=None)
@given(st.lists(finite, min_size=14, max_size=14), finite)
def test_splines_are_finite_for_any_parameters(raw, x):
    for value, log_det in _spline(jnp.asarray(raw, jnp.float32), jnp.float32(x)):
        assert np.isfinite(value)
        assert np.isfinite(log_det)


@pytest.mark.parametrize("x", [-1e6, -4.001, 4.001, 1e6])
def test_splines_are_the_identity_outside(x):
    raw = jnp.linspace(-3, 3, 14)
    for value, log_det in _spline(raw, jnp.float32(x)):
        assert float(value) == np.float32(x)
        assert float(log_det) == 0


@pytest.mark.parametrize("end", [-4.0, 4.0])
def test_splines_meet_the_identity_smoothly(end):
    raw = jnp.linspace(-3, 3, 14)
    (value, log_det), _ = _spline(raw, jnp.float32(end))
    assert float(value) == pytest.approx(end, abs=1e-5)
    assert float(log_det) == pytest.approx(0, abs=1e-5)


def test_steep_splines_come_back_in_float32():
    raws = 4 * np.random.default_rng(0).normal(size=(200, 14)).astype(np.float32)
    points = np.linspace(-3.99, 3.99, 101, dtype=np.float32)
    steep = jax.vmap(jax.vmap(_round_trip, (None, 0)), (0, None))
    back, log_det = steep(raws, points)
    # The error in x is that of y, a rounding of 4, over the slope.
    room = 64 * 4 * np.finfo(np.float32).eps * np.maximum(1, np.exp(-np.asarray(log_det)))
    assert (np.abs(np.asarray(back) - points) <= room).mean() > 0.999


def _round_trip(raw, x):
    y, log_det = Spline(raw, 4.0).transform_and_log_det(x)
    return Spline(raw, 4.0).inverse(y), log_det


@pytest.mark.parametrize("size", [0.0, 1.0, 1e6])
def test_mixing_is_well_conditioned(size):
    raw = size * jnp.asarray(np.random.default_rng(1).normal(size=(5, 5)), jnp.float32)
    layer = TriangularLinear(raw)
    x = jnp.linspace(-2, 2, 5)
    y, log_det = layer.transform_and_log_det(x)
    assert abs(float(log_det)) <= 20
    back, _ = layer.inverse_and_log_det(y)
    np.testing.assert_allclose(back, x, atol=0.05)

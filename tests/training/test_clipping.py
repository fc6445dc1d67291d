"""Clipping bounds a row whatever it holds, and taps know their limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.training.ghost_clipping import (
    Clipping,
    agree,
    by_rows,
    by_taps,
    choose_clipper,
    rounding_margin,
    take_apart,
)

NORMS = np.concatenate([[0.0, 1e-45, 1e-30], np.logspace(-8, 18, 200)]).astype(np.float32)
#: What rounding of the factor itself may use up.
MARGIN = rounding_margin(0, 1)


class UsedTwice(eqx.Module):
    """Applies one layer twice, which taps cannot follow."""

    layer: eqx.nn.Linear

    def log_prob(self, row):
        return -jnp.sum(jnp.tanh(self.layer(jnp.tanh(self.layer(row)))) ** 2)


@pytest.mark.parametrize("kind", ["fixed", "automatic"])
@pytest.mark.parametrize("norm", [1e-3, 1.0, 12.0])
def test_factor_never_lets_a_gradient_past_the_norm(kind, norm):
    factor = np.asarray(Clipping(norm, kind).factor(jnp.asarray(NORMS), margin=MARGIN), np.float64)
    assert (factor * NORMS.astype(np.float64) <= norm).all()


@pytest.mark.parametrize("kind", ["fixed", "automatic"])
def test_a_row_without_a_finite_norm_is_multiplied_by_zero(kind):
    assert float(Clipping(1.0, kind).factor(jnp.asarray(np.inf), margin=MARGIN)) == 0.0


def test_small_gradients_pass_unchanged_when_fixed():
    assert float(Clipping(2.0).factor(jnp.asarray(1.9), margin=MARGIN)) == 1.0


def test_automatic_clipping_lifts_small_gradients():
    assert float(Clipping(1.0, "automatic").factor(jnp.asarray(0.1), margin=MARGIN)) > 5


@pytest.mark.parametrize("norm", [0.0, -1.0, np.inf, np.nan])
def test_impossible_norms_are_refused(norm):
    with pytest.raises(InputError, match="clipping norm must be positive"):
        Clipping(norm)


def test_unknown_kinds_are_refused():
    with pytest.raises(InputError, match="clipping kind must be"):
        Clipping(1.0, "median")


def test_sensitivity_travels_with_the_sum(taken_apart, loss):
    parameters, blueprint = taken_apart
    clip = by_taps(loss, blueprint, Clipping(0.3))
    total = eqx.filter_eval_shape(clip, parameters, jnp.ones((2, 3)), jnp.ones(2, bool))
    assert total.sensitivity == 0.3


def test_automatic_taps_equal_automatic_rows(taken_apart, loss):
    parameters, blueprint = taken_apart
    clipping = Clipping(1.0, "automatic")
    makers = (by_taps(loss, blueprint, clipping), by_rows(loss, blueprint, clipping))
    assert agree(*makers, parameters, 3)


def test_taps_are_chosen_where_they_are_exact(taken_apart, loss):
    parameters, blueprint = taken_apart
    chosen = choose_clipper(loss, blueprint, Clipping(), parameters, 3)
    assert chosen.clip.func.__name__ == "_clip_by_taps"


def test_a_layer_used_twice_falls_back_with_a_notice(loss):
    parameters, blueprint = take_apart(UsedTwice(eqx.nn.Linear(3, 3, key=jax.random.key(0))))
    with pytest.warns(UserWarning, match="ghost clipping is not exact"):
        chosen = choose_clipper(loss, blueprint, Clipping(), parameters, 3)
    assert chosen.clip.func.__name__ == "_clip_by_rows"


def test_rows_are_padded_to_whole_microbatches(taken_apart, loss):
    parameters, blueprint = taken_apart
    rows = jax.random.normal(jax.random.key(0), (5, 3))
    clippers = [by_rows(loss, blueprint, Clipping(), microbatch=size) for size in (2, 5)]
    sums = [
        jax.jit(lambda *batch, clip=clip: clip(*batch).gradient)(
            parameters, rows, jnp.ones(5, bool)
        )
        for clip in clippers
    ]
    for first, second in zip(*map(jax.tree.leaves, sums), strict=True):
        np.testing.assert_allclose(first, second, rtol=2e-5, atol=1e-6)

"""The recipe with our additions taken away is the released code's model."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dpflows.experiments.recipe_studies import PARTS, Parts, recipe_model
from dpflows.models.density import gaussian
from dpflows.training.ghost_clipping import take_apart

CORNERS = [np.full(10, -9.0), np.full(10, 9.0)]
ROWS = jnp.asarray(np.random.default_rng(4).normal(size=(50, 10)))


def scores(parts: Parts):
    return jax.vmap(recipe_model(parts, 10, CORNERS, jr.key(2)).log_prob)(ROWS)


@pytest.mark.parametrize("name", PARTS)
def test_every_variant_has_the_size_of_the_released_model(name):
    parameters, _ = take_apart(recipe_model(PARTS[name], 10, CORNERS, jr.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(parameters)) == 66_200


def test_a_quiet_start_is_the_base_and_a_spread_out_one_is_not():
    base = jax.vmap(gaussian(10).log_prob)(ROWS)
    quiet = scores(Parts(background=False))
    assert jnp.abs(quiet - base).max() < 0.1
    assert jnp.abs(scores(PARTS["none-of-ours"]) - base).mean() > 0.1


def test_the_background_floors_the_density_of_far_rows():
    far = jnp.full(10, 8.9)
    with_floor, without = (
        recipe_model(PARTS[name], 10, CORNERS, jr.key(1)).log_prob(far)
        for name in ("all-of-ours", "no-background")
    )
    assert with_floor > -40 > without

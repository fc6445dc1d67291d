"""Flows away from their identity start."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def perturbed(model, *, seed, scale=0.15):
    """Every parameter moved by Gaussian noise, in the precision of the day."""
    rng = np.random.default_rng(seed)

    def move(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        moved = np.asarray(leaf) + scale * rng.normal(size=leaf.shape)
        return jnp.asarray(moved, dtype=float)

    return jax.tree.map(move, model)

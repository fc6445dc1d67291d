"""Gaussian noise on every trained coordinate, and on no other.

Guarantee:
    Each unmasked coordinate of the sum receives an independent normal of standard
    deviation ``noise_multiplier * sensitivity``. Masked weights do not exist as
    parameters: they are zero before and after. The analysis is in real arithmetic;
    float32 normals take about 2^23 values (see the pitfall page on floating point).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dpflows.training.clipping import ClippedSum
from dpflows.training.taps import Blueprint, DenseParameters, Parameters


def noisy(
    total: ClippedSum, blueprint: Blueprint, *, noise_multiplier: float, key: PRNGKeyArray
) -> Parameters:
    """The sum plus noise scaled to its sensitivity."""
    scale = noise_multiplier * total.sensitivity
    noise = standard_noise(total.gradient, blueprint, key=key)
    return jax.tree.map(lambda g, z: g + jnp.asarray(scale, g.dtype) * z, total.gradient, noise)


def standard_noise(like: Parameters, blueprint: Blueprint, *, key: PRNGKeyArray) -> Parameters:
    """Standard normals in the shape of the parameters, zero where a mask is."""
    dense_key, free_key = jax.random.split(key)
    keys = jax.random.split(dense_key, max(len(like.dense), 1))
    dense = tuple(
        _dense_noise(k, layer, mask)
        for k, layer, mask in zip(keys, like.dense, blueprint.masks, strict=False)
    )
    leaves, tree = jax.tree.flatten(like.free)
    free = [
        jax.random.normal(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(jax.random.split(free_key, max(len(leaves), 1)), leaves, strict=False)
    ]
    return Parameters(dense, jax.tree.unflatten(tree, free))


def _dense_noise(
    key: PRNGKeyArray, layer: DenseParameters, mask: np.ndarray | None
) -> DenseParameters:
    weight_key, bias_key = jax.random.split(key)
    bias = layer.bias
    return DenseParameters(
        _weight_noise(weight_key, layer.weight, mask),
        None if bias is None else jax.random.normal(bias_key, bias.shape, bias.dtype),
    )


def _weight_noise(key: PRNGKeyArray, weight: Array, mask: np.ndarray | None) -> Array:
    # Drawing for masked weights too is quicker than sorting fewer normals into their places.
    drawn = jax.random.normal(key, weight.shape, weight.dtype)
    return drawn if mask is None else jnp.where(mask, drawn, 0)

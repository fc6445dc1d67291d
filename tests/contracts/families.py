"""Small models of every family, parameters away from their start, and rows meant to harm."""

import jax
import numpy as np
import pytest

from dpflows.models.architectures import ARCHITECTURES, Architecture
from dpflows.models.autoregressive import CellShape
from dpflows.models.density import Defended, wide_gaussian

DIM = 3


def shaken(parameters, seed=1, size=0.1):
    """Parameters away from the identity start, where many gradients vanish."""
    leaves, tree = jax.tree.flatten(parameters)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [
        leaf + size * jax.random.normal(k, leaf.shape, leaf.dtype)
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def model_of(name):
    if name == "cells":
        return CellShape(width=8, depth=2).build((2, 3, 2), key=jax.random.key(0))
    architecture = Architecture(name, width=8, depth=2, blocks=2, knots=4)
    return Defended(architecture.build(DIM, key=jax.random.key(0)), wide_gaussian(DIM))


#: Families whose layers others have too: left to the long suite.
KIN = ("nice", "realnvp", "nsf-coupling")
FLOWS = [
    pytest.param(name, marks=pytest.mark.long) if name in KIN else name for name in ARCHITECTURES
]


def hostile_rows(count, seed=5):
    """Ordinary rows salted with huge, tiny, denormal, infinite and missing entries."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, DIM)) * 10.0 ** rng.integers(-3, 4, size=(count, 1))
    strange = rng.choice(
        [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e30, 1e-38, 1e-45, 0.0, 1e9], rows.shape
    )
    return np.where(rng.random(rows.shape) < 0.3, strange, rows).astype(np.float32)

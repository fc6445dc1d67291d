"""For every model: taps equal whole per-row gradients, and no row exceeds the clip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contracts.families import DIM, FLOWS, hostile_rows, model_of, shaken
from dpflows.pipeline.training import negative_log_likelihood
from dpflows.training.ghost_clipping import Clipping, by_rows, by_taps, take_apart

CLIP = 0.7


def gradient_of(clipper):
    return jax.jit(lambda *arguments: clipper(*arguments).gradient)


@pytest.fixture(scope="module", params=[*FLOWS, "cells"])
def family(request):
    parameters, blueprint = take_apart(model_of(request.param))
    clipping = Clipping(norm=CLIP)
    clippers = {
        name: gradient_of(make(negative_log_likelihood, blueprint, clipping))
        for name, make in (("taps", by_taps), ("rows", by_rows))
    }
    return shaken(parameters), blueprint, clippers


def vector(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("spoiled", [None, np.nan, np.inf])
def test_taps_equal_whole_gradients(family, spoiled):
    parameters, _, clippers = family
    rows = np.array(jax.random.normal(jax.random.key(2), (32, DIM)))
    if spoiled is not None:
        rows[[3, 17]] = spoiled
    present = jnp.arange(32) < 29
    taps, whole = (
        vector(clippers[name](parameters, jnp.asarray(rows), present)) for name in ("taps", "rows")
    )
    assert np.isfinite(taps).all()
    assert np.linalg.norm(taps - whole) <= 1e-5 * np.linalg.norm(whole)


def contributions(clipper, parameters, rows):
    """The norm of what each row alone adds to the sum, in double precision."""

    def alone(row):
        return clipper(parameters, row[None], jnp.ones(1, bool))

    many = jax.jit(jax.vmap(alone))
    parts = [many(jnp.asarray(part)) for part in np.array_split(rows, max(len(rows) // 500, 1))]
    return np.concatenate([row_norms(part) for part in parts])


def row_norms(trees):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(trees)]
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float64)}
    flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    return np.linalg.norm(flat, axis=1)


def largest_contribution(family, count):
    parameters, _, clippers = family
    norms = contributions(clippers["taps"], parameters, hostile_rows(count))
    assert (norms > 0.9 * CLIP).any()
    return norms.max()


def test_no_hostile_row_exceeds_the_clip(family):
    assert largest_contribution(family, 1000) <= CLIP


@pytest.mark.long
def test_no_hostile_row_exceeds_the_clip_at_full_size(family):
    assert largest_contribution(family, 10_000) <= CLIP


def test_an_absent_row_adds_nothing(family):
    parameters, _, clippers = family
    rows = jax.random.normal(jax.random.key(2), (32, DIM))
    nothing = clippers["taps"](parameters, rows, jnp.zeros(32, bool))
    assert not vector(nothing).any()


def test_hidden_weights_have_no_gradient(family):
    parameters, blueprint, clippers = family
    rows = jax.random.normal(jax.random.key(2), (32, DIM))
    gradient = clippers["taps"](parameters, rows, jnp.ones(32, bool))
    for layer, mask in zip(gradient.dense, blueprint.masks, strict=True):
        if mask is not None:
            assert not np.asarray(layer.weight)[..., ~mask].any()

"""Halves take the place of the whole."""

import numpy as np
import pytest

from dpflows.training.local_frames import (
    Components,
    Recipe,
    State,
    longest_axes,
    split,
    with_scout,
    without_idle_scout,
)


def state(k, d, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.tril(rng.normal(size=(k, d, d)))
    factors[:, range(d), range(d)] = rng.uniform(0.5, 2, size=(k, d))
    parts = Components(rng.dirichlet(np.ones(k)), rng.normal(size=(k, d)), factors)
    return State(parts, np.full(k, 0.01), np.full(k, 0.02), np.full(k, 0.03))


def moments(parts):
    mean = parts.weights @ parts.means
    centred = parts.means - mean
    within = np.einsum("k,kij,klj->il", parts.weights, parts.factors, parts.factors)
    return mean, within + np.einsum("k,ki,kj->ij", parts.weights, centred, centred)


@pytest.mark.parametrize(("k", "target"), [(1, 2), (3, 5), (4, 8)])
def test_a_split_keeps_the_moments_of_the_mixture(k, target):
    before = state(k, 3)
    after = split(before, target, Recipe(), 3)
    assert len(after.components) == target
    for old, new in zip(moments(before.components), moments(after.components), strict=True):
        assert new == pytest.approx(old)


def test_the_heaviest_are_split_and_become_uncertain():
    before = state(4, 2)
    after = split(before, 5, Recipe(), 2)
    heaviest = int(np.argmax(before.components.weights))
    changed = np.flatnonzero(after.mean != 0.02)
    assert changed.tolist() == [heaviest, 4]
    assert (after.shape[changed] == Recipe().shape_variance).all()


def test_at_most_double_and_never_fewer():
    assert len(split(state(3, 2), 100, Recipe(), 2).components) == 6
    assert len(split(state(3, 2), 2, Recipe(), 2).components) == 3


def test_the_cut_lies_across_the_longest_axis():
    factors = np.linalg.cholesky(np.array([[[4.0, 1.9], [1.9, 1.0]]]))
    world = factors[0] @ longest_axes(factors, 2)[0]
    longest = np.linalg.eigh(factors[0] @ factors[0].T)[1][:, -1]
    assert abs(world @ longest) == pytest.approx(np.linalg.norm(world))


@pytest.mark.parametrize("block", [1, 2])
def test_the_cut_keeps_the_form_of_the_covariance(block):
    before = state(1, 4)
    factors = before.components.factors * np.eye(4)
    factors[:, :block, :block] = before.components.factors[:, :block, :block]
    parts = Components(np.ones(1), before.components.means, factors)
    after = split(State.fresh(parts, Recipe()), 2, Recipe(), block).components.factors
    outside = np.ones((4, 4), dtype=bool)
    outside[:block, :block] = False
    assert abs(after[:, outside & ~np.eye(4, dtype=bool)]).max() < 1e-12


def test_a_scout_is_last_uncertain_and_leaves_if_idle():
    before = state(3, 2)
    wide = Components(np.ones(1), np.zeros((1, 2)), 9 * np.eye(2)[None])
    sent = with_scout(before, wide, 0.01)
    assert sent.components.weights.sum() == pytest.approx(1.0)
    assert (sent.components.factors[-1] == wide.factors[0]).all()
    assert sent.shape[-1] == 1.0
    back = without_idle_scout(sent, 0.02)
    assert back.components.weights == pytest.approx(before.components.weights)
    assert len(without_idle_scout(sent, 0.005).components) == 4

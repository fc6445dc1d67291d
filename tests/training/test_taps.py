"""Taking a model apart and putting it back loses nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
import pytest
from flowjax.bijections import Affine, Scan

from dpflows.training.ghost_clipping import MaskGroups, take_apart, unrolled


def test_put_together_again_the_model_is_the_same(taken_apart):
    parameters, blueprint = taken_apart
    again, _ = take_apart(blueprint.assemble(parameters))
    for first, second in zip(*map(jax.tree.leaves, (parameters, again)), strict=True):
        np.testing.assert_array_equal(first, second)


def test_taps_do_not_change_the_loss(taken_apart, loss):
    parameters, blueprint = taken_apart
    row = jnp.asarray([0.3, -1.0, 2.0])
    tapped = blueprint.assemble_tapped(parameters, blueprint.zero_taps(parameters))
    np.testing.assert_allclose(
        loss(tapped, row), loss(blueprint.assemble(parameters), row), rtol=1e-6
    )


def test_frozen_arrays_are_not_parameters():
    model = (paramax.NonTrainable(jnp.ones(4)), eqx.nn.Linear(2, 3, key=jax.random.key(0)))
    parameters, _ = take_apart(model)
    assert sum(leaf.size for leaf in jax.tree.leaves(parameters)) == 2 * 3 + 3


def test_layers_without_bias_are_handled():
    parameters, blueprint = take_apart(eqx.nn.Linear(2, 3, use_bias=False, key=jax.random.key(0)))
    assert parameters.dense[0].bias is None
    assert blueprint.assemble(parameters).bias is None


def test_mask_groups_sum_over_the_mask():
    rng = np.random.default_rng(0)
    mask = rng.random((7, 5)) < 0.5
    inputs, outputs = rng.random((4, 5)), rng.random((4, 7))
    expected = np.einsum("ni,no,oi->n", inputs, outputs, mask)
    found = MaskGroups.of(mask).pair(jnp.asarray(inputs), jnp.asarray(outputs))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_stacked_layers_with_unlike_masks_are_refused():
    layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    masks = jnp.asarray([[[True, False], [True, True]], [[True, True], [True, True]]])
    weight = paramax.Parameterize(jnp.where, masks, jnp.ones((2, 2, 2)), 0)
    stacked = eqx.tree_at(lambda node: node.weight, layer, weight)
    with pytest.raises(ValueError, match="share one mask"):
        take_apart(stacked)


def test_a_tapped_model_has_no_scan(taken_apart):
    parameters, blueprint = taken_apart
    assert any(blueprint.scanned)
    tapped = blueprint.assemble_tapped(parameters, blueprint.zero_taps(parameters))
    nodes = jax.tree.leaves(tapped, is_leaf=lambda node: isinstance(node, Scan))
    assert not any(isinstance(node, Scan) for node in nodes)


def test_an_unrolled_scan_does_the_same_in_the_same_order():
    scan = Scan(eqx.filter_vmap(Affine)(jnp.asarray([[1.0], [2.0]]), jnp.asarray([[3.0], [0.5]])))
    model, x = paramax.unwrap(scan), jnp.asarray([0.7])
    for name in ("transform_and_log_det", "inverse_and_log_det"):
        for first, second in zip(
            getattr(model, name)(x), getattr(unrolled(model), name)(x), strict=True
        ):
            np.testing.assert_allclose(first, second, rtol=1e-6)


def test_mask_groups_pair_every_output_with_the_offset():
    mask = np.asarray([[True, False], [False, False]])
    found = MaskGroups.of(mask).pair(jnp.asarray([2.0, 5.0]), jnp.asarray([3.0, 7.0]), offset=1.0)
    np.testing.assert_allclose(found, 2 * 3 + 3 + 7)

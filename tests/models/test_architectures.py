import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from flowjax.distributions import Normal

from dpflows.errors import InputError
from dpflows.models import ARCHITECTURES, Architecture, gaussian
from dpflows.models.architectures import Additive, Affine, AffineSpline, RationalQuadratic


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "planar"),
        ("width", 0),
        ("depth", -1),
        ("blocks", 0),
        ("knots", True),
        ("interval", 0.0),
        ("interval", float("nan")),
        ("transformer", "additive"),
    ],
)
def test_refuses_what_it_cannot_build(field, value):
    with pytest.raises(InputError, match=f"^{field} must"):
        dataclasses.replace(Architecture(), **{field: value})


def test_neural_autoregressive_takes_no_transformer():
    with pytest.raises(InputError, match="^transformer must"):
        Architecture("bnaf", transformer="affine")


@pytest.mark.parametrize("dim", [0, -1])
def test_refuses_a_table_without_columns(dim):
    with pytest.raises(InputError, match="^dim must"):
        Architecture().build(dim, key=jr.key(0))


def test_refuses_a_base_of_another_shape():
    with pytest.raises(InputError, match="^base must have shape"):
        Architecture().build(3, key=jr.key(0), base=gaussian(2))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_survives_json(name):
    shape = Architecture(name, width=7, interval=3.5)
    assert Architecture(**json.loads(json.dumps(dataclasses.asdict(shape)))) == shape


def test_each_family_has_its_own_scalar_map():
    assert isinstance(Architecture("maf").scalar_map(), Affine)
    assert isinstance(Architecture("nice").scalar_map(), Additive)
    assert Architecture("nsf", knots=5).scalar_map() == AffineSpline(RationalQuadratic(5, 4.0))
    assert Architecture("maf", transformer="spline").scalar_map() == RationalQuadratic(8, 4.0)


def test_the_paper_s_model_has_66200_parameters():
    """The released model: 5 x [MADE, reverse, ActNorm] with two hidden layers of 100, d=10."""
    flow = Architecture("maf", width=100, depth=2, blocks=5).build(10, key=jr.key(0))
    sizes = [leaf.size for leaf in jax.tree.leaves(eqx.filter(flow, eqx.is_inexact_array))]
    assert sum(sizes) == 66_200


def _linear_layers(flow):
    def is_linear(node):
        return isinstance(node, eqx.nn.Linear)

    return [n for n in jax.tree.leaves(flow, is_leaf=is_linear) if is_linear(n)]


@pytest.mark.parametrize("name", ["maf", "glow", "bnaf"])
def test_parameters_outside_linear_layers_are_few(name):
    flow = Architecture(name, width=64, blocks=2).build(10, key=jr.key(0))
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(flow, eqx.is_inexact_array)))
    linear = sum(
        x.size
        for layer in _linear_layers(flow)
        for x in jax.tree.leaves(eqx.filter(layer, eqx.is_inexact_array))
    )
    assert count - linear <= 2 * 8 * 10**2


def test_different_keys_give_different_flows():
    shape = Architecture("maf", width=4, depth=1, blocks=1)
    one, two = (shape.build(2, key=jr.key(seed)) for seed in (0, 1))
    x = jnp.array([1.0, -1.0])
    assert float(one.log_prob(x)) != float(two.log_prob(x))


@pytest.mark.parametrize("blocks", [2, 3])
@pytest.mark.parametrize("name", ["maf", "nsf", "realnvp", "glow", "nice"])
def test_a_fresh_flow_is_near_its_base_column_by_column(name, blocks):
    base = Normal(jnp.array([5.0, -5.0, 0.0]), jnp.array([0.5, 1.0, 2.0]))
    flow = Architecture(name, width=8, blocks=blocks).build(3, key=jr.key(0), base=base)
    rows = base.sample(jr.key(1), (200,))
    assert jnp.abs(flow.log_prob(rows) - base.log_prob(rows)).max() < 1.5

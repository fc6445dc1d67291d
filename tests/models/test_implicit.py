import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from dpflows.models import Architecture
from dpflows.models.bijections import Implicit, RowMap
from models.perturbing import perturbed


def _unrolled(flow):
    """The same flow, differentiated through every step of the solve."""

    def is_implicit(node):
        return isinstance(node, Implicit)

    def turn(node):
        return _Through(node.bijection) if is_implicit(node) else node

    return jax.tree.map(turn, flow, is_leaf=is_implicit)


class _Through(RowMap):
    bijection: object
    shape: tuple
    cond_shape: None

    def __init__(self, bijection):
        self.bijection = bijection
        self.shape = bijection.shape
        self.cond_shape = None

    def forward(self, x):
        return self.bijection.inverse_and_log_det(x)

    def backward(self, y):
        return self.bijection.transform_and_log_det(y)


@eqx.filter_jit
def _gradients(flow, x):
    def loss(both):
        return both[0].log_prob(both[1])

    return eqx.filter_grad(loss)((flow, x))


def test_gradients_equal_those_of_the_unrolled_solve():
    with jax.enable_x64(True):
        shape = Architecture("iaf", width=6, depth=1, blocks=2)
        flow = perturbed(shape.build(3, key=jr.key(0)), seed=0)
        x = jnp.array([0.3, -1.2, 0.8])
        ours, theirs = (_gradients(f, x) for f in (flow, _unrolled(flow)))
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

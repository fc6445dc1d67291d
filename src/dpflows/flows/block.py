"""A monotone autoregressive network without weight normalisation."""

import math
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from flowjax.bijections import (
    AbstractBijection,
    BlockAutoregressiveNetwork,
    LeakyTanh,
    NumericalInverse,
)
from flowjax.masks import block_tril_mask
from jaxtyping import Array, Float, PRNGKeyArray
from paramax import Parameterize

from dpflows.flows.layers import bounded

# Activations of one block are centred evenly over [-4, 4]: their mean is then close to a
# line of slope 1/3 there, and every stage of a fresh network close to the identity.
_REACH = 4.0
_STRETCH = 3.0
_START = 0.01
# Beyond this the activation is linear with slope 0.18: tails stay light and invertible.
_LINEAR_BEYOND = 1.5
# asinh of the largest root that is looked for, about 1e15.
_FARTHEST = 35.0


@final
class BlockLinear(eqx.Module):
    r"""Block lower triangular: free entries below the diagonal blocks, positive ones in them.

    The free part is a masked ``eqx.nn.Linear``. The diagonal blocks are
    :math:`g\,e^{s}` with bounded :math:`s` and a constant :math:`g`: a few parameters
    outside any linear layer.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> layer = BlockLinear(jr.key(0), columns=2, block=(3, 1))
        >>> log_blocks(layer).shape
        (2, 3, 1)
    """

    free: eqx.nn.Linear
    raw: Float[Array, "*batch columns out in"]
    log_gain: float = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        *,
        columns: int,
        block: tuple[int, int],
        gain: float = 1.0,
    ) -> None:
        free_key, raw_key = jr.split(key)
        self.free = _below_blocks(free_key, columns, block)
        self.raw = 0.1 * jr.normal(raw_key, (columns, *block))
        self.log_gain = math.log(gain / block[1])

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Both parts applied to one row."""
        columns, _, cols = self.raw.shape
        diagonal = jnp.exp(log_blocks(self)) @ x.reshape(columns, cols, 1)
        return self.free(x) + diagonal.ravel()


def _below_blocks(key: PRNGKeyArray, columns: int, block: tuple[int, int]) -> eqx.nn.Linear:
    """A linear layer, small at the start, that sees only the columns before."""
    rows, cols = block
    linear = eqx.nn.Linear(cols * columns, rows * columns, key=key)
    mask = block_tril_mask(block, columns, k=-1)
    weight: Any = Parameterize(jnp.where, mask, _START * linear.weight, 0)
    centres = jnp.linspace(-_REACH, _REACH, rows) if rows > 1 else jnp.zeros(1)
    start = (weight, jnp.tile(centres, columns))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), linear, start)


def log_blocks(layer: BlockLinear) -> Float[Array, "columns out in"]:
    """Logarithms of the diagonal blocks.

    Example:
        >>> import jax.random as jr
        >>> bool((log_blocks(BlockLinear(jr.key(0), columns=1, block=(1, 1))) < 4).all())
        True
    """
    return bounded(layer.raw) + layer.log_gain


def block_network(key: PRNGKeyArray, *, dim: int, depth: int, block_dim: int) -> AbstractBijection:
    """A block neural autoregressive map (De Cao et al., 2019), inverted by bisection.

    Example:
        >>> import jax.random as jr
        >>> block_network(jr.key(0), dim=2, depth=1, block_dim=4).shape
        (2,)
    """
    with jax.ensure_compile_time_eval():
        activation = LeakyTanh(_LINEAR_BEYOND)
    network = BlockAutoregressiveNetwork(
        key, dim=dim, depth=depth, block_dim=block_dim, activation=activation
    )
    shapes = [(block_dim, 1), *[(block_dim, block_dim)] * (depth - 1), (1, block_dim)]
    gains = [1.0, *[_STRETCH] * depth]
    layers = [
        (BlockLinear(k, columns=dim, block=shape, gain=gain), log_blocks)
        for k, shape, gain in zip(jr.split(key, depth + 1), shapes, gains, strict=True)
    ]
    network = eqx.tree_at(lambda net: net.layers, network, layers)
    return NumericalInverse(network, bisection, use_implicit_differentation=False)


def bisection(
    bijection: AbstractBijection, y: Float[Array, " d"], condition: Array | None = None
) -> Float[Array, " d"]:
    """Solve ``bijection(x) = y`` for an increasing autoregressive map, column by column.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpflows.flows.layers import BoundedAffine
        >>> root = bisection(BoundedAffine(jnp.ones(1), jnp.zeros(1)), jnp.zeros(1))
        >>> round(float(root[0]), 3)
        1.0
    """

    def fill(x: Array, column: Array) -> tuple[Array, None]:
        root = _root(lambda v: bijection.transform(x.at[column].set(v))[column] - y[column], y)
        return x.at[column].set(root), None

    return jax.lax.scan(fill, jnp.zeros_like(y), jnp.arange(y.shape[0]))[0]


def _root(excess: Callable[[Array], Array], like: Array) -> Array:
    """Bisection in asinh: equal relative precision for small and for huge roots."""

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        right = excess(jnp.sinh(middle)) < 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    edge = jnp.asarray(_FARTHEST, like.dtype)
    low, high = jax.lax.fori_loop(0, jnp.finfo(like.dtype).nmant + 8, halve, (-edge, edge))
    return jnp.sinh((low + high) / 2)

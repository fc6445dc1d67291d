"""An autoregressive map with a small network of its own for every column."""

from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dpflows.flows.layers import RowMap
from dpflows.flows.transformers import Transformer

#: A dense layer, or what stands in for one while its gradients are tapped.
Layer = Callable[[Array], Array]
#: Output weights start at this size over the square root of the width: near the identity map,
#: but not at it, where no hidden weight would have an effect.
_START = 0.01


@final
class Columnwise(RowMap):
    """Each column's scalar map is written by one hidden layer over the columns before it.

    A masked network (MADE, Germain et al. 2015) shares its hidden units among the columns.
    Here no weight serves two columns, so that the Fisher information is block diagonal by
    column, which natural-gradient training uses, and a column is sampled by evaluating its own
    network alone.

    Args:
        dim: Number of columns.
        width: Hidden units of each column's network.
        transformer: The scalar map.
        key: Where the initial weights come from.

    Example:
        >>> from dpflows.flows.transformers import Affine
        >>> bent = Columnwise(3, 8, Affine(), key=jr.key(0))
        >>> bool(jnp.allclose(bent.inverse(bent.transform(jnp.ones(3))), 1, atol=1e-5))
        True
    """

    hidden: eqx.nn.Linear
    outputs: eqx.nn.Linear
    transformer: Transformer = eqx.field(static=True)
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(
        self, dim: int, width: int, transformer: Transformer, *, key: PRNGKeyArray
    ) -> None:
        weights, biases, last = jr.split(key, 3)
        before = np.maximum(np.arange(dim), 1)[:, None, None]
        first = jr.normal(weights, (dim, width, dim)) / np.sqrt(before) * _visible(dim)[:, None]
        quiet = _START / np.sqrt(width) * jr.normal(last, (dim, transformer.size, width))
        self.hidden = _stacked(first, 0.5 * jr.normal(biases, (dim, width)))
        self.outputs = _stacked(quiet, jnp.zeros((dim, transformer.size)))
        self.transformer = transformer
        self.shape = (dim,)
        self.cond_shape = None

    def forward(self, x: Array) -> tuple[Array, Array]:
        """All networks at once."""
        seen = x * _visible(len(x))
        params = jax.vmap(_network)(self.hidden, self.outputs, seen, jnp.arange(len(x)) > 0)
        values, log_dets = jax.vmap(self._column)(params, x)
        return values, log_dets.sum()

    def backward(self, y: Array) -> tuple[Array, Array]:
        """One column after the other, in a compiled scan."""

        def fill(x: Array, column: Array) -> tuple[Array, Array]:
            hidden, outputs = jax.tree.map(lambda a: a[column], (self.hidden, self.outputs))
            seen = x * (jnp.arange(len(y)) < column)
            scalar = self.transformer(_network(hidden, outputs, seen, column > 0))
            value, log_det = scalar.inverse_and_log_det(y[column])
            return x.at[column].set(value), log_det

        x, log_dets = jax.lax.scan(fill, jnp.zeros_like(y), jnp.arange(len(y)))
        return x, log_dets.sum()

    def _column(self, params: Float[Array, " size"], x: Float[Array, ""]) -> tuple[Array, Array]:
        return self.transformer(params).transform_and_log_det(x)


def _network(hidden: Layer, outputs: Layer, seen: Array, has_input: Array) -> Array:
    """One column's parameters; of the first column, which sees nothing, the biases alone."""
    return outputs(jnp.tanh(hidden(seen)) * has_input)


def _visible(dim: int) -> Float[np.ndarray, "dim dim"]:
    """Which columns each column's network sees: those before it."""
    return np.tri(dim, k=-1, dtype=np.float32)


def _stacked(weight: Float[Array, "d out in"], bias: Float[Array, "d out"]) -> eqx.nn.Linear:
    """Dense layers in one, the first axis numbering them."""
    _, out, inputs = weight.shape
    hollow = eqx.filter_eval_shape(eqx.nn.Linear, inputs, out, key=jr.key(0))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), hollow, (weight, bias))

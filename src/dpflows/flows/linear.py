"""An invertible linear map of all columns at once."""

from typing import final

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from dpflows.flows.layers import RowMap, bounded


@final
class TriangularLinear(RowMap):
    r""":math:`z = L\,D\,U\,x` with unit triangular L, U and a positive diagonal D.

    The invertible linear layer of Glow (Kingma and Dhariwal, 2018) without its
    permutation, which the recipe supplies. Entries off the diagonal stay in (-1, 1),
    as pivoting would make them, and log D in (-4, 4): inverting cannot overflow.

    Example:
        >>> import jax.numpy as jnp
        >>> TriangularLinear(jnp.zeros((2, 2))).transform(jnp.array([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """

    raw: Float[Array, "*batch d d"]
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, raw: Float[Array, "d d"]) -> None:
        self.raw = raw
        self.shape = (raw.shape[-1],)
        self.cond_shape = None

    def _factors(self) -> tuple[Array, Array, Array]:
        """L, log D and U."""
        one = jnp.eye(self.shape[0], dtype=self.raw.dtype)
        off = jnp.tanh(self.raw)
        return jnp.tril(off, -1) + one, bounded(jnp.diag(self.raw)), jnp.triu(off, 1) + one

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Three products; the log-determinant is the sum of log D."""
        lower, log_scale, upper = self._factors()
        return lower @ (jnp.exp(log_scale) * (upper @ x)), log_scale.sum()

    def backward(self, y: Array) -> tuple[Array, Array]:
        """Two triangular solves."""
        lower, log_scale, upper = self._factors()
        inner = solve_triangular(lower, y, lower=True, unit_diagonal=True)
        x = solve_triangular(upper, jnp.exp(-log_scale) * inner, unit_diagonal=True)
        return x, -log_scale.sum()

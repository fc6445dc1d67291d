"""The bound on log-scales, and the affine map that keeps it.

Maps that FlowJAX lacks go from data to latent space in their forward direction.
"""

import abc
from typing import final

import equinox as eqx
import jax.numpy as jnp
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike, Float

LOG_BOUND = 4.0


def bounded(raw: Float[Array, "..."]) -> Float[Array, "..."]:
    """Squash log-scales smoothly into (-4, 4); the identity to third order at zero.

    Unbounded log-scales overflow under the noise of private training.

    Example:
        >>> import jax.numpy as jnp
        >>> bounded(jnp.array([0.0, 1e9])).tolist()
        [0.0, 4.0]
    """
    return LOG_BOUND * jnp.tanh(raw / LOG_BOUND)


def unbounded(log_scale: Float[Array, "..."]) -> Float[Array, "..."]:
    """What ``bounded`` turns into the given log-scale, or into the nearest it can reach.

    Example:
        >>> import jax.numpy as jnp
        >>> bounded(unbounded(jnp.array([1.0, -9.0]))).round(2).tolist()
        [1.0, -4.0]
    """
    return LOG_BOUND * jnp.arctanh(jnp.clip(log_scale / LOG_BOUND, -0.999, 0.999))


class RowMap(AbstractBijection):
    """An unconditional bijection given by its two directions."""

    shape: eqx.AbstractVar[tuple[int, ...]]
    cond_shape: eqx.AbstractVar[None]

    @abc.abstractmethod
    def forward(self, x: Array) -> tuple[Array, Array]:
        """Data to latent, with the log-determinant."""

    @abc.abstractmethod
    def backward(self, y: Array) -> tuple[Array, Array]:
        """Latent to data, with the log-determinant."""

    def transform_and_log_det(
        self, x: ArrayLike, condition: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """FlowJAX's name for ``forward``."""
        return self.forward(jnp.asarray(x))

    def inverse_and_log_det(
        self, y: ArrayLike, condition: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """FlowJAX's name for ``backward``."""
        return self.backward(jnp.asarray(y))


@final
class BoundedAffine(RowMap):
    r"""Elementwise :math:`z = (x - t) e^{-s}` with :math:`|s| < 4`.

    With shape ``(d,)`` and zero parameters this is ActNorm at the identity
    (Kingma and Dhariwal, 2018, without the data-dependent start, which would cost
    privacy); with shape ``()`` it is the transformer of MAF (Papamakarios et al., 2017).

    Example:
        >>> import jax.numpy as jnp
        >>> BoundedAffine(jnp.ones(2), jnp.zeros(2)).transform(jnp.ones(2)).tolist()
        [0.0, 0.0]
    """

    shift: Float[Array, "..."]
    raw_log_scale: Float[Array, "..."]
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, shift: Float[Array, "..."], raw_log_scale: Float[Array, "..."]) -> None:
        self.shift = shift
        self.raw_log_scale = raw_log_scale
        self.shape = shift.shape
        self.cond_shape = None

    def forward(self, x: Array) -> tuple[Array, Array]:
        """``(x - t) exp(-s)`` and ``-sum(s)``."""
        log_scale = bounded(self.raw_log_scale)
        return (x - self.shift) * jnp.exp(-log_scale), -log_scale.sum()

    def backward(self, y: Array) -> tuple[Array, Array]:
        """``y exp(s) + t`` and ``sum(s)``."""
        log_scale = bounded(self.raw_log_scale)
        return y * jnp.exp(log_scale) + self.shift, log_scale.sum()

"""Latent and background distributions.

The background is the public distribution that every trained flow is mixed with; its
parameters are frozen, so training never moves the floor it puts under the density.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flowjax.distributions import (
    AbstractDistribution,
    Normal,
    StandardNormal,
    Uniform,
)
from jaxtyping import Array, Float
from paramax import non_trainable

from dpflows.errors import InputError
from dpflows.flows.gaussians import GaussianMixture

WIDE_SCALE = 3.0
Vector = Sequence[float] | np.ndarray | Array


def _standard(shape: tuple[int, ...]) -> AbstractDistribution:
    return StandardNormal(shape)  # type: ignore[call-arg]  # its cond_shape is a constant


def gaussian(dim: int) -> AbstractDistribution:
    """The standard Gaussian; it has no parameters.

    Example:
        >>> gaussian(2).shape
        (2,)
    """
    return _standard((dim,))


def gaussian_mixture(
    weights: Float[Array | np.ndarray, " k"],
    means: Float[Array | np.ndarray, "k d"],
    factors: Float[Array | np.ndarray, "k d d"],
    *,
    trainable: bool = False,
) -> AbstractDistribution:
    """A mixture of Gaussians with full covariances.

    Args:
        weights: Positive component weights; they need not sum to one.
        means: Component means.
        factors: Lower Cholesky factors of the covariances, positive on the diagonal.
        trainable: Whether training may move the mixture; frozen otherwise.

    Example:
        >>> import numpy as np
        >>> eye = np.broadcast_to(np.eye(2), (3, 2, 2))
        >>> gaussian_mixture(np.ones(3), np.zeros((3, 2)), eye).shape
        (2,)
    """
    _require_positive("weights", np.asarray(weights))
    _require_positive("diagonals of factors", np.diagonal(factors, axis1=-2, axis2=-1))
    mixture = GaussianMixture.of(weights, means, factors)
    return mixture if trainable else non_trainable(mixture)


def _require_positive(name: str, values: np.ndarray) -> None:
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise InputError(f"{name} must be positive and finite, got others; check the mixture")


def wide_gaussian(dim: int, *, scale: float = WIDE_SCALE) -> AbstractDistribution:
    """A frozen Gaussian, wide in normalised units: the background without declared bounds.

    Example:
        >>> import jax.numpy as jnp
        >>> bool(jnp.isfinite(wide_gaussian(2).log_prob(jnp.full(2, 1e6))))
        True
    """
    return non_trainable(Normal(jnp.zeros(dim), jnp.full(dim, scale)))


def uniform_box(low: Vector, high: Vector) -> AbstractDistribution:
    """The frozen uniform distribution over a box: the background with declared bounds.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(uniform_box([0.0, 0.0], [2.0, 2.0]).log_prob(jnp.ones(2))), 3)
        -1.386
    """
    lows, highs = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    if lows.ndim != 1 or lows.shape != highs.shape:
        raise InputError(
            f"low and high must be vectors of one length, got {lows.shape}, {highs.shape}"
        )
    if not (np.isfinite(highs - lows).all() and (lows < highs).all()):
        raise InputError("low must be below high and both finite in every column; check the bounds")
    return non_trainable(Uniform(jnp.asarray(lows, dtype=float), jnp.asarray(highs, dtype=float)))

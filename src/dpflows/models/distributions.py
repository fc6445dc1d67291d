"""Base distributions: Gaussian mixtures, backgrounds and piecewise-constant densities.

``Mixture`` holds a mixture of Gaussians as plain arrays and is the result of every mixture
fit; ``GaussianMixture`` evaluates one by matrix products only. Backgrounds are the public
distributions that every trained flow is mixed with; their parameters are frozen, so training
does not change the lower bound they give the density. ``Grid`` and ``ProductGrid`` are
piecewise constant on the unit cube; ``fitting_masses`` turns noisy values into their masses.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.distributions import (
    AbstractDistribution,
    Normal,
    StandardNormal,
    Uniform,
)
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from paramax import non_trainable
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from dpflows.errors import InputError

Rows = Float64[np.ndarray, "n d"]
Scores = Float64[np.ndarray, " n"]

_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Weights that sum to one, means, and lower Cholesky factors of the covariances.

    Example:
        >>> mixture = Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
        >>> round(float(mixture.log_prob(np.zeros((1, 2)))[0]), 3)
        -1.838
        >>> mixture.sample(3, np.random.default_rng()).shape
        (3, 2)
    """

    weights: Float64[np.ndarray, " k"]
    means: Float64[np.ndarray, "k d"]
    factors: Float64[np.ndarray, "k d d"]

    def __post_init__(self) -> None:
        if not (self.weights >= 0).all() or not math.isclose(self.weights.sum(), 1, rel_tol=1e-6):
            raise InputError("weights must be at least zero and sum to one; divide by their sum")
        if not (np.diagonal(self.factors, axis1=1, axis2=2) > 0).all():
            raise InputError("factors must be lower Cholesky factors with positive diagonals")

    def log_prob(self, rows: Rows) -> Scores:
        """The log-density of each row."""
        parts = [self._log_prob(chunk) for chunk in _chunks(rows)]
        return np.concatenate(parts) if parts else np.empty(0)

    def sample(self, n: int, rng: np.random.Generator) -> Rows:
        """``n`` independent rows."""
        which = rng.choice(len(self.weights), size=n, p=self.weights / self.weights.sum())
        normal = rng.standard_normal((n, self.means.shape[1]))
        return self.means[which] + np.einsum("nij,nj->ni", self.factors[which], normal)

    def scaled(
        self, scale: Float64[np.ndarray, " d"], shift: Float64[np.ndarray, " d"]
    ) -> "Mixture":
        """The mixture of ``scale * x + shift`` when x follows this one; scales are positive."""
        factors = scale[:, None] * self.factors
        return Mixture(self.weights, scale * self.means + shift, factors)

    def _log_prob(self, rows: Rows) -> Scores:
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights)
        parts = zip(logs, self.means, self.factors, strict=True)
        scores = [log + _gaussian(rows, mean, factor) for log, mean, factor in parts]
        return np.asarray(logsumexp(np.stack(scores), axis=0))


def _gaussian(
    rows: Rows, mean: Float64[np.ndarray, " d"], factor: Float64[np.ndarray, "d d"]
) -> Scores:
    local = solve_triangular(factor, (rows - mean).T, lower=True, check_finite=False)
    constant = np.log(np.diagonal(factor)).sum() + len(mean) * math.log(2 * math.pi) / 2
    return -0.5 * np.einsum("dn,dn->n", local, local) - constant


def _chunks(rows: Rows) -> Iterator[Rows]:
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))


_LOG_TWO_PI = float(np.log(2 * np.pi))


@final
class GaussianMixture(AbstractDistribution):
    """Components by their means and the inverses of their Cholesky factors.

    FlowJAX's general mixture solves a triangular system per row and component; with stored inverses
    a row costs one product, which is ten times faster. Any values of the fields are a valid
    mixture, so they may be trained without constraints.

    Attributes:
        log_weights: Up to a constant.
        means: One per component.
        log_precision: Logarithms of the diagonals of the inverse factors.
        below: The inverse factors below their diagonals; the rest is ignored.

    Example:
        >>> eye = np.eye(2)[None]
        >>> mixture = GaussianMixture.of(np.ones(1), np.zeros((1, 2)), eye)
        >>> round(float(mixture.log_prob(jnp.zeros(2))), 3), mixture.sample(jr.key(0), (3,)).shape
        (-1.838, (3, 2))
    """

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    log_precision: Float[Array, "k d"]
    below: Float[Array, "k d d"]
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(
        self,
        log_weights: Float[Array, " k"],
        means: Float[Array, "k d"],
        log_precision: Float[Array, "k d"],
        below: Float[Array, "k d d"],
    ) -> None:
        self.log_weights = log_weights
        self.means = means
        self.log_precision = log_precision
        self.below = below
        self.shape = (means.shape[1],)
        self.cond_shape = None

    @classmethod
    def of(
        cls,
        weights: Float[Array | np.ndarray, " k"],
        means: Float[Array | np.ndarray, "k d"],
        factors: Float[Array | np.ndarray, "k d d"],
    ) -> "GaussianMixture":
        """The mixture with these lower Cholesky factors, inverted in double precision."""
        inverses = np.linalg.inv(np.asarray(factors, np.float64))
        return cls(
            jnp.asarray(np.log(np.asarray(weights, np.float64)), float),
            jnp.asarray(means, float),
            jnp.asarray(np.log(np.diagonal(inverses, axis1=1, axis2=2)), float),
            jnp.asarray(np.tril(inverses, -1), float),
        )

    def _log_prob(self, x: Array, condition: Array | None = None) -> Array:
        local = jnp.einsum("kij,kj->ki", self._inverses(), x - self.means)
        each = self.log_precision.sum(axis=1) - (local**2).sum(axis=1) / 2
        constant = self.shape[0] * _LOG_TWO_PI / 2
        return jax.nn.logsumexp(jax.nn.log_softmax(self.log_weights) + each) - constant

    def _sample(self, key: PRNGKeyArray, condition: Array | None = None) -> Array:
        which, normal = jr.split(key)
        k = jr.categorical(which, self.log_weights)
        noise = jr.normal(normal, self.shape, self.means.dtype)
        inverse = self._inverses()[k]
        return self.means[k] + jax.scipy.linalg.solve_triangular(inverse, noise, lower=True)

    def _inverses(self) -> Float[Array, "k d d"]:
        diagonal = jax.vmap(jnp.diag)(jnp.exp(self.log_precision))
        return jnp.tril(self.below, -1) + diagonal


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
        trainable: Whether the mixture is trained; frozen otherwise.

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
        raise InputError(f"{name} must be positive and finite; check the mixture")


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


@final
class Grid(AbstractDistribution):
    """Equal cells over the unit cube with a mass each; uniform within a cell.

    A row is drawn one coordinate after the other, each from its distribution given those
    before it, so that single precision must resolve only the bins of one axis, not all cells.

    Args:
        masses: One axis per column; not negative, with a positive sum.

    Example:
        >>> grid = Grid(np.array([[3.0, 1.0], [0.0, 0.0]]))
        >>> grid.shape, round(float(jnp.exp(grid.log_prob(jnp.array([0.1, 0.9])))), 3)
        ((2,), 1.0)
    """

    log_density: Float[Array, "..."]
    marginals: tuple[Float[Array, "..."], ...]
    shape: tuple[int, ...] = eqx.field(static=True)
    cond_shape: ClassVar[None] = None  # type: ignore[misc]  # as FlowJAX declares it

    def __init__(self, masses: Float[np.ndarray, "..."]) -> None:
        shares = _shares(masses, axis=None)
        self.shape = (masses.ndim,)
        self.log_density = jnp.asarray(_log(shares * shares.size), dtype=float)
        later = [tuple(range(axis + 1, masses.ndim)) for axis in range(masses.ndim)]
        self.marginals = tuple(jnp.asarray(_relative(shares.sum(axis=axes))) for axes in later)

    def _log_prob(self, x: Array, condition: Array | None = None) -> Array:
        bins = jnp.asarray(self.log_density.shape)
        cell = jnp.clip((x * bins).astype(int), 0, bins - 1)
        return jnp.where(_inside(x), self.log_density[tuple(cell)], -jnp.inf)

    def _sample(self, key: PRNGKeyArray, condition: Array | None = None) -> Array:
        pick, place = jr.split(key)
        uniforms = jr.uniform(pick, self.shape)
        cell: tuple[Array, ...] = ()
        for uniform, marginal in zip(uniforms, self.marginals, strict=True):
            cell = (*cell, _draw(uniform, marginal[cell]))
        bins = jnp.asarray(self.log_density.shape)
        return (jnp.stack(cell) + jr.uniform(place, self.shape)) / bins


@final
class ProductGrid(AbstractDistribution):
    """Independent columns on the unit interval, each with equal bins of given masses.

    Args:
        masses: One row of bins per column; not negative, with a positive sum.

    Example:
        >>> product = ProductGrid(np.array([[3.0, 1.0], [1.0, 1.0]]))
        >>> round(float(jnp.exp(product.log_prob(jnp.array([0.1, 0.9])))), 3)
        1.5
    """

    log_density: Float[Array, "columns bins"]
    masses: Float[Array, "columns bins"]
    shape: tuple[int, ...] = eqx.field(static=True)
    cond_shape: ClassVar[None] = None  # type: ignore[misc]  # as FlowJAX declares it

    def __init__(self, masses: Float[np.ndarray, "columns bins"]) -> None:
        shares = _shares(masses, axis=1)
        self.shape = (len(masses),)
        self.log_density = jnp.asarray(_log(shares * shares.shape[1]), dtype=float)
        self.masses = jnp.asarray(shares, dtype=float)

    def _log_prob(self, x: Array, condition: Array | None = None) -> Array:
        bins = self.masses.shape[1]
        cell = jnp.clip((x * bins).astype(int), 0, bins - 1)
        logs = self.log_density[jnp.arange(len(x)), cell].sum()
        return jnp.where(_inside(x), logs, -jnp.inf)

    def _sample(self, key: PRNGKeyArray, condition: Array | None = None) -> Array:
        pick, place = jr.split(key)
        uniforms = jr.uniform(pick, self.shape)
        cell = eqx.filter_vmap(_draw)(uniforms, self.masses)
        return (cell + jr.uniform(place, self.shape)) / self.masses.shape[1]


def fitting_masses(values: Float[np.ndarray, "..."], *, total: float) -> Float[np.ndarray, "..."]:
    """Project noisy values onto the simplex: the nearest non-negative masses.

    Where the positive values sum to more than ``total``, as they do because negative values are set
    to zero, a constant is subtracted from all of them so that they sum to ``total``. Small values
    become zero.

    Guarantee:
        Reads only noisy values.

    Example:
        >>> fitting_masses(np.array([5.0, 1.0, -2.0]), total=4.0).tolist()
        [1.0, 0.0, 0.0]
    """
    kept = np.maximum(values - max(_excess(values.ravel(), total), 0.0), 0.0)
    whole = kept.sum()
    return kept / whole if whole > 0 else np.full(values.shape, 1 / values.size)


def _excess(values: Float[np.ndarray, " cells"], total: float) -> float:
    """The constant to subtract so that the positive rest sums to ``total``."""
    ordered = np.sort(values)[::-1]
    levels = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    return float(levels[np.flatnonzero(ordered > levels)[-1]])


def _shares(masses: np.ndarray, *, axis: int | None) -> np.ndarray:
    sums = masses.sum(axis=axis, keepdims=True)
    if masses.ndim < 1 or not (np.isfinite(masses).all() and (masses >= 0).all()):
        raise InputError("masses must be finite and not negative")
    if masses.size == 0 or not (np.isfinite(sums) & (sums > 0)).all():
        raise InputError("masses must have a positive, finite sum")
    return masses / sums


def _relative(marginal: np.ndarray) -> np.ndarray:
    """Shares of the last axis given the earlier ones; uniform where there is no mass."""
    sums = marginal.sum(axis=-1, keepdims=True)
    even = 1 / marginal.shape[-1]
    return np.where(sums > 0, marginal / np.where(sums > 0, sums, 1.0), even)


def _log(density: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(density)


def _inside(x: Array) -> Array:
    return ((x >= 0) & (x <= 1)).all()


def _draw(uniform: Array, shares: Array) -> Array:
    """The bin whose cumulative share the uniform falls into; never an empty one."""
    below = jnp.cumsum(shares)
    return jnp.searchsorted(below, uniform * below[-1], side="right").clip(0, len(shares) - 1)

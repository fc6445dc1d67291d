"""Densities: base distributions, and a flow with background, normaliser and bounds.

``Mixture`` holds a mixture of Gaussians as plain arrays and is the result of every mixture
fit; ``GaussianMixture`` evaluates one by matrix products only. Backgrounds are the public
distributions that every trained flow is mixed with; their parameters are frozen, so training
does not change the lower bound they give the density. ``Grid`` and ``ProductGrid`` are
piecewise constant on the unit cube; ``fitting_masses`` turns noisy values into their masses.

``Defended`` is the training model: a flow mixed with a public background in normalised
space. ``Density`` adds the normaliser and the declared bounds. Both are functions of
released parameters only, so evaluating and sampling them costs no privacy.
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
from flowjax.distributions import AbstractDistribution, Normal, StandardNormal, Uniform
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray
from paramax import non_trainable
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from dpflows.errors import InputError
from dpflows.models.bijections import solve_lower
from dpflows.models.normalisers import Normaliser

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
        return self.means[k] + solve_lower(self._inverses()[k], noise)

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


BACKGROUND_WEIGHT = 0.01
CHUNK = 8192
_MASS_DRAWS = 1 << 16
_ROUNDS = 32


@final
class Defended(eqx.Module):
    r"""The defensive mixture :math:`(1-w)\,p_\text{flow} + w\,p_\text{background}`.

    It costs at most :math:`-\log(1-w)`, 0.01 nat by default, bounds the density from below and so
    bounds the loss of outliers. Defined in normalised space.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> from dpflows.models.density import gaussian, wide_gaussian
        >>> model = Defended(gaussian(2), wide_gaussian(2))
        >>> model.log_prob(jnp.zeros(2)).shape, model.sample(jr.key(0), 3).shape
        ((), (3, 2))
    """

    flow: AbstractDistribution
    background: AbstractDistribution
    weight: float = eqx.field(static=True, default=BACKGROUND_WEIGHT)

    def __check_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise InputError(f"weight must be at least 0 and below 1, got {self.weight!r}")
        if self.flow.shape != self.background.shape:
            raise InputError(
                "background must have the flow's shape "
                f"{self.flow.shape}, got {self.background.shape}"
            )

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self.flow.shape[0])

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Log-density of one normalised row."""
        flow = self.flow.log_prob(z)
        if self.weight == 0:
            return flow
        background = self.background.log_prob(z)
        return jnp.logaddexp(jnp.log1p(-self.weight) + flow, jnp.log(self.weight) + background)

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """``n`` normalised rows."""
        which, inner, outer = jr.split(key, 3)
        rows = self.flow.sample(inner, (n,))
        if self.weight == 0:
            return rows
        stray = jr.bernoulli(which, self.weight, (n, 1))
        return jnp.where(stray, self.background.sample(outer, (n,)), rows)


@final
class Density(eqx.Module):
    """A probability density over rows in their own units.

    Attributes:
        normaliser: Maps rows to the model's space.
        model: The defended flow in that space.
        low: Declared lower bounds, or None.
        high: Declared upper bounds, or None.
        log_inside: Log of the model's mass inside the bounds (``with_inside_mass``).

    Example:
        >>> import numpy as np, jax.random as jr
        >>> from dpflows.models.density import gaussian, wide_gaussian
        >>> model = Defended(gaussian(1), wide_gaussian(1))
        >>> from dpflows.models.normalisers import Scaling
        >>> density = Density(Scaling.identity(1), model, low=[0.0], high=[9.0])
        >>> density = density.with_inside_mass(jr.key(0))
        >>> rows = density.sample(jr.key(1), 4)
        >>> bool((rows >= 0).all()), density.log_prob(np.array([[-1.0]])).tolist()
        (True, [-inf])
    """

    normaliser: Normaliser
    model: Defended
    low: Float[np.ndarray, " d"] | None
    high: Float[np.ndarray, " d"] | None
    log_inside: float

    def __init__(
        self,
        normaliser: Normaliser,
        model: Defended,
        low: Sequence[float] | np.ndarray | None = None,
        high: Sequence[float] | np.ndarray | None = None,
        log_inside: float = 0.0,
    ) -> None:
        self.normaliser = normaliser
        self.model = model
        self.low = None if low is None else np.asarray(low, dtype=float)
        self.high = None if high is None else np.asarray(high, dtype=float)
        self.log_inside = float(log_inside)

    def __check_init__(self) -> None:
        if self.normaliser.dim != self.dim:
            raise InputError(f"normaliser must have {self.dim} columns, got {self.normaliser.dim}")
        for name, vector in (("low", self.low), ("high", self.high)):
            if vector is not None and vector.shape != (self.dim,):
                raise InputError(f"{name} must have {self.dim} columns, got {vector.shape}")

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self.model.dim

    def log_prob(self, x: Float[Array | np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Log-density of each row, every Jacobian included; -inf outside the bounds."""
        rows = np.asarray(x, dtype=float)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise InputError(f"x must be a table of {self.dim} columns, got shape {rows.shape}")
        held = self._held(rows)  # far outside, numbers could overflow
        logs = _scores(self.model, self.normaliser.apply(held))
        logs = logs + (self.normaliser.log_det(held) - self.log_inside)
        return np.where(self._inside(rows), logs, -np.inf)

    def sample(
        self, key: PRNGKeyArray, n: int, *, background: bool = False
    ) -> Float[np.ndarray, "n d"]:
        """``n`` rows inside the bounds: rejection in a bounded number of rounds, then clipping.

        Args:
            key: Random key of the rows.
            n: Number of rows.
            background: Whether to include samples of the background, which only bounds the density
            from below and describes no rows.
        """
        model = self.model if background else Defended(self.model.flow, self.model.background, 0.0)
        return self._with_model(model)._sample(key, n)

    def _with_model(self, model: Defended) -> "Density":
        return Density(self.normaliser, model, self.low, self.high, self.log_inside)

    def _sample(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
        kept, missing = [np.empty((0, self.dim))], n
        for step in range(_most_rounds(n)):
            if missing == 0:
                break
            # many rows are drawn in whole chunks, so that one program serves for all of them
            size = CHUNK if n >= CHUNK else self._overdraw(missing)
            drawn = self._draw(jr.fold_in(key, step), size)
            kept.append(drawn[self._inside(drawn)][:missing])
            missing -= len(kept[-1])
        return np.concatenate([*kept, self._clipped(jr.fold_in(key, _most_rounds(n)), missing)])

    def with_inside_mass(self, key: PRNGKeyArray) -> "Density":
        """The density renormalised to its bounds by the share of its samples inside.

        Guarantee:
            Reads only the model, never the rows it was trained on: post-processing.
        """
        if self.low is None and self.high is None:
            return self
        inside = self._inside(self._draw(key, _MASS_DRAWS)).mean()
        return self._with_log_inside(float(np.log(max(inside, 1 / _MASS_DRAWS))))

    def _with_log_inside(self, log_inside: float) -> "Density":
        return Density(self.normaliser, self.model, self.low, self.high, log_inside)

    def _inside(self, rows: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return (np.isfinite(rows) & (rows >= low) & (rows <= high)).all(axis=1)

    def _overdraw(self, missing: int) -> int:
        """Number of draws, at most a chunk, of which about ``missing`` should lie inside."""
        return min(CHUNK, int(missing * np.exp(min(-self.log_inside, 10.0))) + 1)

    def _draw(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
        return self.normaliser.undo(_draws(self.model, key, n))

    def _clipped(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
        return self._held(self._draw(key, n))

    def _held(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return np.clip(np.nan_to_num(rows), low, high)


@eqx.filter_jit
def _log_probs(model: Defended, z: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(model.log_prob)(z)


@eqx.filter_jit
def _sample(model: Defended, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
    return model.sample(key, n)


def _padded(n: int) -> int:
    """The next power of two, at most a chunk: few shapes, so few compilations."""
    return min(CHUNK, 1 << max(n - 1, 15).bit_length())


def _scores(model: Defended, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    parts = [_score_chunk(model, rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)]
    return np.concatenate([np.empty(0), *parts])


def _score_chunk(model: Defended, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    padding = ((0, _padded(len(rows)) - len(rows)), (0, 0))
    return np.asarray(_log_probs(model, jnp.asarray(np.pad(rows, padding))))[: len(rows)]


def _draws(model: Defended, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
    sizes = [min(CHUNK, n - i) for i in range(0, n, CHUNK)]
    keys = jr.split(key, max(len(sizes), 1))
    parts = [
        np.asarray(_sample(model, k, _padded(m)), dtype=float)[:m]
        for k, m in zip(keys, sizes, strict=False)
    ]
    return np.concatenate([np.empty((0, model.dim)), *parts])


def _most_rounds(n: int) -> int:
    """The number of rounds for ``n`` rows if one draw in 128 lies inside."""
    return _ROUNDS + (128 * n) // CHUNK

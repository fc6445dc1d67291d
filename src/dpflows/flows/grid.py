"""Piecewise-constant densities on the unit cube, and the masses that noisy values suggest."""

from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Array, Float, PRNGKeyArray

from dpflows.errors import InputError


@final
class Grid(AbstractDistribution):
    """Equal cells over the unit cube, with a mass each, and even within a cell.

    A row is drawn one coordinate after the other, each from its distribution given those
    before it, so that single precision meets the bins of one axis and not all cells.

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
    """Noisy values turned into shares: the nearest ones that are not negative.

    Where the positive values sum to more than ``total``, which they do since negative noise
    is cut off and positive noise is not, a constant is taken from all of them, so
    that they sum to it: the projection onto the simplex. Faint cells fall to zero.

    Guarantee:
        Reads noisy values alone.

    Example:
        >>> fitting_masses(np.array([5.0, 1.0, -2.0]), total=4.0).tolist()
        [1.0, 0.0, 0.0]
    """
    kept = np.maximum(values - max(_excess(values.ravel(), total), 0.0), 0.0)
    whole = kept.sum()
    return kept / whole if whole > 0 else np.full(values.shape, 1 / values.size)


def _excess(values: Float[np.ndarray, " cells"], total: float) -> float:
    """What to take from all values so that the positive rest sums to ``total``."""
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
    """Shares of the last axis given the earlier ones; even where there is no mass."""
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

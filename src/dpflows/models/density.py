"""Densities in the units of the data: flow, background, normaliser and bounds.

``Defended`` is the training model: a flow mixed with a public background in normalised
space. ``Density`` adds the normaliser and the declared bounds. Both are functions of
released parameters only, so evaluating and sampling them costs no privacy.
"""

from collections.abc import Sequence
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpflows.errors import InputError
from dpflows.models.normalisers import Normaliser

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
        >>> from dpflows.models.distributions import gaussian, wide_gaussian
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
        >>> from dpflows.models.distributions import gaussian, wide_gaussian
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

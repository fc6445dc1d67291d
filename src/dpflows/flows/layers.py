"""Maps of one row that FlowJAX lacks, each bounded so that float32 stays finite.

Every map goes from data to latent space in its forward direction and has the shape
conventions of ``flowjax.bijections``.
"""

import abc
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike, Float

LOG_BOUND = 4.0
_BIN_FLOOR = 0.1


def bounded(raw: Float[Array, "..."]) -> Float[Array, "..."]:
    """Squash log-scales smoothly into (-4, 4); the identity to third order at zero.

    Unbounded log-scales overflow under the noise of private training.

    Example:
        >>> import jax.numpy as jnp
        >>> bounded(jnp.array([0.0, 1e9])).tolist()
        [0.0, 4.0]
    """
    return LOG_BOUND * jnp.tanh(raw / LOG_BOUND)


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


@final
class Spline(RowMap):
    r"""Monotone rational-quadratic spline on [-B, B], the identity outside.

    Durkan et al., 2019. The ``raw`` vector holds ``knots + 1`` widths, as many heights
    and ``knots`` derivatives; zeros give the identity. Derivatives are 1 at both ends,
    so the map is continuously differentiable everywhere. FlowJAX's spline leaves the end
    derivatives free and loses the root's sign in float32 at steep bins; here slopes are
    bounded and the discriminant cannot go negative.

    Example:
        >>> import jax.numpy as jnp
        >>> y, log_det = Spline(jnp.zeros(26), 4.0).transform_and_log_det(jnp.array(1.5))
        >>> round(float(y), 5), abs(round(float(log_det), 5))
        (1.5, 0.0)
    """

    raw: Float[Array, " parameters"]
    interval: float = eqx.field(static=True)
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, raw: Float[Array, " parameters"], interval: float) -> None:
        self.raw = raw
        self.interval = interval
        self.shape = ()
        self.cond_shape = None

    def _bins(self) -> Float[Array, "6 bins"]:
        """Left edge, width, bottom, height and the two end derivatives of each bin."""
        knots = (self.raw.shape[-1] - 2) // 3
        widths, heights, log_slopes = jnp.split(self.raw, [knots + 1, 2 * knots + 2])
        slopes = jnp.pad(jnp.exp(bounded(log_slopes)), 1, constant_values=1.0)
        return jnp.stack(
            [*self._edges(widths), *self._edges(heights), slopes[:-1], slopes[1:]],
        )

    def _edges(self, raw: Float[Array, " bins"]) -> tuple[Array, Array]:
        widths = (1 - _BIN_FLOOR) * jax.nn.softmax(raw) + _BIN_FLOOR / raw.shape[-1]
        widths = 2 * self.interval * widths
        return jnp.cumsum(widths) - widths - self.interval, widths

    def forward(self, x: Array) -> tuple[Array, Array]:
        """The spline and its log-derivative."""
        inside = jnp.abs(x) <= self.interval
        clipped = jnp.clip(x, -self.interval, self.interval)
        table = self._bins()
        left, width, bottom, height, d0, d1 = _pick(table, clipped, table[0])
        position = jnp.clip((clipped - left) / width, 0, 1)
        rise, log_slope = _rational(position, height / width, d0, d1)
        y = jnp.clip(bottom + height * rise, -self.interval, self.interval)
        return jnp.where(inside, y, x), jnp.where(inside, log_slope, 0)

    def backward(self, y: Array) -> tuple[Array, Array]:
        """The spline's root and minus its log-derivative there."""
        inside = jnp.abs(y) <= self.interval
        clipped = jnp.clip(y, -self.interval, self.interval)
        table = self._bins()
        left, width, bottom, height, d0, d1 = _pick(table, clipped, table[2])
        rise = jnp.clip((clipped - bottom) / height, 0, 1)
        position = _rational_root(rise, height / width, d0, d1)
        _, log_slope = _rational(position, height / width, d0, d1)
        x = jnp.clip(left + width * position, -self.interval, self.interval)
        return jnp.where(inside, x, y), jnp.where(inside, -log_slope, 0)


def _pick(table: Array, x: Array, lefts: Array) -> Array:
    """The column of the bin that holds ``x``; a masked sum is cheaper than a gather."""
    above = x >= lefts[1:]
    chosen = jnp.pad(above, (1, 0), constant_values=True) & ~jnp.pad(above, (0, 1))
    return jnp.where(chosen, table, 0).sum(axis=-1)


def _rational(position: Array, slope: Array, d0: Array, d1: Array) -> tuple[Array, Array]:
    """Fraction of the bin's height at a fraction of its width, and the log-derivative."""
    bump = position * (1 - position)
    # Equal to the paper's denominator, in a form that cannot cancel.
    below = slope * (1 - 2 * bump) + (d0 + d1) * bump
    rise = (slope * position**2 + d0 * bump) / below
    steep = d1 * position**2 + 2 * slope * bump + d0 * (1 - position) ** 2
    return rise, 2 * jnp.log(slope) + jnp.log(steep) - 2 * jnp.log(below)


def _rational_root(rise: Array, slope: Array, d0: Array, d1: Array) -> Array:
    """Inverse of ``_rational``: the quadratic's root, then one Newton step against rounding."""
    tilt = rise * (d0 + d1 - 2 * slope)
    squared = (d0 - tilt) ** 2 + 4 * slope * rise * (slope - d0 + tilt)
    # The floor keeps the square root differentiable; exact values are far above it.
    root = jnp.sqrt(jnp.maximum(squared, jnp.finfo(squared.dtype).tiny * 1e6))
    below = jnp.maximum(d0 - tilt + root, jnp.finfo(root.dtype).eps)
    position = jnp.clip(2 * slope * rise / below, 0, 1)
    found, log_slope = _rational(position, slope, d0, d1)
    return jnp.clip(position - (found - rise) * slope * jnp.exp(-log_slope), 0, 1)

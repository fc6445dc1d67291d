"""A rational-quadratic spline that stays finite in float32."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpflows.flows.layers import RowMap, bounded

# The share of the interval that is spread evenly over the bins: bounds every slope.
_BIN_FLOOR = 0.1


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

    def _shares(self) -> tuple[Array, Array, Array]:
        """Widths and heights of the bins, which sum to 2B, and the inner log-derivatives."""
        knots = (self.raw.shape[-1] - 2) // 3
        widths, heights, log_slopes = jnp.split(self.raw, [knots + 1, 2 * knots + 2])
        return self._share(widths), self._share(heights), log_slopes

    def _share(self, raw: Float[Array, " bins"]) -> Float[Array, " bins"]:
        floor = _BIN_FLOOR / raw.shape[-1]
        return 2 * self.interval * ((1 - _BIN_FLOOR) * jax.nn.softmax(raw) + floor)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """The spline and its log-derivative."""
        inside, clipped = self._clip(x)
        widths, heights, log_slopes = self._shares()
        cell = _Cell(clipped + self.interval, widths)
        left, width, bottom, height, d0, d1 = cell.corners(widths, heights, log_slopes)
        position = jnp.clip((clipped + self.interval - left) / width, 0, 1)
        rise, log_slope = _rational(position, height / width, d0, d1)
        return self._unclip(inside, x, bottom + height * rise), jnp.where(inside, log_slope, 0)

    def backward(self, y: Array) -> tuple[Array, Array]:
        """The spline's root and minus its log-derivative there."""
        inside, clipped = self._clip(y)
        widths, heights, log_slopes = self._shares()
        cell = _Cell(clipped + self.interval, heights)
        left, width, bottom, height, d0, d1 = cell.corners(widths, heights, log_slopes)
        rise = jnp.clip((clipped + self.interval - bottom) / height, 0, 1)
        position = _rational_root(rise, height / width, d0, d1)
        _, log_slope = _rational(position, height / width, d0, d1)
        return self._unclip(inside, y, left + width * position), jnp.where(inside, -log_slope, 0)

    def _clip(self, x: Array) -> tuple[Array, Array]:
        return jnp.abs(x) <= self.interval, jnp.clip(x, -self.interval, self.interval)

    def _unclip(self, inside: Array, x: Array, measured: Array) -> Array:
        """Back from the distance to the left end; the identity outside."""
        mapped = jnp.clip(measured - self.interval, -self.interval, self.interval)
        return jnp.where(inside, mapped, x)


@final
class _Cell(eqx.Module):
    """Masks of the bin that holds a point and of the bins before it.

    Masked sums are cheaper than a search and a gather, and need no derivative of the edges.
    """

    chosen: Bool[Array, " bins"]
    before: Bool[Array, " bins"]

    def __init__(self, distance: Array, sizes: Float[Array, " bins"]) -> None:
        ends = jax.lax.stop_gradient(jnp.tri(sizes.shape[-1], dtype=sizes.dtype) @ sizes)
        above = distance >= ends[:-1]
        self.before = jnp.pad(above, (0, 1))
        self.chosen = jnp.pad(above, (1, 0), constant_values=True) & ~self.before

    def corners(self, widths: Array, heights: Array, log_slopes: Array) -> tuple[Array, ...]:
        """Left, width, bottom, height and both derivatives; the outermost derivatives are 1."""
        slopes = (self._of(jnp.pad(log_slopes, (1, 0))), self._of(jnp.pad(log_slopes, (0, 1))))
        return (
            *(self._until(widths), self._of(widths)),
            *(self._until(heights), self._of(heights)),
            *(jnp.exp(bounded(slope)) for slope in slopes),
        )

    def _of(self, values: Array) -> Array:
        return jnp.where(self.chosen, values, 0).sum()

    def _until(self, values: Array) -> Array:
        return jnp.where(self.before, values, 0).sum()


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

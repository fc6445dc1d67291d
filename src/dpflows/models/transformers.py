"""Scalar transformers, whose parameters a conditioner network gives, and ``Columnwise``.

Transformers are frozen dataclasses, hence hashable by value: two flows of one architecture
share their compiled code. ``Spline`` is a rational-quadratic spline that stays finite in
float32. ``Columnwise`` is an autoregressive map with a separate small network per column.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import AbstractBijection, Chain, Loc, Vmap
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpflows.models.bijections import BoundedAffine, RowMap, bounded

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


TransformerName = Literal[
    "additive", "affine", "spline", "affine-spline", "scaled-affine", "scaled-affine-spline"
]


class Transformer(abc.ABC):
    """Maps a parameter vector to a scalar bijection; zeros give the identity."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of parameters per column."""

    @abc.abstractmethod
    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """The bijection these parameters describe."""

    def identity(self) -> AbstractBijection:
        """The bijection at zero parameters."""
        return self(jnp.zeros(self.size))

    def elementwise(self, dim: int) -> AbstractBijection:
        """One independent copy per column with free parameters, for flows without a conditioner."""
        return Vmap(eqx.filter_vmap(self)(jnp.zeros((dim, self.size))), in_axes=eqx.if_array(0))


@final
@dataclasses.dataclass(frozen=True)
class Additive(Transformer):
    """``x + t``: the transformer of NICE (Dinh et al., 2014).

    Example:
        >>> import jax.numpy as jnp
        >>> float(Additive()(jnp.ones(1)).transform(jnp.array(1.0)))
        2.0
    """

    size: ClassVar[int] = 1

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A shift."""
        return Loc(params[0])


@final
@dataclasses.dataclass(frozen=True)
class Affine(Transformer):
    """``(x - t) exp(-s)`` with bounded ``s``.

    Example:
        >>> import jax.numpy as jnp
        >>> float(Affine()(jnp.array([1.0, 0.0])).transform(jnp.array(1.0)))
        0.0
    """

    size: ClassVar[int] = 2

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A bounded affine map."""
        return BoundedAffine(params[0], params[1])


@final
@dataclasses.dataclass(frozen=True)
class ScaledAffine(Transformer):
    """``x exp(-s) - t`` with bounded ``s``: the shift is in units of the scale.

    What a change of ``t`` does to the density then depends on neither parameter, so that the
    Fisher information hardly changes along a training step.

    Example:
        >>> import jax.numpy as jnp
        >>> float(ScaledAffine()(jnp.array([1.0, 0.0])).transform(jnp.array(1.0)))
        0.0
    """

    size: ClassVar[int] = 2

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A bounded affine map."""
        return BoundedAffine(params[0] * jnp.exp(bounded(params[1])), params[1])


@final
@dataclasses.dataclass(frozen=True)
class RationalQuadratic(Transformer):
    """A monotone spline with ``knots`` inner knots on [-interval, interval].

    Example:
        >>> RationalQuadratic(knots=8, interval=4.0).size
        26
    """

    knots: int
    interval: float

    @property
    def size(self) -> int:
        """Widths, heights and inner derivatives."""
        return 3 * self.knots + 2

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A rational-quadratic spline."""
        return Spline(params, self.interval)


@final
@dataclasses.dataclass(frozen=True)
class AffineSpline(Transformer):
    """A bounded affine map, which brings the column to the spline's interval, then a spline.

    A spline alone would use its knots for shifting and scaling a column, which noisy training
    learns slowly.

    Example:
        >>> AffineSpline(RationalQuadratic(knots=8, interval=4.0)).size
        28
    """

    spline: RationalQuadratic
    affine: Affine | ScaledAffine = Affine()

    @property
    def size(self) -> int:
        """Shift, log-scale and the spline's parameters."""
        return self.affine.size + self.spline.size

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """Both maps, one after the other."""
        split = self.affine.size
        return Chain([self.affine(params[:split]), self.spline(params[split:])])


#: A dense layer, or what stands in for one while its gradients are tapped.
Layer = Callable[[Array], Array]
#: Output weights start at this size over the square root of the width: near the identity map,
#: but not at it, where no hidden weight would have an effect.
_START = 0.01


@final
class Columnwise(RowMap):
    """An autoregressive map whose columns each have a separate network with one hidden layer.

    A masked network (MADE, Germain et al. 2015) shares its hidden units among the columns. Here no
    weight is shared by two columns, so that the Fisher information is block diagonal by column,
    which natural-gradient training uses, and a column is sampled by evaluating only its own
    network.

    Args:
        dim: Number of columns.
        width: Hidden units of each column's network.
        transformer: The scalar map.
        key: Random key of the initial weights.

    Example:
        >>> from dpflows.models.transformers import Affine
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
        """Evaluate all networks at once."""
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
    """One column's parameters; for the first column, which has no inputs, only the biases."""
    return outputs(jnp.tanh(hidden(seen)) * has_input)


def _visible(dim: int) -> Float[np.ndarray, "dim dim"]:
    """The mask of inputs of each column's network: the columns before it."""
    return np.tri(dim, k=-1, dtype=np.float32)


def _stacked(weight: Float[Array, "d out in"], bias: Float[Array, "d out"]) -> eqx.nn.Linear:
    """Dense layers stacked along the first axis."""
    _, out, inputs = weight.shape
    hollow = eqx.filter_eval_shape(eqx.nn.Linear, inputs, out, key=jr.key(0))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), hollow, (weight, bias))

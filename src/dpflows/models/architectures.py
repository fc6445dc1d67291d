"""Flow families by name, and the scalar maps that their networks parametrise.

Transformers are frozen dataclasses, hence hashable by value: two flows of one architecture
share their compiled code. ``Spline`` is a rational-quadratic spline that stays finite in
float32. ``Columnwise`` is an autoregressive map with a separate small network per column.

A family is one entry of ``ARCHITECTURES``: how to make one block from data to latent
space, and which scalar transformers it accepts. Blocks are stacked and scanned over, so
neither the program's size nor its compilation grows with their number.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import (
    AbstractBijection,
    Chain,
    Coupling,
    Flip,
    Invert,
    Loc,
    MaskedAutoregressive,
    Scan,
    Vmap,
)
from flowjax.distributions import AbstractDistribution, Transformed
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpflows.errors import InputError
from dpflows.models.bijections import (
    BoundedAffine,
    ColumnByColumn,
    Implicit,
    RowMap,
    TriangularLinear,
    block_network,
    bounded,
)
from dpflows.models.density import gaussian

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
_QUIET_START = 0.01


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
        quiet = _QUIET_START / np.sqrt(width) * jr.normal(last, (dim, transformer.size, width))
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


_START = 0.01
# Far beyond use; a forged file must not make us build without end.
_LARGEST = {"width": 8192, "depth": 32, "blocks": 256, "knots": 256}
_MOST_COLUMNS = 10_000
# Units per column: a diagonal block has as many parameters, squared, per layer.
_SMALLEST_BLOCK, _LARGEST_BLOCK = 4, 16


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The definition of a family.

    Attributes:
        block: One block, a bijection of ``dim`` columns, from a key.
        transformers: The scalar maps it accepts; the first is the default.
        last: A map after all blocks, if the family has one.
        act_norms: Number of ActNorm layers in a block.
        weights: Approximate number of trained weights, where a masked network is no guide.
    """

    block: "Callable[[Architecture, int, PRNGKeyArray], AbstractBijection]"
    transformers: tuple[TransformerName, ...] = ("affine", "spline")
    last: Callable[[int], AbstractBijection] | None = None
    act_norms: int = 1
    weights: "Callable[[Architecture, int], int] | None" = None


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a flow in plain numbers; ``dataclasses.asdict`` gives its JSON.

    Attributes:
        name: A key of ``ARCHITECTURES``.
        width: Units per hidden layer of each conditioner.
        depth: Hidden layers of each conditioner.
        blocks: How many blocks are stacked.
        transformer: The scalar map; None for the family's default.
        knots: Inner knots of a spline.
        interval: Splines act on [-interval, interval] and are the identity outside.

    Example:
        >>> import jax.random as jr
        >>> flow = Architecture("maf", width=8, blocks=2).build(3, key=jr.key(0))
        >>> flow.sample(jr.key(1), (5,)).shape
        (5, 3)
    """

    name: str = "nsf"
    width: int = 64
    depth: int = 2
    blocks: int = 3
    transformer: TransformerName | None = None
    knots: int = 8
    interval: float = 4.0

    def __post_init__(self) -> None:
        _require_choice("name", self.name, ARCHITECTURES)
        for field, most in _LARGEST.items():
            _require_count(field, getattr(self, field), most)
        if not 0 < self.interval < float("inf"):
            raise InputError(f"interval must be positive and finite, got {self.interval!r}")
        if self.transformer is not None:
            _require_choice("transformer", self.transformer, self._recipe.transformers)

    @property
    def _recipe(self) -> Recipe:
        return ARCHITECTURES[self.name]

    @property
    def act_norms(self) -> int:
        """How many ActNorm layers such a flow has."""
        return self.blocks * self._recipe.act_norms + (self._recipe.last is not None)

    def weights(self, columns: int) -> int:
        """Approximate number of trained weights of a flow of this shape."""
        return (self._recipe.weights or _masked_weights)(self, columns)

    def activations(self, columns: int) -> int:
        """Approximate number of stored activations per row for its gradient."""
        return self.blocks * (2 * self.width * self.depth + columns * (6 * self.knots + 8))

    def __str__(self) -> str:
        return f"{self.name}: {self.blocks} blocks, width {self.width}, depth {self.depth}"

    def scalar_map(self) -> Transformer:
        """The transformer that the conditioners parameterise."""
        spline = RationalQuadratic(self.knots, float(self.interval))
        by_name: dict[TransformerName, Transformer] = {
            "additive": Additive(),
            "affine": Affine(),
            "spline": spline,
            "affine-spline": AffineSpline(spline),
            "scaled-affine": ScaledAffine(),
            "scaled-affine-spline": AffineSpline(spline, ScaledAffine()),
        }
        return by_name[self.transformer or self._recipe.transformers[0]]

    def build(
        self, dim: int, *, key: PRNGKeyArray, base: AbstractDistribution | None = None
    ) -> Transformed:
        """A new flow over ``dim`` columns, initialised near the identity map of its base.

        Args:
            dim: Number of columns.
            key: Random key of the initial weights.
            base: Latent distribution of shape ``(dim,)``; a standard Gaussian if None.
        """
        _require_count("dim", dim, _MOST_COLUMNS)
        if base is not None and base.shape != (dim,):
            raise InputError(f"base must have shape ({dim},), got {base.shape}")
        return Transformed(self._facing(base, dim), _assemble_at_once(self, dim, key))

    def _facing(self, base: AbstractDistribution | None, dim: int) -> AbstractDistribution:
        """The base in the last block's column order: every block reverses the order."""
        if base is None:
            return gaussian(dim)
        return Transformed(base, _reverse(dim)) if self.blocks % 2 else base

    def size(self, dim: int) -> int:
        """The number of parameters of such a flow over ``dim`` columns, without building it.

        Example:
            >>> Architecture("maf", width=8, depth=1, blocks=1).size(2) > 0
            True
        """
        _require_count("dim", dim, _MOST_COLUMNS)
        shapes = eqx.filter_eval_shape(_assemble, self, dim, jr.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "size"))


def _assemble(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    """Blocks stacked from data to latent and inverted: FlowJAX samples by ``transform``."""
    recipe = ARCHITECTURES[arch.name]
    make = functools.partial(recipe.block, arch, dim)
    stack: AbstractBijection = Scan(eqx.filter_vmap(make)(jr.split(key, arch.blocks)))
    if recipe.last is not None:
        stack = Chain([stack, recipe.last(dim)])
    return Invert(stack)


# Compiled as a whole: the many small arrays of a fresh network are slow one by one. The
# program runs once, and optimising it would take several times longer than running it.
_compile: Any = eqx.filter_jit
_assemble_at_once = _compile(_assemble, compiler_options={"xla_backend_optimization_level": 0})


def _require_choice(field: str, value: object, choices: Any) -> None:
    if value not in choices:
        raise InputError(f"{field} must be one of {', '.join(choices)}, got {value!r}")


def _require_count(field: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(f"{field} must be a whole number from 1 to {most}, got {value!r}")


def _made(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    """A masked network that gives each column's transformer from the columns before it."""
    scalar = arch.scalar_map()
    if dim == 1:
        return scalar.elementwise(dim)
    made = MaskedAutoregressive(
        key,
        transformer=scalar.identity(),
        dim=dim,
        nn_width=arch.width,
        nn_depth=arch.depth,
    )
    made = eqx.tree_at(
        lambda m: (m.masked_autoregressive_mlp, m.transformer_constructor),
        made,
        (_quiet(made.masked_autoregressive_mlp), scalar),
    )
    return ColumnByColumn(made)


def _coupling(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    """A network that gives the second half's transformers from the first half."""
    scalar = arch.scalar_map()
    if dim == 1:
        return scalar.elementwise(dim)
    coupling = Coupling(
        key,
        transformer=scalar.identity(),
        untransformed_dim=dim // 2,
        dim=dim,
        nn_width=arch.width,
        nn_depth=arch.depth,
    )
    return eqx.tree_at(
        lambda c: (c.conditioner, c.transformer_constructor),
        coupling,
        (_quiet(coupling.conditioner), scalar),
    )


def _quiet(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """Shrink the last layer, so that a new flow is near the identity."""
    last = network.layers[-1]
    soft = jax.tree.map(lambda a: _START * a if eqx.is_inexact_array(a) else a, last)
    soft = eqx.tree_at(lambda layer: layer.bias, soft, replace_fn=jnp.zeros_like)
    return eqx.tree_at(lambda mlp: mlp.layers[-1], network, soft)


def _act_norm(dim: int) -> AbstractBijection:
    return BoundedAffine(jnp.zeros(dim), jnp.zeros(dim))


def _reverse(dim: int) -> AbstractBijection:
    return Flip((dim,))  # type: ignore[call-arg]  # its cond_shape is a constant


def _autoregressive(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    return Chain([_made(arch, dim, key), _reverse(dim), _act_norm(dim)])


def _inverse_autoregressive(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    return Chain([Implicit(_made(arch, dim, key)), _reverse(dim), _act_norm(dim)])


def _additive(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    return Chain([_coupling(arch, dim, key), _reverse(dim)])


def _real_nvp(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    return Chain([_coupling(arch, dim, key), _reverse(dim), _act_norm(dim)])


def _glow(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    mixing = TriangularLinear(jnp.zeros((dim, dim)))
    return Chain([_act_norm(dim), mixing, _coupling(arch, dim, key), _reverse(dim)])


def _columnwise(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    return Chain([Columnwise(dim, arch.width, arch.scalar_map(), key=key), _reverse(dim)])


def _block_neural(arch: Architecture, dim: int, key: PRNGKeyArray) -> AbstractBijection:
    block_dim = min(max(arch.width // dim, _SMALLEST_BLOCK), _LARGEST_BLOCK)
    network = block_network(key, dim=dim, depth=arch.depth, block_dim=block_dim)
    return Chain([network, _reverse(dim), _act_norm(dim)])


def _masked_weights(arch: Architecture, columns: int) -> int:
    outputs = columns * (3 * arch.knots + 3)
    hidden = (arch.depth - 1) * arch.width**2
    return arch.blocks * (arch.width * (columns + outputs) + hidden)


def _columnwise_weights(arch: Architecture, columns: int) -> int:
    outputs = arch.scalar_map().size * (arch.width + 1)
    return arch.blocks * columns * (arch.width * (columns + 1) // 2 + arch.width + outputs)


_BENT: tuple[TransformerName, ...] = ("affine-spline", "spline", "affine")
_SCALED: tuple[TransformerName, ...] = ("scaled-affine-spline", "scaled-affine")

ARCHITECTURES: dict[str, Recipe] = {
    "maf": Recipe(_autoregressive),
    "iaf": Recipe(_inverse_autoregressive),
    "nice": Recipe(_additive, ("additive", "affine", "spline"), last=_act_norm, act_norms=0),
    "realnvp": Recipe(_real_nvp),
    "glow": Recipe(_glow),
    "nsf": Recipe(_autoregressive, _BENT),
    "nsf-coupling": Recipe(_real_nvp, _BENT),
    "bnaf": Recipe(_block_neural, ()),
    "columnwise": Recipe(_columnwise, _SCALED, act_norms=0, weights=_columnwise_weights),
}

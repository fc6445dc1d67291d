"""Flow families by name: recipes that assemble bijections.

A family is one entry of ``ARCHITECTURES``: how to make one block from data to latent
space, and which scalar transformers it accepts. Blocks are stacked and scanned over, so
neither the program's size nor its compilation grows with their number.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from flowjax.bijections import (
    AbstractBijection,
    Chain,
    Coupling,
    Flip,
    Invert,
    MaskedAutoregressive,
    Scan,
)
from flowjax.distributions import AbstractDistribution, Transformed
from jaxtyping import PRNGKeyArray

from dpflows.errors import InputError
from dpflows.models.bijections import (
    BoundedAffine,
    ColumnByColumn,
    Implicit,
    TriangularLinear,
    block_network,
)
from dpflows.models.density import gaussian
from dpflows.models.transformers import (
    Additive,
    Affine,
    AffineSpline,
    Columnwise,
    RationalQuadratic,
    ScaledAffine,
    Transformer,
    TransformerName,
)

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

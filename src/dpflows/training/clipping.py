"""The clipped gradient sum, and the bound that makes it safe to noise.

Each row's contribution is made of single-precision factors; products and sums are in double
precision. A row is clipped to a little less than the norm: by what rounding can hide of its own
length, and by what rounding of the sum over a whole batch can add (``rounding_margin``).

Guarantee:
    Whatever the rows contain, taking one of them out of a batch moves
    ``ClippedSum.gradient``, as it is computed, by at most ``ClippedSum.sensitivity`` in L2
    norm. A row whose gradient is not finite, or longer than four million, contributes
    exactly zero.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PyTree

from dpflows.errors import InputError
from dpflows.training.taps import LIFT, Blueprint, DenseParameters, Parameters, Tap

#: Where the rows go in each tap: after the axes of stacked layers, before the features.
_ROW_AXES = Tap(-2, -2, -1)  # type: ignore[arg-type]

Loss = Callable[[Any, Array], Array]

#: A single operation in single precision is off by at most this, relatively.
_SINGLE, _DOUBLE = 2.0**-24, 2.0**-53
#: Operations per row besides the sums of squares: a root, divisions, products.
_SCALAR_OPERATIONS = 32


def rounding_margin(terms: int, slots: int) -> float:
    """The part of the clipping norm that rounding may use up.

    A sum of ``terms`` squares in single precision is off by ``terms`` units at most. A sum of
    ``slots`` rows in double precision, in whatever order, is off by at most ``slots`` units of the
    sum of the rows' norms, which is ``slots`` times the clip; with and without one row.

    Args:
        terms: The most numbers that are added to get a row's squared norm.
        slots: The most rows that are added.

    Example:
        >>> rounding_margin(300, 2048) < 3e-5
        True
    """
    return (terms + _SCALAR_OPERATIONS) * _SINGLE + 2 * slots**2 * _DOUBLE


@dataclass(frozen=True)
class Clipping:
    """How a row's gradient is bounded.

    ``fixed`` shortens gradients longer than ``norm``. ``automatic`` (AUTO-S, Bu et
    al. 2022) scales every gradient to nearly ``norm``, so ``norm`` needs no tuning.

    Guarantee:
        ``factor(r) * r <= norm * (1 - margin)`` for every finite ``r >= 0``, up to the rounding
        that ``margin`` provides for, and ``factor(inf)`` is zero.

    Example:
        >>> float(Clipping(norm=1.0).factor(jnp.asarray(4.0), margin=1e-6)) <= 0.25
        True
    """

    norm: float = 1.0
    kind: str = "fixed"
    stabiliser: float = 0.01

    def __post_init__(self) -> None:
        if not (np.isfinite(self.norm) and self.norm > 0):
            raise InputError(f"clipping norm must be positive and finite, got {self.norm}")
        if self.kind not in ("fixed", "automatic"):
            raise InputError(f"clipping kind must be 'fixed' or 'automatic', got {self.kind!r}")

    def factor(self, norms: Float[Array, "*n"], *, margin: float) -> Float[Array, "*n"]:
        """What a gradient of each norm is multiplied by."""
        bound = self.norm * (1 - margin)
        if self.kind == "automatic":
            return bound / (norms + self.stabiliser)
        return bound / jnp.maximum(norms, bound)


class ClippedSum(NamedTuple):
    """A sum over rows in double precision, and the most any row can move it."""

    gradient: Parameters
    sensitivity: float


#: The clipped sum of some rows: (rows of the whole batch, parameters, rows, present) -> sum.
PieceSum = Callable[[int, Parameters, Array, Array], Parameters]


@final
@dataclass(frozen=True)
class Clipper:
    """A way to get the clipped sum of a batch.

    Attributes:
        clip: The sum over a piece of the batch.
        clipping: How each row is bounded.
        piece: The most rows that are worked on at once: what they leave behind should fit into
            the caches of the processor.
    """

    clip: PieceSum
    clipping: Clipping
    piece: int

    @property
    def sensitivity(self) -> float:
        """The most that one row can move the sum."""
        return self.clipping.norm

    def __call__(
        self,
        parameters: Parameters,
        rows: Float[Array, "batch columns"],
        present: Bool[Array, " batch"],
    ) -> ClippedSum:
        """The sum of the clipped gradients of the rows that are present."""
        return ClippedSum(self._total(parameters, rows, present), self.sensitivity)

    def _total(self, parameters: Parameters, rows: Array, present: Array) -> Parameters:
        slots = len(rows)
        pieces = math.ceil(slots / self.piece)
        if pieces <= 1:
            return self.clip(slots, parameters, rows, present)
        size = math.ceil(slots / pieces)
        padding = pieces * size - slots
        rows = jnp.pad(rows, ((0, padding), (0, 0))).reshape(pieces, size, -1)
        present = jnp.pad(present, (0, padding)).reshape(pieces, size)

        def add(total: Parameters, part: tuple[Array, Array]) -> tuple[Parameters, None]:
            more = self.clip(slots, parameters, *part)
            with jax.enable_x64(True):
                return jax.tree.map(jnp.add, total, more), None

        with jax.enable_x64(True):
            zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float64), parameters)
        return jax.lax.scan(add, zero, (rows, present))[0]


def by_taps(loss: Loss, blueprint: Blueprint, clipping: Clipping, *, piece: int = 640) -> Clipper:
    """Clip at nearly the cost of an ordinary gradient."""
    return Clipper(partial(_clip_by_taps, loss, blueprint, clipping), clipping, piece)


def by_rows(
    loss: Loss, blueprint: Blueprint, clipping: Clipping, *, microbatch: int = 32
) -> Clipper:
    """Clip any model by computing every row's whole gradient, a few rows at a time."""
    return Clipper(partial(_clip_by_rows, loss, blueprint, clipping), clipping, microbatch)


def choose_clipper(
    loss: Loss, blueprint: Blueprint, clipping: Clipping, parameters: Parameters, columns: int
) -> Clipper:
    """Taps where they are exact for this model, whole gradients where they are not.

    Both are compared on made-up rows and perturbed parameters; no private row is
    involved. A layer used twice in one pass, for instance, defeats taps.
    """
    taps = by_taps(loss, blueprint, clipping)
    rows = by_rows(loss, blueprint, clipping, microbatch=2)
    if agree(taps, rows, parameters, columns):
        return taps
    warnings.warn("taps are not exact for this model: clipping row by row, slower", stacklevel=2)
    return by_rows(loss, blueprint, clipping)


def agree(first: Clipper, second: Clipper, parameters: Parameters, columns: int) -> bool:
    """Whether two clippers give the same sum on made-up rows."""
    key = jax.random.wrap_key_data(jnp.asarray([2, 7], jnp.uint32))
    rows = jax.random.normal(key, (4, columns))
    leaves, tree = jax.tree.flatten(parameters)
    keys = jax.random.split(key, len(leaves))
    shaken = [
        leaf + 0.1 * jax.random.normal(k, leaf.shape, leaf.dtype)
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    present = jnp.ones(len(rows), bool)
    sums = [
        jax.jit(lambda p, r, m, c=clipper: c(p, r, m).gradient)(
            jax.tree.unflatten(tree, shaken), rows, present
        )
        for clipper in (first, second)
    ]
    ours, theirs = (jax.tree.map(np.asarray, total) for total in sums)
    gaps = jax.tree.map(lambda a, b: np.max(np.abs(a - b), initial=0.0), ours, theirs)
    sizes = jax.tree.map(lambda a: np.max(np.abs(a), initial=0.0), theirs)
    return bool(max(jax.tree.leaves(gaps)) <= 1e-3 * max(jax.tree.leaves(sizes)))


def _clip_by_taps(
    loss: Loss,
    blueprint: Blueprint,
    clipping: Clipping,
    slots: int,
    parameters: Parameters,
    rows: Float[Array, "batch columns"],
    present: Bool[Array, " batch"],
) -> Parameters:
    def row_loss(taps: tuple[tuple[Tap, ...], ...], free: PyTree, row: Array) -> Array:
        model = blueprint.assemble_tapped(parameters._replace(free=free), taps)
        return LIFT * loss(model, row)

    zeros = blueprint.zero_taps(parameters)
    gradients = jax.vmap(
        jax.grad(row_loss, argnums=(0, 1)),
        in_axes=(None, None, 0),
        out_axes=(tuple((_ROW_AXES,) * len(steps) for steps in zeros), 0),
    )
    taps, free = gradients(zeros, parameters.free, rows)
    squares = _squared_norms(free, len(rows))
    for tap in (tap for steps in taps for tap in steps):
        squares = squares + jnp.sum(tap.norm.reshape(-1, len(rows)), axis=0)
    margin = rounding_margin(_terms(parameters, sum(map(len, taps))), slots)
    factor = _factors(squares, present, clipping, margin)
    parts = tuple(
        tuple(_weighted_outer(tap, mask, layer, factor) for tap in steps)
        for steps, mask, layer in zip(taps, blueprint.masks, parameters.dense, strict=True)
    )
    return Parameters(_restacked(blueprint, parts), _weighted_sum(free, factor))


def _terms(parameters: Parameters, taps: int) -> int:
    """The most numbers added on the way to a squared norm: a layer's two sums, then layers."""
    sizes = [sum(layer.weight.shape[-2:]) for layer in parameters.dense]
    return max(sizes, default=0) + math.prod(_stack(parameters)) * taps


def _stack(parameters: Parameters) -> tuple[int, ...]:
    """The largest stack of layers that share one array."""
    return max((layer.weight.shape[:-2] for layer in parameters.dense), key=math.prod, default=())


def _restacked(
    blueprint: Blueprint, parts: tuple[tuple[DenseParameters, ...], ...]
) -> tuple[DenseParameters, ...]:
    """One entry per dense layer from one per tap."""
    with jax.enable_x64(True):
        return tuple(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps) if scanned else steps[0]
            for steps, scanned in zip(parts, blueprint.scanned, strict=True)
        )


def _squared_norms(gradients: PyTree, batch: int) -> Float[Array, " batch"]:
    """Each row's sum of squares, from whole gradients, rounded once."""
    leaves = [leaf.reshape(batch, -1) for leaf in jax.tree.leaves(gradients)]
    dtype = jnp.result_type(float)
    with jax.enable_x64(True):
        wide = [leaf.astype(jnp.float64) for leaf in leaves]
        total = sum((jnp.sum(x * x, axis=1) for x in wide), jnp.zeros(batch, jnp.float64))
        return total.astype(dtype)


def _factors(
    squares: Float[Array, " batch"],
    present: Bool[Array, " batch"],
    clipping: Clipping,
    margin: float,
) -> Float[Array, " batch"]:
    """What the lifted gradients are multiplied by; zero for rows that do not count."""
    alive = present & jnp.isfinite(squares)
    norms = jnp.sqrt(jnp.where(alive, squares, 1.0)) / LIFT
    # The division comes last, so that it is done once per row: the compiler repeats cheaper
    # steps, and all that they depend on, for every entry that the factor is multiplied with.
    return clipping.factor(jnp.where(alive, norms, jnp.inf), margin=margin) / LIFT


def _kept(values: Float[Array, "*n batch k"], factor: Float[Array, " batch"]) -> Array:
    """Zeros in place of dead rows: their values may be infinite, and 0 * inf is NaN."""
    return jnp.where(factor[:, None] > 0, values, 0.0)


def _weighted_outer(
    tap: Tap, mask: np.ndarray | None, layer: DenseParameters, factor: Float[Array, " batch"]
) -> DenseParameters:
    outputs = _kept(tap.outputs, factor) * factor[:, None]
    inputs = _kept(tap.inputs, factor)
    with jax.enable_x64(True):
        outputs, inputs = outputs.astype(jnp.float64), inputs.astype(jnp.float64)
        weight = over_rows(outputs, inputs)
        weight = weight if mask is None else jnp.where(mask, weight, 0.0)
        return DenseParameters(weight, None if layer.bias is None else jnp.sum(outputs, axis=-2))


def over_rows(
    left: Float64[Array, "*stack batch m"], right: Float64[Array, "*stack batch n"]
) -> Float64[Array, "*stack m n"]:
    """The sum over rows of the outer products of two vectors per row."""
    # einsum is compiled on its own, and mapped over something it would be traced again where
    # double precision is switched off
    stack = tuple(range(left.ndim - 2))
    rows = left.ndim - 2
    return jax.lax.dot_general(left, right, (((rows,), (rows,)), (stack, stack)))


def _weighted_sum(tree: PyTree, factor: Float[Array, " batch"]) -> PyTree:
    def total(leaf: Array) -> Array:
        flat = _kept(leaf.reshape(len(factor), -1), factor)
        with jax.enable_x64(True):
            weights = factor.astype(jnp.float64)[:, None]
            return over_rows(weights, flat.astype(jnp.float64)).reshape(leaf.shape[1:])

    return jax.tree.map(total, tree)


def _clip_by_rows(
    loss: Loss,
    blueprint: Blueprint,
    clipping: Clipping,
    slots: int,
    parameters: Parameters,
    rows: Float[Array, "batch columns"],
    present: Bool[Array, " batch"],
) -> Parameters:
    gradient = jax.grad(lambda p, row: LIFT * loss(blueprint.assemble(p), row))
    each = jax.vmap(gradient, in_axes=(None, 0))(parameters, rows)
    squares = _squared_norms(each, len(rows))
    return _weighted_sum(each, _factors(squares, present, clipping, rounding_margin(0, slots)))

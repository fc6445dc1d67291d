"""Ghost clipping: the clipped gradient sum without per-row weight gradients.

A dense layer ``z = W a + b`` turns a row's loss into a weight gradient that is the
outer product of its input, ``a``, and the loss gradient of its output, ``g``.
Taps on the layer return both, and the squared norm of the product, so
norms and clipped sums need no per-row weight gradient. Masked layers
contribute only on their mask. A tapped model runs its stacked layers one after the other
instead of in a scan: a scan would copy all that the taps return into zero-filled buffers.

Each row's contribution is made of single-precision factors; products and sums are in double
precision. A row is clipped to slightly less than the norm: by what rounding can hide of its own
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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import Chain, Scan
from jaxtyping import Array, Bool, Float, Float64, PyTree

from dpflows.errors import InputError


class DenseParameters(NamedTuple):
    """Weight ``(..., out, in)`` and bias ``(..., out)`` of a layer, stacked or not."""

    weight: Array
    bias: Array | None


class Parameters(NamedTuple):
    """The trained parameters: dense layers, and the free parameters outside them."""

    dense: tuple[DenseParameters, ...]
    free: PyTree


class Tap(NamedTuple):
    """Zeros whose gradients are a layer's inputs, output gradients and squared gradient norm."""

    inputs: Array
    outputs: Array
    norm: Array


#: The loss is lifted by this before it is differentiated, so that every gradient is lifted
#: too. A float32 square of anything below 1e-19 is flushed to zero, and a partner of 1e19
#: would make up for it unseen; lifted, what is flushed cannot matter, and what is large
#: enough to make it matter overflows and is caught. The square of a lifted norm overflows
#: at a norm of 4.2 million. A power of two, so that lifting rounds nothing.
LIFT = 2.0**42


@final
class _Slot(eqx.Module):
    """Marks the position of dense layer ``index`` in a separated model."""

    index: int = eqx.field(static=True)


@final
class _TappedLinear(eqx.Module):
    weight: Array
    bias: Array | None
    tap: Tap
    group: "MaskGroups | None"

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return _tapped_dense(self.weight, self.bias, x, self.tap, self.group)


class _Steps(list[_TappedLinear]):
    """The layers that a scan would run, one by one; not a pytree, so never separated."""


@jax.custom_vjp
def _tapped_dense(
    weight: Array, bias: Array | None, x: Array, tap: Tap, group: "MaskGroups | None"
) -> Array:
    z = weight @ x
    return z if bias is None else z + bias


def _tapped_forward(
    weight: Array, bias: Array | None, x: Array, tap: Tap, group: "MaskGroups | None"
) -> tuple[Array, tuple[Any, ...]]:
    return _tapped_dense(weight, bias, x, tap, group), (weight, bias, x, group)


def _tapped_backward(saved: tuple[Any, ...], g: Array) -> tuple[None, None, Array, Tap, None]:
    weight, bias, x, group = saved
    # Here the row's values are still at hand; later they would have to be fetched again.
    norm = _squared_norm(x, g, group, with_bias=bias is not None)
    # The row comes first in the product: mapped over rows, the result needs no transposing.
    return None, None, g @ weight, Tap(x, g, norm), None


_tapped_dense.defvjp(_tapped_forward, _tapped_backward)


def _squared_norm(x: Array, g: Array, group: "MaskGroups | None", *, with_bias: bool) -> Array:
    # A bias is a weight whose input is one. Squares carry no constant factor, because the
    # compiler would write out that constant at the size of the whole batch.
    bias_input = 1.0 if with_bias else 0.0
    if group is None:
        return (jnp.sum(x * x) + bias_input) * jnp.sum(g * g)
    return group.pair(x * x, g * g, offset=bias_input)


@final
class MaskGroups(eqx.Module):
    """A mask as its few distinct rows and the row of each output.

    An autoregressive mask over ``d`` columns has at most ``d`` distinct rows, so
    sums over a mask cost two thin products instead of a full one.
    """

    patterns: Array
    membership: Array

    @classmethod
    def of(cls, mask: Bool[np.ndarray, "out inputs"]) -> "MaskGroups":
        """Group the outputs that depend on the same inputs."""
        patterns, index = np.unique(mask, axis=0, return_inverse=True)
        membership = np.eye(len(patterns))[index.reshape(-1)]
        return cls(jnp.asarray(patterns, float), jnp.asarray(membership))

    def pair(
        self, inputs: Float[Array, "*n i"], outputs: Float[Array, "*n o"], *, offset: float = 0.0
    ) -> Array:
        """Sum of ``inputs[i] * outputs[o]`` over the unmasked pairs.

        Each output is also paired with ``offset``.
        """
        through = inputs @ self.patterns.T.astype(inputs.dtype) + offset
        return jnp.sum(through * (outputs @ self.membership.astype(outputs.dtype)), axis=-1)


@final
class Blueprint(eqx.Module):
    """A model without its parameters, from which it can be rebuilt."""

    rest: PyTree
    masks: tuple[np.ndarray | None, ...]
    groups: tuple[MaskGroups | None, ...]
    layers: tuple[eqx.nn.Linear, ...]
    scanned: tuple[bool, ...] = eqx.field(static=True)

    def assemble(self, parameters: Parameters) -> Any:
        """The plain model with these parameters."""
        layers = [
            _with(layer, _masked(dense.weight, mask), dense.bias)
            for layer, dense, mask in zip(self.layers, parameters.dense, self.masks, strict=True)
        ]
        return self._fill(parameters.free, layers)

    def zero_taps(self, parameters: Parameters) -> tuple[tuple[Tap, ...], ...]:
        """The taps of every dense layer: one for each step of a scan, or one in all."""
        return tuple(
            tuple(_zero_tap(part) for part in _steps(dense, scanned))
            for dense, scanned in zip(parameters.dense, self.scanned, strict=True)
        )

    def assemble_tapped(self, parameters: Parameters, taps: tuple[tuple[Tap, ...], ...]) -> Any:
        """The same model with taps on every dense layer and its scans unrolled."""
        layers: list[Any] = []
        for index, dense in enumerate(parameters.dense):
            parts = _steps(dense, self.scanned[index])
            pairs = zip(parts, taps[index], strict=True)
            tapped = [self._tapped(index, part, tap) for part, tap in pairs]
            layers.append(_Steps(tapped) if self.scanned[index] else tapped[0])
        return unrolled(paramax.unwrap(self._fill(parameters.free, layers)))

    def _tapped(self, index: int, dense: DenseParameters, tap: Tap) -> _TappedLinear:
        weight = paramax.unwrap(_masked(dense.weight, self.masks[index]))
        group = _stacked(self.groups[index], dense.weight.shape[:-2])
        return _TappedLinear(weight, dense.bias, tap, group)

    def _fill(self, free: PyTree, layers: list[Any]) -> Any:
        return jax.tree.map(
            lambda node: layers[node.index] if isinstance(node, _Slot) else node,
            eqx.combine(free, self.rest, is_leaf=_is_frozen),
            is_leaf=lambda node: isinstance(node, _Slot),
        )


def take_apart(model: Any) -> tuple[Parameters, Blueprint]:
    """Separate a model's trained arrays from everything else.

    Every ``eqx.nn.Linear`` with a plain or ``where``-masked weight becomes a dense
    entry; other inexact arrays are free parameters; ``NonTrainable`` parts stay put.
    """
    layers: list[eqx.nn.Linear] = []

    def slot(node: Any) -> Any:
        if not _can_be_tapped(node):
            return node
        layers.append(node)
        return _Slot(len(layers) - 1)

    emptied = jax.tree.map(slot, model, is_leaf=lambda x: _can_be_tapped(x) or _is_frozen(x))
    free, rest = eqx.partition(emptied, eqx.is_inexact_array, is_leaf=_is_frozen)
    masks = tuple(_mask_of(layer) for layer in layers)
    groups = tuple(None if mask is None else MaskGroups.of(mask) for mask in masks)
    dense = tuple(DenseParameters(_weight_of(layer), layer.bias) for layer in layers)
    hollow = tuple(_with(layer, None, None) for layer in layers)
    blueprint = Blueprint(rest, masks, groups, hollow, _scanned(emptied, len(layers)))
    return Parameters(dense, free), blueprint


def _zero_tap(dense: DenseParameters) -> Tap:
    w = jnp.zeros_like(dense.weight)
    return Tap(w[..., 0, :], w[..., :, 0], w[..., 0, 0])


def _steps(dense: DenseParameters, scanned: bool) -> list[DenseParameters]:
    """The layer at each step of its scan."""
    return [_at(dense, step) for step in range(len(dense.weight))] if scanned else [dense]


def _scanned(emptied: Any, count: int) -> tuple[bool, ...]:
    """Which dense layers a scan runs through."""
    inside = {slot.index for scan in _find(emptied, Scan) for slot in _find(scan, _Slot)}
    return tuple(index in inside for index in range(count))


def _find(tree: Any, kind: type) -> list[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def unrolled(model: Any) -> Any:
    """The model with every scan replaced by a chain. Expects no wrapped parameters."""

    def unroll(node: Any) -> Any:
        steps = range(_length(node)) if isinstance(node, Scan) else ()
        return Chain([_at(node.bijection, step) for step in steps]) if steps else node

    return jax.tree.map(unroll, model, is_leaf=lambda node: isinstance(node, Scan))


def _length(scan: Scan) -> int:
    return next(len(leaf) for leaf in jax.tree.leaves(scan) if _has_steps(leaf))


def _at(stacked: Any, step: int) -> Any:
    """What a scan would run at this step."""
    return jax.tree.map(lambda leaf: leaf[step] if _has_steps(leaf) else leaf, stacked)


def _has_steps(leaf: Any) -> bool:
    return isinstance(leaf, _Steps) or eqx.is_array(leaf)


def _is_frozen(node: Any) -> bool:
    return isinstance(node, paramax.NonTrainable)


def _is_where_mask(weight: Any) -> bool:
    return isinstance(weight, paramax.Parameterize) and weight.fn is jnp.where


def _can_be_tapped(node: Any) -> bool:
    return isinstance(node, eqx.nn.Linear) and (
        eqx.is_inexact_array(node.weight) or _is_where_mask(node.weight)
    )


def _weight_of(layer: eqx.nn.Linear) -> Array:
    weight: Any = layer.weight
    return weight.args[1] if _is_where_mask(weight) else weight


def _mask_of(layer: eqx.nn.Linear) -> np.ndarray | None:
    """The layer's mask; layers stacked in one array share it."""
    weight: Any = layer.weight
    if not _is_where_mask(weight):
        return None
    mask = np.asarray(weight.args[0])
    mask = mask.reshape(-1, *mask.shape[-2:])
    if not (mask == mask[0]).all():
        raise ValueError("layers stacked in one array must share one mask")
    return mask[0]


def _masked(weight: Array, mask: np.ndarray | Array | None) -> Any:
    if mask is None:
        return weight
    return paramax.Parameterize(jnp.where, jnp.broadcast_to(mask, weight.shape), weight, 0)


def _stacked(group: MaskGroups | None, stack: tuple[int, ...]) -> MaskGroups | None:
    """The group once per stacked layer, for stacks that are not unrolled."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (*stack, *a.shape)), group)


def _with(layer: eqx.nn.Linear, weight: Any, bias: Array | None) -> eqx.nn.Linear:
    return eqx.tree_at(
        lambda layer: (layer.weight, layer.bias), layer, (weight, bias), is_leaf=lambda x: x is None
    )


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
        terms: The largest number of terms in a row's squared norm.
        slots: The largest number of rows that are added.

    Example:
        >>> rounding_margin(300, 2048) < 3e-5
        True
    """
    return (terms + _SCALAR_OPERATIONS) * _SINGLE + 2 * slots**2 * _DOUBLE


@dataclass(frozen=True)
class Clipping:
    """The rule by which a row's gradient is clipped.

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
        """The factor on a gradient of each norm."""
        bound = self.norm * (1 - margin)
        if self.kind == "automatic":
            return bound / (norms + self.stabiliser)
        return bound / jnp.maximum(norms, bound)


class ClippedSum(NamedTuple):
    """A sum over rows in double precision, and its sensitivity to one row."""

    gradient: Parameters
    sensitivity: float


#: The clipped sum of some rows: (rows of the whole batch, parameters, rows, present) -> sum.
PieceSum = Callable[[int, Parameters, Array, Array], Parameters]


@final
@dataclass(frozen=True)
class Clipper:
    """Computes the clipped sum of a batch.

    Attributes:
        clip: The sum over a piece of the batch.
        clipping: How each row is bounded.
        piece: The largest number of rows processed at once: their intermediate results should fit
        into the processor caches.
    """

    clip: PieceSum
    clipping: Clipping
    piece: int

    @property
    def sensitivity(self) -> float:
        """The largest change one row can cause in the sum."""
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
    """Ghost clipping if it is exact for this model, else per-row gradients.

    Both are compared on generated rows and perturbed parameters; no private row is involved. Ghost
    clipping is not exact, for instance, if a layer is used twice in one pass.
    """
    taps = by_taps(loss, blueprint, clipping)
    rows = by_rows(loss, blueprint, clipping, microbatch=2)
    if agree(taps, rows, parameters, columns):
        return taps
    warnings.warn(
        "ghost clipping is not exact for this model; using per-row gradients, which is slower",
        stacklevel=2,
    )
    return by_rows(loss, blueprint, clipping)


def agree(first: Clipper, second: Clipper, parameters: Parameters, columns: int) -> bool:
    """Whether two clippers give the same sum on generated rows."""
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
    """Zeros in place of excluded rows: their values may be infinite, and 0 * inf is NaN."""
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

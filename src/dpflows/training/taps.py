"""Taps: what each row does to each dense layer, without per-row weight gradients.

A dense layer ``z = W a + b`` turns a row's loss into a weight gradient that is the
outer product of what came in, ``a``, and the loss gradient of what went out, ``g``.
Taps on the layer hand out both, and the squared norm of the product besides, so
norms and clipped sums need no per-row weight gradient at all. Masked layers
contribute only on their mask.

A tapped model runs its stacked layers one after the other instead of in a scan: a scan
would copy all that the taps hand out into buffers that it first fills with zeros.
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import Chain, Scan
from jaxtyping import Array, Bool, Float, PyTree


class DenseParameters(NamedTuple):
    """Weight ``(..., out, in)`` and bias ``(..., out)`` of a layer, stacked or not."""

    weight: Array
    bias: Array | None


class Parameters(NamedTuple):
    """All that is trained: dense layers, and the few free parameters beside them."""

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
    """Marks where dense layer ``index`` sits in a model taken apart."""

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
    """The layers that a scan would run, one by one; no pytree, so never taken apart."""


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
    """A mask as its few distinct rows and which output has which.

    An autoregressive mask over ``d`` columns has at most ``d`` distinct rows, so
    sums over a mask cost two thin products instead of a full one.
    """

    patterns: Array
    membership: Array

    @classmethod
    def of(cls, mask: Bool[np.ndarray, "out inputs"]) -> "MaskGroups":
        """Group the outputs that see the same inputs."""
        patterns, index = np.unique(mask, axis=0, return_inverse=True)
        membership = np.eye(len(patterns))[index.reshape(-1)]
        return cls(jnp.asarray(patterns, float), jnp.asarray(membership))

    def pair(
        self, inputs: Float[Array, "*n i"], outputs: Float[Array, "*n o"], *, offset: float = 0.0
    ) -> Array:
        """Sum of ``inputs[i] * outputs[o]`` over the pairs that the mask lets through.

        Each output is paired with ``offset`` besides.
        """
        through = inputs @ self.patterns.T.astype(inputs.dtype) + offset
        return jnp.sum(through * (outputs @ self.membership.astype(outputs.dtype)), axis=-1)


@final
class Blueprint(eqx.Module):
    """A model without its parameters: how to put any parameters back into it."""

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

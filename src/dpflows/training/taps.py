"""Taps: what each row does to each dense layer, without per-row weight gradients.

A dense layer ``z = W a + b`` turns a row's loss into a weight gradient that is the
outer product of what came in, ``a``, and the loss gradient of what went out, ``g``.
Taps on the layer hand out both, and the squared norm of the product besides, so
norms and clipped sums need no per-row weight gradient at all. Masked layers
contribute only on their mask.
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
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
    """Zeros whose gradients are a layer's inputs, its output gradients and its norm.

    The last is the squared norm of the row's gradient in this layer, times LIFT^4.
    """

    inputs: Array
    outputs: Array
    norm: Array


#: Values are lifted by this before they are squared. A float32 square of anything below
#: 1e-19 is flushed to zero, and a partner of 1e19 would make up for it unseen; lifted, what
#: is flushed cannot matter, and what is large enough to make it matter overflows and is
#: caught. The product of two lifted squares overflows at a norm of 4.2 million.
LIFT = 2.0**21


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
    norm = _lifted_norm(x, g, group, with_bias=bias is not None)
    return None, None, weight.T @ g, Tap(x, g, norm), None


_tapped_dense.defvjp(_tapped_forward, _tapped_backward)


def _lifted_norm(x: Array, g: Array, group: "MaskGroups | None", *, with_bias: bool) -> Array:
    inputs, outputs = (LIFT * x) ** 2, (LIFT * g) ** 2
    paired = jnp.sum(inputs) * jnp.sum(outputs) if group is None else group.pair(inputs, outputs)
    return paired + LIFT**2 * jnp.sum(outputs) if with_bias else paired


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

    def pair(self, inputs: Float[Array, "*n i"], outputs: Float[Array, "*n o"]) -> Array:
        """Sum of ``inputs[i] * outputs[o]`` over the pairs that the mask lets through."""
        through = inputs @ self.patterns.T.astype(inputs.dtype)
        return jnp.sum(through * (outputs @ self.membership.astype(outputs.dtype)), axis=-1)


@final
class Blueprint(eqx.Module):
    """A model without its parameters: how to put any parameters back into it."""

    rest: PyTree
    masks: tuple[np.ndarray | None, ...]
    groups: tuple[MaskGroups | None, ...]
    layers: tuple[eqx.nn.Linear, ...]

    def assemble(self, parameters: Parameters) -> Any:
        """The plain model with these parameters."""
        layers = [
            eqx.tree_at(
                lambda layer: (layer.weight, layer.bias),
                layer,
                (_masked(dense.weight, mask), dense.bias),
                is_leaf=lambda x: x is None,
            )
            for layer, dense, mask in zip(self.layers, parameters.dense, self.masks, strict=True)
        ]
        return self._fill(parameters.free, layers)

    def assemble_tapped(self, parameters: Parameters, taps: tuple[Tap, ...]) -> Any:
        """The same model with taps on every dense layer."""
        layers = [
            _TappedLinear(
                paramax.unwrap(_masked(dense.weight, mask)),
                dense.bias,
                tap,
                _stacked(group, dense.weight.shape[:-2]),
            )
            for dense, mask, group, tap in zip(
                parameters.dense, self.masks, self.groups, taps, strict=True
            )
        ]
        return self._fill(parameters.free, layers)

    def _fill(self, free: PyTree, layers: list[Any]) -> Any:
        model = eqx.combine(free, self.rest, is_leaf=_is_frozen)
        return jax.tree.map(
            lambda node: layers[node.index] if isinstance(node, _Slot) else node,
            model,
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
    hollow = tuple(_hollow(layer) for layer in layers)
    return Parameters(dense, free), Blueprint(rest, masks, groups, hollow)


def zero_taps(parameters: Parameters) -> tuple[Tap, ...]:
    """The taps of every dense layer."""
    return tuple(
        Tap(
            jnp.zeros_like(dense.weight[..., 0, :]),
            jnp.zeros_like(dense.weight[..., :, 0]),
            jnp.zeros_like(dense.weight[..., 0, 0]),
        )
        for dense in parameters.dense
    )


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


def _masked(weight: Array, mask: np.ndarray | None) -> Any:
    if mask is None:
        return weight
    return paramax.Parameterize(jnp.where, jnp.broadcast_to(mask, weight.shape), weight, 0)


def _stacked(group: MaskGroups | None, stack: tuple[int, ...]) -> MaskGroups | None:
    """The group once per stacked layer, as a scan over layers expects."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (*stack, *a.shape)), group)


def _hollow(layer: eqx.nn.Linear) -> eqx.nn.Linear:
    return eqx.tree_at(
        lambda layer: (layer.weight, layer.bias), layer, (None, None), is_leaf=lambda x: x is None
    )

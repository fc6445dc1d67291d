"""The clipped gradient sum, and the bound that makes it safe to noise.

Guarantee:
    Whatever a row contains, its contribution to ``ClippedSum.gradient`` has L2 norm
    at most ``ClippedSum.sensitivity``. A row whose gradient is not finite, or longer
    than four million, contributes exactly zero.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from dpflows.errors import InputError
from dpflows.training.taps import (
    LIFT,
    Blueprint,
    DenseParameters,
    Parameters,
    Tap,
)

#: Where the rows go in each tap: after the axes of stacked layers, before the features.
_ROW_AXES = Tap(-2, -2, -1)  # type: ignore[arg-type]

Loss = Callable[[Any, Array], Array]

#: Rounding in float32 can overshoot a clip by 1e-7; this margin absorbs it.
MARGIN = 1 - 2.0**-20


@dataclass(frozen=True)
class Clipping:
    """How a row's gradient is bounded.

    ``fixed`` shortens gradients longer than ``norm``. ``automatic`` (AUTO-S, Bu et
    al. 2022) scales every gradient to nearly ``norm``, so ``norm`` needs no tuning.

    Guarantee:
        ``factor(r) * r <= norm`` for every finite ``r >= 0``, rounding included,
        and ``factor(inf)`` is zero.

    Example:
        >>> float(Clipping(norm=1.0).factor(jnp.asarray(4.0))) <= 0.25
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

    def factor(self, norms: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """What a gradient of each norm is multiplied by."""
        bound = self.norm * MARGIN
        if self.kind == "automatic":
            return bound / (norms + self.stabiliser)
        return bound / jnp.maximum(norms, bound)


class ClippedSum(NamedTuple):
    """A sum over rows and the most any row can add to it."""

    gradient: Parameters
    sensitivity: float


Clipper = Callable[[Parameters, Float[Array, "batch columns"], Bool[Array, " batch"]], ClippedSum]


def by_taps(loss: Loss, blueprint: Blueprint, clipping: Clipping) -> Clipper:
    """Clip at nearly the cost of an ordinary gradient."""
    return partial(_clip_by_taps, loss, blueprint, clipping)


def by_rows(
    loss: Loss, blueprint: Blueprint, clipping: Clipping, *, microbatch: int = 32
) -> Clipper:
    """Clip any model by computing every row's whole gradient, a few rows at a time."""
    return partial(_clip_by_rows, loss, blueprint, clipping, microbatch)


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
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b), initial=0.0), *sums)
    sizes = jax.tree.map(lambda a: jnp.max(jnp.abs(a), initial=0.0), sums[1])
    return bool(max(jax.tree.leaves(gaps)) <= 1e-3 * max(jax.tree.leaves(sizes)))


def _clip_by_taps(
    loss: Loss,
    blueprint: Blueprint,
    clipping: Clipping,
    parameters: Parameters,
    rows: Float[Array, "batch columns"],
    present: Bool[Array, " batch"],
) -> ClippedSum:
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
    factor = _factors(squares, present, clipping)
    parts = tuple(
        tuple(_weighted_outer(tap, mask, layer, factor) for tap in steps)
        for steps, mask, layer in zip(taps, blueprint.masks, parameters.dense, strict=True)
    )
    gradient = Parameters(_restacked(blueprint, parts), _weighted_sum(free, factor))
    return ClippedSum(gradient, sensitivity=clipping.norm)


def _restacked(
    blueprint: Blueprint, parts: tuple[tuple[DenseParameters, ...], ...]
) -> tuple[DenseParameters, ...]:
    """One entry per dense layer from one per tap."""
    return tuple(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps) if scanned else steps[0]
        for steps, scanned in zip(parts, blueprint.scanned, strict=True)
    )


def _squared_norms(gradients: PyTree, batch: int) -> Float[Array, " batch"]:
    """Each row's sum of squares, from whole gradients."""
    leaves = [leaf.reshape(batch, -1) for leaf in jax.tree.leaves(gradients)]
    return sum((jnp.sum(x * x, axis=1) for x in leaves), jnp.zeros(batch))


def _factors(
    squares: Float[Array, " batch"], present: Bool[Array, " batch"], clipping: Clipping
) -> Float[Array, " batch"]:
    """What the lifted gradients are multiplied by; zero for rows that do not count."""
    alive = present & jnp.isfinite(squares)
    norms = jnp.sqrt(jnp.where(alive, squares, 1.0)) / LIFT
    # The division comes last, so that it is done once per row: the compiler repeats cheaper
    # steps, and all that they depend on, for every entry that the factor is multiplied with.
    return clipping.factor(jnp.where(alive, norms, jnp.inf)) / LIFT


def _kept(values: Float[Array, "*n batch k"], factor: Float[Array, " batch"]) -> Array:
    """Zeros in place of dead rows: their values may be infinite, and 0 * inf is NaN."""
    return jnp.where(factor[:, None] > 0, values, 0.0)


def _weighted_outer(
    tap: Tap, mask: np.ndarray | None, layer: DenseParameters, factor: Float[Array, " batch"]
) -> DenseParameters:
    outputs = _kept(tap.outputs, factor) * factor[:, None]
    weight = jnp.einsum("...bo,...bi->...oi", outputs, _kept(tap.inputs, factor))
    weight = weight if mask is None else jnp.where(mask, weight, 0.0)
    return DenseParameters(weight, None if layer.bias is None else jnp.sum(outputs, axis=-2))


def _weighted_sum(tree: PyTree, factor: Float[Array, " batch"]) -> PyTree:
    def total(leaf: Array) -> Array:
        flat = _kept(leaf.reshape(len(factor), -1), factor)
        return (factor.astype(flat.dtype) @ flat).reshape(leaf.shape[1:])

    return jax.tree.map(total, tree)


def _clip_by_rows(
    loss: Loss,
    blueprint: Blueprint,
    clipping: Clipping,
    microbatch: int,
    parameters: Parameters,
    rows: Float[Array, "batch columns"],
    present: Bool[Array, " batch"],
) -> ClippedSum:
    padding = -len(rows) % microbatch
    rows = jnp.pad(rows, ((0, padding), (0, 0)))
    present = jnp.pad(present, (0, padding))

    def add(total: Parameters, part: tuple[Array, Array]) -> tuple[Parameters, None]:
        return jax.tree.map(
            jnp.add, total, _clip_few(loss, blueprint, clipping, parameters, *part)
        ), None

    parts = (rows.reshape(-1, microbatch, rows.shape[1]), present.reshape(-1, microbatch))
    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, parameters), parts)
    return ClippedSum(total, sensitivity=clipping.norm)


def _clip_few(
    loss: Loss,
    blueprint: Blueprint,
    clipping: Clipping,
    parameters: Parameters,
    rows: Array,
    present: Array,
) -> Parameters:
    gradient = jax.grad(lambda p, row: LIFT * loss(blueprint.assemble(p), row))
    each = jax.vmap(gradient, in_axes=(None, 0))(parameters, rows)
    return _weighted_sum(each, _factors(_squared_norms(each, len(rows)), present, clipping))

r"""The Fisher information of a density model, estimated from the model's own samples.

:math:`F = E_{x \sim p_\theta}[g g^\top]` with :math:`g = \nabla_\theta \log p_\theta(x)` is an
expectation over the model, not over rows, so it costs no privacy (Amari 1998). In coordinates
whitened by it, half the squared length of a step is the Kullback-Leibler divergence that the step
makes, and equal noise on every coordinate does equal harm. ``docs/training.md`` has the derivation
and the figures.

``F`` is taken to be block diagonal (``fisher_blocks``); ``Frame.layouts`` and ``kind_of`` are the
public rule for which weights share a block, and of which kind it is.

Guarantee:
    ``estimate_metric`` reads released parameters and random bits, never a row.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from dpflows.training.batches import on_all_cores
from dpflows.training.fisher_blocks import Block, Diagonal, Exact, Kronecker, Parts
from dpflows.training.ghost_clipping import Blueprint, DenseParameters, MaskGroups, Parameters, Tap

#: Rows whose gradients are held at once: what one core works on.
PIECE = 512
#: Where the rows go in each tap: after the axes of stacked layers, before the features.
_ROW_AXES = Tap(-2, -2, -1)  # type: ignore[arg-type]
#: Weights of one network whose second moments are computed exactly.
MOST_EXACT = 512
#: How many times the damping is raised where single precision finds no Cholesky factor.
_RETRIES = 4
#: How the Fisher information is approximated.
METRICS = ("block", "kronecker", "full", "diagonal", "identity")
#: Metrics that look at all weights at once.
_WHOLE = ("full", "diagonal", "identity")


@final
class _Grouped(eqx.Module):
    """A masked layer as a stack of dense ones: outputs that depend on the same inputs."""

    members: Array
    exists: Array
    patterns: Array

    @classmethod
    def of(cls, group: MaskGroups) -> "_Grouped":
        belongs = np.asarray(group.membership) > 0
        most = int(belongs.sum(axis=0).max())
        members = np.argsort(~belongs, axis=0, kind="stable")[:most].T
        exists = np.arange(most) < belongs.sum(axis=0)[:, None]
        return cls(jnp.asarray(members), jnp.asarray(exists), jnp.asarray(group.patterns))

    def split(self, inputs: Array, outputs: Array) -> tuple[Array, Array]:
        """Each group's inputs and output gradients."""
        spread = jnp.moveaxis(outputs[:, self.members], 1, 0) * self.exists[:, None]
        return inputs * self.patterns[:, None], spread

    def join(self, parts: Float[Array, "groups most i"], outputs: int) -> Float[Array, "o i"]:
        """The groups' weights as one layer's; masked weights are zero."""
        bias = parts.shape[-1] - self.patterns.shape[-1]
        seen = jnp.pad(self.patterns, ((0, 0), (0, bias)), constant_values=1)
        kept = parts * self.exists[..., None] * seen[:, None]
        flat = kept.reshape(-1, parts.shape[-1])
        return jnp.zeros((outputs, parts.shape[-1])).at[self.members.reshape(-1)].add(flat)


class Piece(NamedTuple):
    """A dense layer, or an array outside of them, as part of a block.

    Attributes:
        place: Index of the dense layer or free array.
        is_dense: Whether it is a dense layer.
        lead: The axes of stacked layers.
        shape: Shape of the weights of one of them, including the bias.
    """

    place: int
    is_dense: bool
    lead: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of weights of one of the stacked layers."""
        return math.prod(self.shape)


class Layout(NamedTuple):
    """The weights that share a block, and the number of stacked blocks."""

    stack: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """The number of weights of one block."""
        return sum(math.prod(p.lead[len(self.stack) :]) * p.size for p in self.pieces)

    def stacked(self, parts: Parts) -> Parts:
        """Parts of gradients with one axis for the blocks beside each other."""
        count, depth = math.prod(self.stack), len(self.stack)
        return tuple(x.reshape(count, *x.shape[depth:]) for x in parts)

    def split(self, change: Float[Array, "blocks m"]) -> list[Array]:
        """A change of all weights of the blocks, piece by piece."""
        sizes = [math.prod(p.lead[len(self.stack) :]) * p.size for p in self.pieces]
        each = jnp.split(change, np.cumsum(sizes)[:-1], axis=-1)
        return [x.reshape(*p.lead, *p.shape) for p, x in zip(self.pieces, each, strict=True)]


@final
class Frame(eqx.Module):
    """The structure of a model for the metric; holds no parameters."""

    blueprint: Blueprint
    grouped: tuple[_Grouped | None, ...]

    @classmethod
    def of(cls, blueprint: Blueprint) -> "Frame":
        """The frame of a separated model."""
        return cls(
            blueprint, tuple(None if g is None else _Grouped.of(g) for g in blueprint.groups)
        )

    def layouts(self, parameters: Parameters, metric: str) -> list[Layout]:
        """The blocks: a public rule of the shapes alone."""
        leaves = jax.tree.leaves(parameters.free)
        free = [Piece(i, False, (), (leaf.size,)) for i, leaf in enumerate(leaves)]
        dense = [self._piece(i, layer) for i, layer in enumerate(parameters.dense)]
        if metric in _WHOLE:
            return [Layout((), (*free, *dense))]
        layouts = [Layout((), (piece,)) for piece in free]
        for lead in dict.fromkeys(piece.lead for piece in dense):
            alike = tuple(piece for piece in dense if piece.lead == lead)
            joined = Layout(lead, alike)
            is_small = metric == "block" and joined.size <= MOST_EXACT
            layouts += [joined] if is_small else [Layout(lead, (piece,)) for piece in alike]
        return layouts

    def _piece(self, index: int, layer: DenseParameters) -> Piece:
        *lead, outputs, inputs = layer.weight.shape
        grouped = self.grouped[index]
        if grouped is not None:
            lead, outputs = [*lead, len(grouped.members)], grouped.members.shape[1]
        return Piece(index, True, tuple(lead), (outputs, inputs + (layer.bias is not None)))

    def parts(self, parameters: Parameters, rows: Array) -> tuple[dict[Any, Parts], Array]:
        """Every row's gradient in parts, and which rows have one; zeros where not."""
        zeros = self.blueprint.zero_taps(parameters)
        gradients = jax.vmap(
            jax.grad(functools.partial(_row_loss, self, parameters), argnums=(0, 1)),
            in_axes=(None, None, 0),
            out_axes=(tuple((_ROW_AXES,) * len(steps) for steps in zeros), 0),
        )
        taps, free = gradients(zeros, parameters.free, rows)
        found: dict[Any, Parts] = {
            (False, i): (leaf.reshape(len(rows), -1),)
            for i, leaf in enumerate(jax.tree.leaves(free))
        }
        for i, steps in enumerate(taps):
            layer, grouped = parameters.dense[i], self.grouped[i]
            each = [_of_layer(tap, grouped, layer) for tap in steps]
            is_scanned = self.blueprint.scanned[i]
            found[True, i] = jax.tree.map(lambda *x: jnp.stack(x), *each) if is_scanned else each[0]
        return _without_dead_rows(found)

    def restored(
        self, parameters: Parameters, layouts: list[Layout], changes: list[Array]
    ) -> Parameters:
        """A change of the parameters from the changes of all blocks."""
        found: dict[Any, Array] = {}
        for layout, change in zip(layouts, changes, strict=True):
            pieces = zip(layout.pieces, layout.split(change), strict=True)
            found |= {(piece.is_dense, piece.place): part for piece, part in pieces}
        leaves, tree = jax.tree.flatten(parameters.free)
        free = [found[False, i].reshape(leaf.shape) for i, leaf in enumerate(leaves)]
        dense = [self._layer(i, layer, found[True, i]) for i, layer in enumerate(parameters.dense)]
        return Parameters(tuple(dense), jax.tree.unflatten(tree, free))

    def slopes(
        self,
        parameters: Parameters,
        metric: "Metric",
        changes: list[Float[Array, "_ _"]],
        kind: str,
    ) -> Float[Array, " n"]:
        """The derivatives of the samples' losses along a change of the weights."""
        layouts = self.layouts(parameters, kind)
        weights = [layout.split(one) for layout, one in zip(layouts, changes, strict=True)]
        each = [
            functools.reduce(jnp.add, map(_slopes, weights, piece.parts))
            for piece in metric.gradients
        ]
        return jnp.concatenate(each)

    def _layer(self, index: int, layer: DenseParameters, change: Array) -> DenseParameters:
        grouped = self.grouped[index]
        if grouped is not None:
            join = functools.partial(grouped.join, outputs=layer.weight.shape[-2])
            change = jax.vmap(join)(change) if self.blueprint.scanned[index] else join(change)
        if layer.bias is None:
            return DenseParameters(change, None)
        return DenseParameters(change[..., :-1], change[..., -1])


def _slopes(weights: list[Array], member: list[Parts]) -> Float[Array, " rows"]:
    """Gradients in parts times a change of the weights they belong to."""
    total = jnp.zeros(member[0][0].shape[-2])
    for weight, parts in zip(weights, member, strict=True):
        *_, rows, last = parts[0].shape
        first = parts[0].reshape(-1, rows, last)
        if len(parts) == 1:
            total = total + jnp.sum(first[0] * weight.reshape(-1), axis=-1)
            continue
        matrices = weight.reshape(len(first), -1, last)
        through = first @ jnp.swapaxes(matrices, -1, -2)
        total = total + jnp.sum(through * parts[1].reshape(through.shape), axis=(0, 2))
    return total


def _row_loss(frame: Frame, parameters: Parameters, taps: Any, free: PyTree, row: Array) -> Array:
    model = frame.blueprint.assemble_tapped(parameters._replace(free=free), taps)
    return -model.log_prob(row)


def _of_layer(tap: Tap, grouped: _Grouped | None, layer: DenseParameters) -> tuple[Array, Array]:
    inputs, outputs = tap.inputs, tap.outputs
    if grouped is not None:
        inputs, outputs = grouped.split(inputs, outputs)
    if layer.bias is not None:  # a bias is a weight whose input is one
        inputs = jnp.concatenate([inputs, jnp.ones_like(inputs[..., :1])], axis=-1)
    return inputs, outputs


def _without_dead_rows(parts: Any) -> tuple[Any, Bool[Array, " rows"]]:
    """Zeros for rows with a non-finite part, and a mask of the other rows."""
    alive = functools.reduce(jnp.logical_and, [_finite(x) for x in jax.tree.leaves(parts)])
    return jax.tree.map(lambda x: jnp.where(alive[:, None], x, 0.0), parts), alive


def _finite(values: Float[Array, "*stack rows k"]) -> Bool[Array, " rows"]:
    finite = jnp.isfinite(values).all(axis=-1)
    return finite.all(axis=tuple(range(finite.ndim - 1)))


class Gradients(NamedTuple):
    """The gradients of some rows in parts, block by block, and which rows have one."""

    parts: list[list[Parts]]
    alive: Bool[Array, " rows"]


class Metric(NamedTuple):
    """The metric estimated from the model's own samples, before any row is read."""

    blocks: list[Block]
    samples: Float[Array, "n columns"]
    gradients: list[Gradients]

    @property
    def coordinates(self) -> int:
        """The number of whitened coordinates."""
        return sum(block.size for block in self.blocks)

    @property
    def effective(self) -> float:
        """The effective number of directions."""
        return sum(float(np.sum(np.asarray(block.effective))) for block in self.blocks)


def estimate_metric(
    frame: Frame, parameters: Parameters, key: Array, damping: float, *, samples: int, kind: str
) -> Metric:
    """The metric of the model with these parameters.

    Args:
        frame: The model's structure.
        parameters: Released parameters.
        key: Random key of the samples.
        damping: Added to second moments before their root is taken.
        samples: Number of samples.
        kind: How the information is approximated, one of ``METRICS``.
    """
    keys = jax.random.split(jax.random.wrap_key_data(key), _pieces(samples))
    drawn = on_all_cores(lambda key: _sampled(frame, parameters, key), list(keys))
    found = jnp.concatenate(drawn)
    pieces = gradients(frame, parameters, found, kind)
    whole = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-2), *(piece.parts for piece in pieces))
    layouts = frame.layouts(parameters, kind)
    blocks = [
        _estimated(kind_of(layout, kind), parts, damping)
        for layout, parts in zip(layouts, whole, strict=True)
    ]
    return Metric(blocks, found, pieces)


def kind_of(layout: Layout, metric: str) -> Callable[[list[Parts], float], Block]:
    """The public rule: how the metric of a block is computed, by its shape alone."""
    if metric == "identity":
        return Diagonal.level
    if metric == "diagonal":
        return Diagonal.estimate
    if metric == "full" or (layout.size <= MOST_EXACT and _may_be_exact(layout, metric)):
        return Exact.estimate
    return Kronecker.estimate if layout.pieces[0].is_dense else Diagonal.estimate


def _may_be_exact(layout: Layout, metric: str) -> bool:
    return metric == "block" or not layout.pieces[0].is_dense


def _estimated(
    estimate: Callable[[list[Parts], float], Block], parts: list[Parts], damping: float
) -> Block:
    """A block, with more damping where single precision needs it."""
    for tenfold in range(_RETRIES):
        block = estimate(parts, damping * 10.0**tenfold)
        if np.isfinite(np.asarray(block.effective)).all():
            break
    return block


def _pieces(count: int) -> int:
    return math.ceil(count / PIECE)


@eqx.filter_jit
def _sampled(frame: Frame, parameters: Parameters, key: PRNGKeyArray) -> Array:
    """A piece of samples of the model; zeros in place of what is not finite."""
    samples = frame.blueprint.assemble(parameters).sample(key, PIECE)
    return jnp.where(jnp.isfinite(samples), samples, 0.0)


def gradients(
    frame: Frame, parameters: Parameters, rows: Float[Array, "rows columns"], metric: str
) -> list[Gradients]:
    """The rows' gradients, piece by piece; the last piece is filled with zeros."""
    padded = jnp.pad(rows, ((0, _pieces(len(rows)) * PIECE - len(rows)), (0, 0)))
    pieces = list(padded.reshape(-1, PIECE, rows.shape[1]))
    return on_all_cores(lambda piece: by_block(frame, parameters, piece, metric), pieces)


@eqx.filter_jit
def by_block(frame: Frame, parameters: Parameters, rows: Array, metric: str) -> Gradients:
    """Rows' gradients in parts, block by block, and which rows have one."""
    found, alive = frame.parts(parameters, rows)
    layouts = frame.layouts(parameters, metric)
    parts = [
        [layout.stacked(found[piece.is_dense, piece.place]) for piece in layout.pieces]
        for layout in layouts
    ]
    return Gradients(parts, alive)

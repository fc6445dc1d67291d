r"""The Fisher information of a density model, estimated from the model's own samples.

:math:`F = E_{x \sim p_\theta}[g g^\top]` with :math:`g = \nabla_\theta \log p_\theta(x)` is an
expectation over the model, not over rows, so it costs no privacy (Amari 1998). In coordinates
whitened by it, half the squared length of a step is the Kullback-Leibler divergence that the step
makes, and equal noise on every coordinate does equal harm. ``docs/training.md`` has the derivation
and the figures.

``F`` is taken to be block diagonal. A block knows the inverse root :math:`W` of its damped second
moments: ``Exact`` for stacked dense layers with at most ``MOST_EXACT`` weights each; ``Kronecker``,
an eigenvalue-corrected Kronecker factorisation (EKFAC, George et al. 2018), for larger layers;
``Diagonal`` where correlations are ignored. No gradient of a single row's weights is kept for a
whole sample.

The clipped sum :math:`\sum_i f_i W g_i` is computed as :math:`W \sum_i f_i g_i`: gradients
of dense layers are outer products, so the sum inside is a product of two thin matrices, and only
the norms :math:`|W g_i|` need each row's whitened gradient. Those are computed in single precision
and increased by a bound of their rounding error.

Guarantee:
    ``estimate_metric`` reads released parameters and random bits, never a row.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray, PyTree

from dpflows.training.batches import on_all_cores, shares
from dpflows.training.ghost_clipping import (
    Blueprint,
    DenseParameters,
    MaskGroups,
    Parameters,
    Tap,
    over_rows,
)
from dpflows.training.optimizers import NaturalGradient

#: Samples whose gradient is longer than this many times the usual one are shortened to it: a
#: second moment that few samples make up is not worth following.
_LONGEST = 4.0
#: A triangular matrix is multiplied in bands of about so many rows, each without the zeros to its
#: right.
_BAND = 224
#: Triangular matrices of at most so many rows are inverted as they are.
_SMALL = 64
#: Rows whose gradients are multiplied at once for second moments: what fits into a cache.
_MOMENT_ROWS = 512
#: Rounding errors are counted as if sums had so many terms at least.
_FEWEST_TERMS = 256
#: Added to lengths: more than what numbers too small for single precision add up to.
_LEAST = 2.0**-80
#: Added to the damping, in units of the block's trace: what single precision cannot tell from 0.
_TINY = 2e-6

#: What a row's loss gradient with respect to some weights is made of: what came into a layer and
#: the gradient of what went out, or the gradient itself; rows come second to last.
Parts = tuple[Array, ...]


class Block(eqx.Module):
    """The metric of a block of weights.

    Guarantee:
        For each row, ``measured`` gives at least the squared length of ``whitened(g)`` in real
        arithmetic, where ``g`` is what the row adds to ``sums`` with factor one; it is not finite
        if an entry is not. ``sums`` and ``whitened`` are in double precision, and their rounding
        errors are covered by ``rounding``.
    """

    #: How many directions count: the trace of F (F + damping)^-1.
    effective: eqx.AbstractVar[Array]
    #: What was added to F.
    damping: eqx.AbstractVar[Array]

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of whitened coordinates."""

    @property
    @abc.abstractmethod
    def weights(self) -> int:
        """The number of weights of one of the blocks beside each other."""

    @abc.abstractmethod
    def measured(self, parts: list[Parts]) -> tuple[Float64[Array, " rows"], Any]:
        """Bounds of the rows' squared whitened lengths, and gradients as ``sums`` reads them."""

    @abc.abstractmethod
    def sums(self, kept: Any, factor: Float64[Array, " rows"]) -> Float64[Array, "blocks m"]:
        """The sum over rows of each row's gradient times its factor, not yet whitened."""

    @abc.abstractmethod
    def whitened(self, total: Float64[Array, "blocks m"]) -> Float64[Array, " size"]:
        """A sum of gradients in whitened coordinates."""

    @abc.abstractmethod
    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights; weights without effect are unchanged."""

    @abc.abstractmethod
    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in effective directions: F (F + damping)^-1 times it."""


class _Whole(Block):
    """A block whose gradients are whitened as whole vectors."""

    def sums(
        self, kept: list[Parts], factor: Float64[Array, " rows"]
    ) -> Float64[Array, "blocks m"]:
        """The sum over rows of each row's gradient times its factor, not yet whitened."""
        return jnp.concatenate([_weighted(parts, factor) for parts in kept], axis=-1)


def _weighted(parts: Parts, factor: Float64[Array, " rows"]) -> Float64[Array, "blocks m"]:
    wide = [part.astype(jnp.float64) for part in parts]
    if len(wide) == 1:
        return jnp.sum(wide[0] * factor[:, None], axis=-2)
    inputs, outputs = wide
    return over_rows(outputs * factor[:, None], inputs).reshape(len(inputs), -1)


@final
class Exact(_Whole):
    """The inverse of the Cholesky factor of all second moments, for networks beside each other."""

    inverse: Float[Array, "blocks m m"]
    is_used: Bool[Array, "blocks m"]
    effective: Array
    damping: Float[Array, " blocks"]

    @staticmethod
    def estimate(parts: list[Parts], damping: float) -> "Exact":
        """From samples' gradients."""
        members = shares(len(parts[0][0]))
        mine = [jax.tree.map(lambda x, at=at: x[at], parts) for at in members]
        blocks = on_all_cores(lambda some: _exact(some, jnp.float32(damping)), mine)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *blocks)

    @property
    def size(self) -> int:
        """The number of whitened coordinates."""
        return self.is_used.size

    @property
    def weights(self) -> int:
        """The number of weights of one of the blocks beside each other."""
        return self.is_used.shape[-1]

    def measured(self, parts: list[Parts]) -> tuple[Float64[Array, " rows"], list[Parts]]:
        """Bounds of the rows' squared whitened lengths, and their gradients."""

        def one(total: Array, member: tuple[list[Parts], Array]) -> tuple[Array, None]:
            parts, inverse = member
            wide = _lower(inverse, whole_gradients(parts)).astype(jnp.float64)
            error = _rounded(inverse) * jnp.sqrt(_squares(parts)) + _LEAST
            return total + jnp.square(jnp.sqrt(jnp.sum(wide * wide, axis=-1)) + error), None

        rows = parts[0][0].shape[-2]
        zero = jnp.zeros(rows, jnp.float64)
        return jax.lax.scan(one, zero, (parts, self.inverse))[0], parts

    def whitened(self, total: Float64[Array, "blocks m"]) -> Float64[Array, " size"]:
        """A sum of gradients in whitened coordinates."""
        wide = self.inverse.astype(jnp.float64)
        return jax.lax.dot_general(wide, total, (((2,), (1,)), ((0,), (0,)))).reshape(-1)

    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights."""
        parts = step.reshape(self.is_used.shape)
        return jnp.where(self.is_used, jnp.einsum("bka,bk->ba", self.inverse, parts), 0.0)

    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in effective directions."""
        parts = step.reshape(self.is_used.shape)
        change = jnp.einsum("bka,bk->ba", self.inverse, parts)
        damped = jnp.einsum("bka,ba->bk", self.inverse, self.damping[:, None] * change)
        return (parts - damped).reshape(-1)


def _lower(matrix: Float[Array, "m m"], rows: Float[Array, "rows m"]) -> Float[Array, "rows m"]:
    """A lower-triangular matrix times each row, skipping most of its zeros."""
    # no faster arithmetic than single precision, which other devices would take
    exactly = jax.lax.Precision.HIGHEST
    bands = [
        jnp.matmul(rows[:, :end], matrix[start:end, :end].T, precision=exactly)
        for start, end in _bands(len(matrix))
    ]
    return jnp.concatenate(bands, axis=-1)


def _bands(size: int) -> list[tuple[int, int]]:
    """Where the bands of rows of a triangular matrix begin and end."""
    count = max(size // _BAND, 1)
    ends = [size * band // count for band in range(count + 1)]
    return list(zip(ends, ends[1:], strict=False))


def _rounded(matrix: Float[Array, "m m"]) -> Float64[Array, ""]:
    """A bound of the single-precision error of the matrix times a unit vector."""
    wide = matrix.astype(jnp.float64)
    return _unit(len(matrix)) * jnp.sqrt(jnp.sum(wide * wide))


def _unit(terms: int) -> float:
    """The relative single-precision error of a sum of products of three numbers."""
    return (max(terms, _FEWEST_TERMS) + 8) * 2.0**-24


def rounding(sizes: Sequence[int], slots: int, piece: int) -> float:
    """The part of the clipping norm reserved for rounding of sums in double precision.

    Rows are added within pieces, then pieces, then a row of the inverse root is multiplied by the
    result: at most ``piece + slots / piece + m`` roundings, each relative to the sum of the rows'
    lengths in the parameters' own coordinates. Those are bounded by the clip, because ``measured``
    adds the same lengths times the same root's norm in units of single precision. Twice, for the
    sum with a row and without it.

    Args:
        sizes: The number of weights of each kind of block.
        slots: The largest number of rows that are added.
        piece: Number of rows that are added at once.

    Example:
        >>> rounding([448], 8704, 512) < 1e-3
        True
    """
    depth = [(piece + slots / piece + m + 16) / (max(m, _FEWEST_TERMS) + 8) for m in sizes]
    return 2 * slots * max(depth) * 2.0**-29 + 2.0**-40


def _squares(member: list[Parts]) -> Float64[Array, " rows"]:
    """The squared lengths of whole gradients, from their parts."""
    each = []
    for parts in member:
        lengths = [jnp.sum(jnp.square(part.astype(jnp.float64)), axis=-1) for part in parts]
        square = functools.reduce(jnp.multiply, lengths)
        each.append(jnp.sum(square, axis=tuple(range(square.ndim - 1))))
    return functools.reduce(jnp.add, each)


@jax.jit
def _exact(parts: list[Parts], damping: Array) -> Exact:
    def moments(_: None, member: list[Parts]) -> tuple[None, Array]:
        return None, _second_moments(member)

    def root(_: None, moments: Array) -> tuple[None, tuple[Array, ...]]:
        return None, _inverse_root(moments, damping)

    return Exact(*jax.lax.scan(root, None, jax.lax.scan(moments, None, parts)[1])[1])


def _inverse_root(
    moments: Float[Array, "m m"], damping: Array
) -> tuple[Float[Array, "m m"], Bool[Array, " m"], Float[Array, ""], Float[Array, ""]]:
    """The inverse of the damped Cholesky factor, the active weights and the effective number."""
    unit = jnp.eye(len(moments))
    damping = damping + _TINY * jnp.trace(moments)
    inverse = _inverse_lower(jnp.linalg.cholesky(moments + damping * unit))
    effective = len(moments) - damping * jnp.sum(inverse * inverse)
    return inverse, jnp.diagonal(moments) > 0, effective, damping


def _inverse_lower(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The inverse of a lower-triangular matrix, by halves: most of the work is in products."""
    if len(matrix) <= _SMALL:
        return solve_triangular(matrix, jnp.eye(len(matrix)), lower=True)
    half = len(matrix) // 2
    first, last = _inverse_lower(matrix[:half, :half]), _inverse_lower(matrix[half:, half:])
    beside = -last @ (matrix[half:, :half] @ first)
    top = jnp.pad(first, ((0, 0), (0, len(last))))
    return jnp.concatenate([top, jnp.concatenate([beside, last], axis=1)])


def whole_gradients(member: list[Parts]) -> Float[Array, "rows m"]:
    """Whole gradients of the weights of one block."""
    whole = []
    for parts in member:
        rows = parts[0].shape[-2]
        if len(parts) == 1:
            whole.append(parts[0])
            continue
        outer = parts[1][..., :, None] * parts[0][..., None, :]
        whole.append(jnp.moveaxis(outer, -3, 0).reshape(rows, -1))
    return jnp.concatenate(whole, axis=-1)


def _second_moments(member: list[Parts]) -> Float[Array, "m m"]:
    """Robust second moments of whole gradients, not dominated by a few of them."""
    short = _shortening(member)
    rows = len(short)
    pieces = rows // math.gcd(rows, _MOMENT_ROWS)

    def add(total: list[Array], at: Array) -> tuple[list[Array], None]:
        def piece(part: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(part, at, rows // pieces, axis=-2)

        some = whole_gradients([tuple(map(piece, parts)) for parts in member])
        some = some * jax.lax.dynamic_slice_in_dim(short, at, rows // pieces)[:, None]
        bands = [some[:, start:end].T @ some[:, :end] for start, end in _bands(size)]
        return jax.tree.map(jnp.add, total, bands), None

    size = jax.eval_shape(whole_gradients, member).shape[-1]
    starts = jnp.arange(pieces) * (rows // pieces)
    zeros = [jnp.zeros((end - start, end)) for start, end in _bands(size)]
    bands = jax.lax.scan(add, zeros, starts)[0]
    lower = jnp.concatenate([jnp.pad(b, ((0, 0), (0, size - b.shape[1]))) for b in bands])
    return (jnp.tril(lower) + jnp.tril(lower, -1).T) / rows


def _shortening(member: list[Parts]) -> Float[Array, " rows"]:
    """The factor by which samples' gradients are shortened."""
    with jax.enable_x64(True):
        squares = _squares(member).astype(jnp.float32)
    usual = jnp.sqrt(jnp.mean(jnp.minimum(squares, 25 * jnp.median(squares))))
    longest = _LONGEST * usual
    return longest / jnp.maximum(jnp.sqrt(squares), longest + 1e-30)


@final
class Kronecker(Block):
    """Eigenvectors of both factors' second moments, and inverse roots of moments along pairs."""

    inputs: Float[Array, "blocks i i"]
    outputs: Float[Array, "blocks o o"]
    scales: Float64[Array, "blocks o i"]
    is_used: Bool[Array, "blocks o i"]
    effective: Array
    damping: Array

    @staticmethod
    def estimate(parts: list[Parts], damping: float) -> "Kronecker":
        """From samples' gradients."""
        (factors,) = parts
        bases = tuple(_eigenvectors(_moments(x)) for x in factors)
        return _kronecker(bases, factors, jnp.float32(damping))

    @property
    def size(self) -> int:
        """The number of whitened coordinates."""
        return self.scales.size

    @property
    def weights(self) -> int:
        """The number of weights of one of the blocks beside each other."""
        return self.scales[0].size

    def measured(self, parts: list[Parts]) -> tuple[Float64[Array, " rows"], tuple[Array, Array]]:
        """The rows' squared whitened lengths, and both factors in the eigenvectors.

        ``sums`` adds up the same numbers, so their single-precision errors do not matter.
        """
        ((inputs, outputs),) = parts
        turned = inputs @ self.inputs, outputs @ self.outputs
        kept = turned[0].astype(jnp.float64), turned[1].astype(jnp.float64)
        axes = (((2,), (2,)), ((0,), (0,)))
        through = jax.lax.dot_general(kept[0] ** 2, self.scales * self.scales, axes)
        return jnp.sum(through * kept[1] ** 2, axis=(0, 2)), kept

    def sums(
        self, kept: tuple[Array, Array], factor: Float64[Array, " rows"]
    ) -> Float64[Array, "blocks m"]:
        """The sum over rows of each row's gradient times its factor, in the eigenvectors."""
        inputs, outputs = kept
        return over_rows(outputs * factor[:, None], inputs).reshape(len(inputs), -1)

    def whitened(self, total: Float64[Array, "blocks m"]) -> Float64[Array, " size"]:
        """A sum of gradients in whitened coordinates."""
        return (total * self.scales.reshape(total.shape)).reshape(-1)

    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights."""
        parts = step.reshape(self.scales.shape) * self.scales.astype(jnp.float32)
        kept = jnp.where(self.is_used, parts, 0.0)
        turned = self.outputs @ kept @ jnp.swapaxes(self.inputs, -1, -2)
        return turned.reshape(len(turned), -1)

    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in effective directions."""
        return step * _kept(self.scales, self.damping)


@jax.jit
def _kronecker(bases: Parts, parts: Parts, damping: Array) -> Kronecker:
    inputs, outputs = (jnp.square(x @ basis) for x, basis in zip(parts, bases, strict=True))
    moments = jnp.swapaxes(outputs, -1, -2) @ inputs / inputs.shape[-2]
    with jax.enable_x64(True):
        wide = moments.astype(jnp.float64)
        effective = jnp.sum(wide / (wide + damping))
        scales = jax.lax.rsqrt(wide + damping)
        return Kronecker(bases[0], bases[1], scales, moments > 0, effective, damping)


def _kept(scales: Float64[Array, "..."], damping: Array) -> Float[Array, " size"]:
    """The undamped fraction of each direction, by the inverse roots of damped moments."""
    single = scales.astype(jnp.float32).reshape(-1)
    return 1 - damping * single * single


@jax.jit
def _moments(values: Float[Array, "blocks rows k"]) -> Float[Array, "blocks k k"]:
    return jnp.swapaxes(values, -1, -2) @ values / values.shape[-2]


def _eigenvectors(moments: Float[Array, "blocks k k"]) -> Float[Array, "blocks k k"]:
    # On the host: compiled programs that hold several of these calls have been seen to wait
    # for each other for ever.
    wide = np.asarray(moments, np.float64)
    # what is not finite is found by its clipping norm, before a row is read
    return jnp.asarray(np.linalg.eigh(np.nan_to_num(wide))[1], moments.dtype)


@final
class Diagonal(_Whole):
    """Second moments of single weights."""

    scales: Float64[Array, "blocks m"]
    is_used: Bool[Array, "blocks m"]
    effective: Array
    damping: Array

    @staticmethod
    def estimate(parts: list[Parts], damping: float) -> "Diagonal":
        """From samples' gradients."""
        return _diagonal(parts, jnp.float32(damping), False)

    @property
    def size(self) -> int:
        """The number of whitened coordinates."""
        return self.scales.size

    @property
    def weights(self) -> int:
        """The number of weights of one of the blocks beside each other."""
        return self.scales[0].size

    @staticmethod
    def level(parts: list[Parts], damping: float) -> "Diagonal":
        """The same moment for every weight: their mean."""
        return _diagonal(parts, jnp.float32(damping), True)

    def measured(self, parts: list[Parts]) -> tuple[Float64[Array, " rows"], list[Parts]]:
        """Bounds of the rows' squared whitened lengths, and their gradients."""
        white = jax.vmap(whole_gradients)(parts).astype(jnp.float64) * self.scales[:, None]
        # products were rounded to single precision once
        return jnp.sum(white * white, axis=(0, 2)) * (1 + 2.0**-22) + _LEAST, parts

    def whitened(self, total: Float64[Array, "blocks m"]) -> Float64[Array, " size"]:
        """A sum of gradients in whitened coordinates."""
        return (total * self.scales).reshape(-1)

    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights."""
        parts = step.reshape(self.scales.shape) * self.scales.astype(jnp.float32)
        return jnp.where(self.is_used, parts, 0.0)

    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in effective directions."""
        return step * _kept(self.scales, self.damping)


@functools.partial(jax.jit, static_argnums=2)
def _diagonal(parts: list[Parts], damping: Array, is_level: bool) -> Diagonal:
    gradients = jax.vmap(whole_gradients)(parts)
    moments = jnp.mean(gradients * gradients, axis=1)
    moments = jnp.full_like(moments, moments.mean()) if is_level else moments
    with jax.enable_x64(True):
        wide = moments.astype(jnp.float64)
        effective = jnp.sum(wide / (wide + damping))
        return Diagonal(jax.lax.rsqrt(wide + damping), moments > 0, effective, damping)


#: Rows whose gradients are held at once: what one core works on.
PIECE = 512
#: Where the rows go in each tap: after the axes of stacked layers, before the features.
_ROW_AXES = Tap(-2, -2, -1)  # type: ignore[arg-type]
#: Weights of one network whose second moments are computed exactly.
MOST_EXACT = 512
#: How many times the damping is raised where single precision finds no Cholesky factor.
_RETRIES = 4
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

    def _layer(self, index: int, layer: DenseParameters, change: Array) -> DenseParameters:
        grouped = self.grouped[index]
        if grouped is not None:
            join = functools.partial(grouped.join, outputs=layer.weight.shape[-2])
            change = jax.vmap(join)(change) if self.blueprint.scanned[index] else join(change)
        if layer.bias is None:
            return DenseParameters(change, None)
        return DenseParameters(change[..., :-1], change[..., -1])


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
    frame: Frame, parameters: Parameters, key: Array, settings: NaturalGradient, damping: float
) -> Metric:
    """The metric of the model with these parameters.

    Args:
        frame: The model's structure.
        parameters: Released parameters.
        key: Random key of the samples.
        settings: Number of samples, and the kind of blocks.
        damping: Added to second moments before their root is taken.
    """
    keys = jax.random.split(jax.random.wrap_key_data(key), _pieces(settings.samples))
    drawn = on_all_cores(lambda key: _sampled(frame, parameters, key), list(keys))
    samples = jnp.concatenate(drawn)
    pieces = gradients(frame, parameters, samples, settings.metric)
    whole = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-2), *(piece.parts for piece in pieces))
    layouts = frame.layouts(parameters, settings.metric)
    blocks = [
        _estimated(kind_of(layout, settings.metric), found, damping)
        for layout, found in zip(layouts, whole, strict=True)
    ]
    return Metric(blocks, samples, pieces)


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

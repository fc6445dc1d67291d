r"""The metric of a block of weights: inverse roots of damped second moments of gradients.

A block knows the inverse root :math:`W` of its damped second moments: ``Exact`` for stacked dense
layers; ``Kronecker``, an eigenvalue-corrected Kronecker factorisation (EKFAC, George et al. 2018),
for larger layers; ``Diagonal`` where correlations are ignored. No gradient of a single row's
weights is kept for a whole sample.

The clipped sum :math:`\sum_i f_i W g_i` is computed as :math:`W \sum_i f_i g_i`: gradients
of dense layers are outer products, so the sum inside is a product of two thin matrices, and only
the norms :math:`|W g_i|` need each row's whitened gradient. Those are computed in single precision
and increased by a bound of their rounding error.
"""

import abc
import functools
import math
from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Float64

from dpflows.training.batches import on_all_cores, shares
from dpflows.training.ghost_clipping import over_rows

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

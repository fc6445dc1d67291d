"""Blocks of a metric: how the gradients of some weights are whitened.

A block is made of the gradients of a model's own samples (``fisher``) and knows the inverse root
of their damped second moments: ``Exact`` for small networks beside each other, ``Kronecker`` for
large layers, ``Diagonal`` where correlations are left out.
"""

import abc
import functools
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Float64

from dpflows.training.clipping import over_rows
from dpflows.training.cores import on_all_cores, shares

#: Samples whose gradient is longer than this many times the usual one are shortened to it: a
#: second moment that few samples make up is not worth following.
_LONGEST = 4.0
#: Added to the damping, in units of the block's trace: what single precision cannot tell from 0.
_TINY = 2e-6

#: What a row's loss gradient with respect to some weights is made of: what came into a layer and
#: the gradient of what went out, or the gradient itself; rows come second to last.
Parts = tuple[Array, ...]


class Block(eqx.Module):
    """The metric of some weights.

    Guarantee:
        For each row, ``squares`` is the squared length of what the row adds to ``sums`` where its
        factor is one, both in double precision and from the same numbers; it is not finite where
        a number is not.
    """

    #: How many directions count: the trace of F (F + damping)^-1.
    effective: eqx.AbstractVar[Array]
    #: What was added to F.
    damping: eqx.AbstractVar[Array]

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of whitened coordinates."""

    @abc.abstractmethod
    def whiten(self, parts: list[Parts]) -> Any:
        """Rows' whitened gradients, in whatever form the other methods read."""

    @abc.abstractmethod
    def squares(self, white: Any) -> Float64[Array, " rows"]:
        """Each row's squared length."""

    @abc.abstractmethod
    def sums(self, white: Any, factor: Float64[Array, " rows"]) -> Float64[Array, " size"]:
        """The sum over rows of each row's whitened gradient times its factor."""

    @abc.abstractmethod
    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights; those that nothing depends on stay."""

    @abc.abstractmethod
    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in directions that count: F (F + damping)^-1 times it."""


class _Whole(Block):
    """A block whose whitened gradients are arrays of blocks, rows and coordinates."""

    def squares(self, white: Float[Array, "blocks rows m"]) -> Float64[Array, " rows"]:
        """Each row's squared length."""
        wide = white.astype(jnp.float64)
        return jnp.sum(wide * wide, axis=(0, 2))

    def sums(
        self, white: Float[Array, "blocks rows m"], factor: Float64[Array, " rows"]
    ) -> Float64[Array, " size"]:
        """The sum over rows of each row's whitened gradient times its factor."""
        return jnp.sum(white.astype(jnp.float64) * factor[:, None], axis=1).reshape(-1)


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

    def whiten(self, parts: list[Parts]) -> Float[Array, "blocks rows m"]:
        """Rows' whitened gradients in single precision."""

        def one(_: None, member: tuple[list[Parts], Array]) -> tuple[None, Array]:
            return None, _lower(member[1], whole_gradients(member[0]))

        return jax.lax.scan(one, None, (parts, self.inverse))[1]

    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights."""
        parts = step.reshape(self.is_used.shape)
        return jnp.where(self.is_used, jnp.einsum("bka,bk->ba", self.inverse, parts), 0.0)

    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in directions that count."""
        parts = step.reshape(self.is_used.shape)
        change = jnp.einsum("bka,bk->ba", self.inverse, parts)
        damped = jnp.einsum("bka,ba->bk", self.inverse, self.damping[:, None] * change)
        return (parts - damped).reshape(-1)


def _lower(matrix: Float[Array, "m m"], rows: Float[Array, "rows m"]) -> Float[Array, "rows m"]:
    """A lower-triangular matrix times each row, without most of its zeros."""
    half = len(matrix) // 2
    first = rows[:, :half] @ matrix[:half, :half].T
    return jnp.concatenate([first, rows @ matrix[half:].T], axis=-1)


@jax.jit
def _exact(parts: list[Parts], damping: Array) -> Exact:
    def moments(_: None, member: list[Parts]) -> tuple[None, Array]:
        gradients = _shortened(whole_gradients(member))
        return None, gradients.T @ gradients / len(gradients)

    def root(_: None, moments: Array) -> tuple[None, tuple[Array, ...]]:
        return None, _inverse_root(moments, damping)

    return Exact(*jax.lax.scan(root, None, jax.lax.scan(moments, None, parts)[1])[1])


def _inverse_root(
    moments: Float[Array, "m m"], damping: Array
) -> tuple[Float[Array, "m m"], Bool[Array, " m"], Float[Array, ""], Float[Array, ""]]:
    """The inverse of the damped Cholesky factor, which weights and how many directions count."""
    unit = jnp.eye(len(moments))
    damping = damping + _TINY * jnp.trace(moments)
    inverse = solve_triangular(jnp.linalg.cholesky(moments + damping * unit), unit, lower=True)
    effective = len(moments) - damping * jnp.sum(inverse * inverse)
    return inverse, jnp.diagonal(moments) > 0, effective, damping


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


def _shortened(gradients: Float[Array, "rows m"]) -> Float[Array, "rows m"]:
    """Gradients of which no few make up the second moments."""
    squares = jnp.sum(gradients * gradients, axis=-1)
    usual = jnp.sqrt(jnp.mean(jnp.minimum(squares, 25 * jnp.median(squares))))
    longest = _LONGEST * usual
    return gradients * (longest / jnp.maximum(jnp.sqrt(squares), longest + 1e-30))[:, None]


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

    def whiten(self, parts: list[Parts]) -> tuple[Array, Array]:
        """Both factors in the eigenvectors, in double precision."""
        ((inputs, outputs),) = parts
        turned = inputs @ self.inputs, outputs @ self.outputs
        return turned[0].astype(jnp.float64), turned[1].astype(jnp.float64)

    def squares(self, white: tuple[Array, Array]) -> Float64[Array, " rows"]:
        """Each row's squared length, from its factors."""
        inputs, outputs = (x * x for x in white)
        axes = (((2,), (2,)), ((0,), (0,)))
        through = jax.lax.dot_general(inputs, self.scales * self.scales, axes)
        return jnp.sum(through * outputs, axis=(0, 2))

    def sums(
        self, white: tuple[Array, Array], factor: Float64[Array, " rows"]
    ) -> Float64[Array, " size"]:
        """The sum over rows of each row's whitened gradient times its factor."""
        inputs, outputs = white
        return (over_rows(outputs * factor[:, None], inputs) * self.scales).reshape(-1)

    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights."""
        parts = step.reshape(self.scales.shape) * self.scales.astype(jnp.float32)
        kept = jnp.where(self.is_used, parts, 0.0)
        turned = self.outputs @ kept @ jnp.swapaxes(self.inputs, -1, -2)
        return turned.reshape(len(turned), -1)

    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in directions that count."""
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
    """What damping leaves of each direction, by the inverse roots of damped moments."""
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

    @staticmethod
    def level(parts: list[Parts], damping: float) -> "Diagonal":
        """The same moment for every weight: their mean."""
        return _diagonal(parts, jnp.float32(damping), True)

    def whiten(self, parts: list[Parts]) -> Float64[Array, "blocks rows m"]:
        """Whole gradients over the roots of their moments, in double precision."""
        return jax.vmap(whole_gradients)(parts).astype(jnp.float64) * self.scales[:, None]

    def change(self, step: Float[Array, " size"]) -> Float[Array, "blocks m"]:
        """A whitened step as a change of the weights."""
        parts = step.reshape(self.scales.shape) * self.scales.astype(jnp.float32)
        return jnp.where(self.is_used, parts, 0.0)

    def effective_part(self, step: Float[Array, " size"]) -> Float[Array, " size"]:
        """The part of a whitened step in directions that count."""
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

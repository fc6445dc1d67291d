"""Scalar maps whose parameters a conditioner network writes.

They are frozen dataclasses, hence hashable by value: two flows of one architecture
share their compiled code.
"""

import abc
import dataclasses
from typing import ClassVar, Literal, final

import equinox as eqx
import jax.numpy as jnp
from flowjax.bijections import AbstractBijection, Chain, Loc, Vmap
from jaxtyping import Array, Float

from dpflows.flows.layers import BoundedAffine, bounded
from dpflows.flows.spline import Spline

TransformerName = Literal[
    "additive", "affine", "spline", "affine-spline", "scaled-affine", "scaled-affine-spline"
]


class Transformer(abc.ABC):
    """Turns a parameter vector into a scalar bijection; zeros give the identity."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many parameters one column needs."""

    @abc.abstractmethod
    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """The bijection these parameters describe."""

    def identity(self) -> AbstractBijection:
        """The bijection at zero parameters."""
        return self(jnp.zeros(self.size))

    def elementwise(self, dim: int) -> AbstractBijection:
        """One independent copy per column with free parameters, for rows too short to condition."""
        return Vmap(eqx.filter_vmap(self)(jnp.zeros((dim, self.size))), in_axes=eqx.if_array(0))


@final
@dataclasses.dataclass(frozen=True)
class Additive(Transformer):
    """``x + t``: the transformer of NICE (Dinh et al., 2014).

    Example:
        >>> import jax.numpy as jnp
        >>> float(Additive()(jnp.ones(1)).transform(jnp.array(1.0)))
        2.0
    """

    size: ClassVar[int] = 1

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A shift."""
        return Loc(params[0])


@final
@dataclasses.dataclass(frozen=True)
class Affine(Transformer):
    """``(x - t) exp(-s)`` with bounded ``s``.

    Example:
        >>> import jax.numpy as jnp
        >>> float(Affine()(jnp.array([1.0, 0.0])).transform(jnp.array(1.0)))
        0.0
    """

    size: ClassVar[int] = 2

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A bounded affine map."""
        return BoundedAffine(params[0], params[1])


@final
@dataclasses.dataclass(frozen=True)
class ScaledAffine(Transformer):
    """``x exp(-s) - t`` with bounded ``s``: the shift is in units of the scale.

    What a change of ``t`` does to the density then depends on neither parameter, so that the
    Fisher information hardly changes along a training step.

    Example:
        >>> import jax.numpy as jnp
        >>> float(ScaledAffine()(jnp.array([1.0, 0.0])).transform(jnp.array(1.0)))
        0.0
    """

    size: ClassVar[int] = 2

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A bounded affine map."""
        return BoundedAffine(params[0] * jnp.exp(bounded(params[1])), params[1])


@final
@dataclasses.dataclass(frozen=True)
class RationalQuadratic(Transformer):
    """A monotone spline with ``knots`` inner knots on [-interval, interval].

    Example:
        >>> RationalQuadratic(knots=8, interval=4.0).size
        26
    """

    knots: int
    interval: float

    @property
    def size(self) -> int:
        """Widths, heights and inner derivatives."""
        return 3 * self.knots + 2

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """A rational-quadratic spline."""
        return Spline(params, self.interval)


@final
@dataclasses.dataclass(frozen=True)
class AffineSpline(Transformer):
    """A bounded affine map, then a spline: the column is brought to the spline's interval.

    A spline alone must spend its knots on moving and scaling a column before it can
    bend it, which noisy training does slowly.

    Example:
        >>> AffineSpline(RationalQuadratic(knots=8, interval=4.0)).size
        28
    """

    spline: RationalQuadratic
    affine: Affine | ScaledAffine = Affine()

    @property
    def size(self) -> int:
        """Shift, log-scale and the spline's parameters."""
        return self.affine.size + self.spline.size

    def __call__(self, params: Float[Array, " size"]) -> AbstractBijection:
        """Both maps, one after the other."""
        split = self.affine.size
        return Chain([self.affine(params[:split]), self.spline(params[split:])])

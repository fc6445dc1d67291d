"""Gradients through an inverse without unrolling it."""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.bijections import AbstractBijection
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from dpflows.flows.layers import RowMap


@final
class Implicit(RowMap):
    r"""An autoregressive map turned round, its inverse differentiated implicitly.

    Backward runs the wrapped map once. Forward solves :math:`f(x) = y` column by column;
    its derivatives come from the implicit function theorem at the solution, so the
    network is differentiated in one evaluation only, whatever the number of columns.
    Per-example clipping relies on that: each layer has one input and one output
    gradient per row. Reverse mode only.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpflows.flows.layers import BoundedAffine
        >>> Implicit(BoundedAffine(jnp.ones(2), jnp.zeros(2))).transform(jnp.zeros(2)).tolist()
        [1.0, 1.0]
    """

    bijection: AbstractBijection
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, bijection: AbstractBijection) -> None:
        self.bijection = bijection
        self.shape = bijection.shape
        self.cond_shape = None

    def forward(self, x: Array) -> tuple[Array, Array]:
        """The wrapped map's inverse."""
        return _solve((self.bijection, x))

    def backward(self, y: Array) -> tuple[Array, Array]:
        """The wrapped map."""
        return self.bijection.transform_and_log_det(y)


@eqx.filter_custom_vjp
def _solve(problem: tuple[AbstractBijection, Array]) -> tuple[Array, Array]:
    bijection, y = problem
    return bijection.inverse_and_log_det(y)


@_solve.def_fwd
def _solve_forward(perturbed: Any, problem: tuple[AbstractBijection, Array]) -> Any:
    solution = _solve(problem)
    return solution, solution[0]


@_solve.def_bwd
def _solve_backward(
    x: Array, cotangents: Any, perturbed: Any, problem: tuple[AbstractBijection, Array]
) -> Any:
    """Cotangents of ``x(y, f)`` and of ``-log_det f(x)``: one solve, one pull-back."""
    bijection, _ = problem
    x_bar, log_det_bar = (
        _or_zero(bar, like) for bar, like in zip(cotangents, (x, x[0]), strict=True)
    )
    _, pull_x = jax.vjp(bijection.transform_and_log_det, x)
    (through_log_det,) = pull_x((jnp.zeros_like(x), -log_det_bar))
    jacobian = jax.jacrev(bijection.transform)(x)
    y_bar = solve_triangular(jacobian, x_bar + through_log_det, trans=1, lower=True)
    _, pull_map = eqx.filter_vjp(lambda f: f.transform_and_log_det(x), bijection)
    (map_bar,) = pull_map((-y_bar, -log_det_bar))
    return map_bar, y_bar


def _or_zero(cotangent: Array | None, like: Array) -> Array:
    return jnp.zeros_like(like) if cotangent is None else cotangent

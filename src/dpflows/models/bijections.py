"""Bijections that FlowJAX lacks: affine, linear, implicit, and monotone networks.

In their forward direction they map data to latent space. Log-scales are bounded (``bounded``).
``Implicit`` differentiates an inverse without unrolling it, ``ColumnByColumn`` inverts a
masked autoregressive map cheaply, and ``with_act_norms`` initialises the ActNorm layers of a
new flow from what reaches them.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import (
    AbstractBijection,
    BlockAutoregressiveNetwork,
    Chain,
    LeakyTanh,
    MaskedAutoregressive,
    NumericalInverse,
    Scan,
)
from flowjax.distributions import Transformed
from flowjax.masks import block_tril_mask
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray
from paramax import Parameterize, unwrap

from dpflows.errors import InputError

LOG_BOUND = 4.0


def bounded(raw: Float[Array, "..."]) -> Float[Array, "..."]:
    """Squash log-scales smoothly into (-4, 4); the identity to third order at zero.

    Unbounded log-scales overflow under the noise of private training.

    Example:
        >>> import jax.numpy as jnp
        >>> bounded(jnp.array([0.0, 1e9])).tolist()
        [0.0, 4.0]
    """
    return LOG_BOUND * jnp.tanh(raw / LOG_BOUND)


def unbounded(log_scale: Float[Array, "..."]) -> Float[Array, "..."]:
    """The inverse of ``bounded``, clipped to its range.

    Example:
        >>> import jax.numpy as jnp
        >>> bounded(unbounded(jnp.array([1.0, -9.0]))).round(2).tolist()
        [1.0, -4.0]
    """
    return LOG_BOUND * jnp.arctanh(jnp.clip(log_scale / LOG_BOUND, -0.999, 0.999))


class RowMap(AbstractBijection):
    """An unconditional bijection given by its two directions."""

    shape: eqx.AbstractVar[tuple[int, ...]]
    cond_shape: eqx.AbstractVar[None]

    @abc.abstractmethod
    def forward(self, x: Array) -> tuple[Array, Array]:
        """Data to latent, with the log-determinant."""

    @abc.abstractmethod
    def backward(self, y: Array) -> tuple[Array, Array]:
        """Latent to data, with the log-determinant."""

    def transform_and_log_det(
        self, x: ArrayLike, condition: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """FlowJAX's name for ``forward``."""
        return self.forward(jnp.asarray(x))

    def inverse_and_log_det(
        self, y: ArrayLike, condition: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """FlowJAX's name for ``backward``."""
        return self.backward(jnp.asarray(y))


def solve_lower(matrix: Float[Array, "d d"], target: Float[Array, " d"]) -> Float[Array, " d"]:
    """The solution of a lower-triangular system, by forward substitution.

    LAPACK's solvers must not be called for many rows at once inside compiled programs: up to jaxlib
    0.10 such a call waits for threads that it may occupy itself, and then never returns.

    Example:
        >>> solve_lower(jnp.array([[2.0, 9.0], [1.0, 4.0]]), jnp.array([2.0, 9.0])).tolist()
        [1.0, 2.0]
    """

    def row(x: Array, i: Array) -> tuple[Array, None]:
        # entries from i on are still zero
        return x.at[i].set((target[i] - matrix[i] @ x) / matrix[i, i]), None

    return jax.lax.scan(row, jnp.zeros_like(target), jnp.arange(len(target)))[0]


def solve_upper(matrix: Float[Array, "d d"], target: Float[Array, " d"]) -> Float[Array, " d"]:
    """The solution of an upper-triangular system, by back substitution.

    Example:
        >>> solve_upper(jnp.array([[1.0, 3.0], [9.0, 2.0]]), jnp.array([7.0, 4.0])).tolist()
        [1.0, 2.0]
    """
    return solve_lower(matrix[::-1, ::-1], target[::-1])[::-1]


@final
class BoundedAffine(RowMap):
    r"""Elementwise :math:`z = (x - t) e^{-s}` with :math:`|s| < 4`.

    With shape ``(d,)`` and zero parameters this is ActNorm at the identity (Kingma and Dhariwal,
    2018, without the data-dependent initialisation, which would cost privacy); with shape ``()`` it
    is the transformer of MAF (Papamakarios et al., 2017).

    Example:
        >>> import jax.numpy as jnp
        >>> BoundedAffine(jnp.ones(2), jnp.zeros(2)).transform(jnp.ones(2)).tolist()
        [0.0, 0.0]
    """

    shift: Float[Array, "..."]
    raw_log_scale: Float[Array, "..."]
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, shift: Float[Array, "..."], raw_log_scale: Float[Array, "..."]) -> None:
        self.shift = shift
        self.raw_log_scale = raw_log_scale
        self.shape = shift.shape
        self.cond_shape = None

    def forward(self, x: Array) -> tuple[Array, Array]:
        """``(x - t) exp(-s)`` and ``-sum(s)``."""
        log_scale = bounded(self.raw_log_scale)
        return (x - self.shift) * jnp.exp(-log_scale), -log_scale.sum()

    def backward(self, y: Array) -> tuple[Array, Array]:
        """``y exp(s) + t`` and ``sum(s)``."""
        log_scale = bounded(self.raw_log_scale)
        return y * jnp.exp(log_scale) + self.shift, log_scale.sum()


@final
class TriangularLinear(RowMap):
    r""":math:`z = L\,D\,U\,x` with unit triangular L, U and a positive diagonal D.

    The invertible linear layer of Glow (Kingma and Dhariwal, 2018) without its
    permutation, which the recipe supplies. Entries off the diagonal stay in (-1, 1),
    as with pivoting, and log D in (-4, 4): inverting cannot overflow.

    Example:
        >>> import jax.numpy as jnp
        >>> TriangularLinear(jnp.zeros((2, 2))).transform(jnp.array([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """

    raw: Float[Array, "*batch d d"]
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, raw: Float[Array, "d d"]) -> None:
        self.raw = raw
        self.shape = (raw.shape[-1],)
        self.cond_shape = None

    def _factors(self) -> tuple[Array, Array, Array]:
        """L, log D and U."""
        one = jnp.eye(self.shape[0], dtype=self.raw.dtype)
        off = jnp.tanh(self.raw)
        return jnp.tril(off, -1) + one, bounded(jnp.diag(self.raw)), jnp.triu(off, 1) + one

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Three products; the log-determinant is the sum of log D."""
        lower, log_scale, upper = self._factors()
        return lower @ (jnp.exp(log_scale) * (upper @ x)), log_scale.sum()

    def backward(self, y: Array) -> tuple[Array, Array]:
        """Two triangular solves."""
        lower, log_scale, upper = self._factors()
        return solve_upper(upper, jnp.exp(-log_scale) * solve_lower(lower, y)), -log_scale.sum()


@final
class Implicit(RowMap):
    r"""The inverse of an autoregressive map, differentiated implicitly.

    Backward runs the wrapped map once. Forward solves :math:`f(x) = y` column by column;
    its derivatives come from the implicit function theorem at the solution, so the
    network is differentiated in one evaluation only, whatever the number of columns.
    Per-example clipping relies on that: each layer has one input and one output
    gradient per row. Reverse mode only.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpflows.models.bijections import BoundedAffine
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
    y_bar = solve_upper(jacobian.T, x_bar + through_log_det)
    _, pull_map = eqx.filter_vjp(lambda f: f.transform_and_log_det(x), bijection)
    (map_bar,) = pull_map((-y_bar, -log_det_bar))
    return map_bar, y_bar


def _or_zero(cotangent: Array | None, like: Array) -> Array:
    return jnp.zeros_like(like) if cotangent is None else cotangent


@final
class ColumnByColumn(RowMap):
    """A masked autoregressive map whose inverse is one scan over the columns.

    Each step inverts one column's transformer. FlowJAX's own inverse inverts all of them
    at each step and keeps one, which for splines is most of the time of sampling.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> from dpflows.models.architectures import Affine
        >>> made = MaskedAutoregressive(
        ...     jr.key(0), transformer=Affine().identity(), dim=3, nn_width=8, nn_depth=1
        ... )
        >>> y = ColumnByColumn(made).transform(jnp.ones(3))
        >>> bool(jnp.allclose(ColumnByColumn(made).inverse(y), 1, atol=1e-5))
        True
    """

    made: MaskedAutoregressive
    shape: tuple[int, ...]
    cond_shape: None

    def __init__(self, made: MaskedAutoregressive) -> None:
        self.made = made
        self.shape = made.shape
        self.cond_shape = None

    def forward(self, x: Array) -> tuple[Array, Array]:
        """One evaluation of the network."""
        return self.made.transform_and_log_det(x)

    def backward(self, y: Array) -> tuple[Array, Array]:
        """One evaluation of the network per column, in a compiled scan."""

        def fill(x: Array, column: Array) -> tuple[Array, Array]:
            params = self.made.masked_autoregressive_mlp(x).reshape(self.shape[0], -1)[column]
            scalar = self.made.transformer_constructor(params)
            value, log_det = scalar.inverse_and_log_det(y[column])
            return x.at[column].set(value), log_det

        x, log_dets = jax.lax.scan(fill, jnp.zeros_like(y), jnp.arange(self.shape[0]))
        return x, log_dets.sum()


# Activations of one block are centred evenly over [-4, 4]: their mean is then close to a
# line of slope 1/3 there, and every stage of a fresh network close to the identity.
_REACH = 4.0
_STRETCH = 3.0
_START = 0.01
# Beyond this the activation is linear with slope 0.18: tails stay light and invertible.
_LINEAR_BEYOND = 1.5
# asinh of the largest root that is looked for, about 1e15.
_FARTHEST = 35.0


@final
class BlockLinear(eqx.Module):
    r"""Block lower triangular: free entries below the diagonal blocks, positive ones in them.

    The free part is a masked ``eqx.nn.Linear``. The diagonal blocks are
    :math:`g\,e^{s}` with bounded :math:`s` and a constant :math:`g`: a few parameters
    outside any linear layer.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> layer = BlockLinear(jr.key(0), columns=2, block=(3, 1))
        >>> log_blocks(layer).shape
        (2, 3, 1)
    """

    free: eqx.nn.Linear
    raw: Float[Array, "*batch columns out in"]
    log_gain: float = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        *,
        columns: int,
        block: tuple[int, int],
        gain: float = 1.0,
    ) -> None:
        free_key, raw_key = jr.split(key)
        self.free = _below_blocks(free_key, columns, block)
        self.raw = 0.1 * jr.normal(raw_key, (columns, *block))
        self.log_gain = math.log(gain / block[1])

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Both parts applied to one row."""
        columns, _, cols = self.raw.shape
        diagonal = jnp.exp(log_blocks(self)) @ x.reshape(columns, cols, 1)
        return self.free(x) + diagonal.ravel()


def _below_blocks(key: PRNGKeyArray, columns: int, block: tuple[int, int]) -> eqx.nn.Linear:
    """A linear layer, with small initial weights, that depends only on the columns before."""
    rows, cols = block
    linear = eqx.nn.Linear(cols * columns, rows * columns, key=key)
    mask = block_tril_mask(block, columns, k=-1)
    weight: Any = Parameterize(jnp.where, mask, _START * linear.weight, 0)
    centres = jnp.linspace(-_REACH, _REACH, rows) if rows > 1 else jnp.zeros(1)
    start = (weight, jnp.tile(centres, columns))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), linear, start)


def log_blocks(layer: BlockLinear) -> Float[Array, "columns out in"]:
    """Logarithms of the diagonal blocks.

    Example:
        >>> import jax.random as jr
        >>> bool((log_blocks(BlockLinear(jr.key(0), columns=1, block=(1, 1))) < 4).all())
        True
    """
    return bounded(layer.raw) + layer.log_gain


def block_network(key: PRNGKeyArray, *, dim: int, depth: int, block_dim: int) -> AbstractBijection:
    """A block neural autoregressive map (De Cao et al., 2019), inverted by bisection.

    Example:
        >>> import jax.random as jr
        >>> block_network(jr.key(0), dim=2, depth=1, block_dim=4).shape
        (2,)
    """
    with jax.ensure_compile_time_eval():
        activation = LeakyTanh(_LINEAR_BEYOND)
    network = BlockAutoregressiveNetwork(
        key, dim=dim, depth=depth, block_dim=block_dim, activation=activation
    )
    shapes = [(block_dim, 1), *[(block_dim, block_dim)] * (depth - 1), (1, block_dim)]
    gains = [1.0, *[_STRETCH] * depth]
    layers = [
        (BlockLinear(k, columns=dim, block=shape, gain=gain), log_blocks)
        for k, shape, gain in zip(jr.split(key, depth + 1), shapes, gains, strict=True)
    ]
    network = eqx.tree_at(lambda net: net.layers, network, layers)
    return NumericalInverse(network, bisection, use_implicit_differentation=False)


def bisection(
    bijection: AbstractBijection, y: Float[Array, " d"], condition: Array | None = None
) -> Float[Array, " d"]:
    """Solve ``bijection(x) = y`` for an increasing autoregressive map, column by column.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpflows.models.bijections import BoundedAffine
        >>> root = bisection(BoundedAffine(jnp.ones(1), jnp.zeros(1)), jnp.zeros(1))
        >>> round(float(root[0]), 3)
        1.0
    """

    def fill(x: Array, column: Array) -> tuple[Array, None]:
        root = _root(lambda v: bijection.transform(x.at[column].set(v))[column] - y[column], y)
        return x.at[column].set(root), None

    return jax.lax.scan(fill, jnp.zeros_like(y), jnp.arange(y.shape[0]))[0]


def _root(excess: Callable[[Array], Array], like: Array) -> Array:
    """Bisection in asinh: equal relative precision for small and for huge roots."""

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        right = excess(jnp.sinh(middle)) < 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    edge = jnp.asarray(_FARTHEST, like.dtype)
    low, high = jax.lax.fori_loop(0, jnp.finfo(like.dtype).nmant + 8, halve, (-edge, edge))
    return jnp.sinh((low + high) / 2)


_CHUNK = 8192

Rows = Float[np.ndarray, "rows columns"]
#: Given the rows that reach a layer and its number, the shift and scale it should take out.
Choose = Callable[[Rows, int], tuple[np.ndarray, np.ndarray]]


def act_norms(flow: Transformed) -> int:
    """Number of ActNorm layers that ``with_act_norms`` sets.

    Example:
        >>> from dpflows.models.architectures import Architecture
        >>> act_norms(Architecture("maf", blocks=3, width=8).build(2, key=jax.random.key(0)))
        3
    """
    scan, last = _parts(flow)
    inside = sum(isinstance(part, BoundedAffine) for part in scan.bijection.bijections)
    return _blocks(scan) * inside + isinstance(last, BoundedAffine)


def with_act_norms(flow: Transformed, rows: Rows, choose: Choose) -> Transformed:
    """The flow with every ActNorm layer set by ``choose``, from the data side to the latent.

    Example:
        >>> from dpflows.models.architectures import Architecture
        >>> flow = Architecture("maf", blocks=1, width=8).build(2, key=jax.random.key(0))
        >>> rows = np.random.default_rng().normal(5.0, 2.0, size=(500, 2))
        >>> moved = with_act_norms(flow, rows, lambda x, layer: (x.mean(axis=0), x.std(axis=0)))
        >>> bool(moved.log_prob(jnp.full(2, 5.0)) > flow.log_prob(jnp.full(2, 5.0)))
        True
    """
    scan, last = _parts(flow)
    layer, blocks = 0, []
    for number in range(_blocks(scan)):
        parts = []
        for part in _block(scan, number).bijections:
            if isinstance(part, BoundedAffine):
                part, layer = _set(*choose(rows, layer)), layer + 1
            rows = _through(part, rows)
            parts.append(part)
        blocks.append(Chain(parts))
    stacked = jax.tree.map(_stack, *(eqx.filter(block, eqx.is_array) for block in blocks))
    static = eqx.filter(blocks[0], eqx.is_array, inverse=True)
    whole: Any = Scan(eqx.combine(stacked, static))
    if last is not None:
        ending = _set(*choose(rows, layer)) if isinstance(last, BoundedAffine) else last
        whole = Chain([whole, ending])
    return eqx.tree_at(lambda f: f.bijection.bijection, flow, whole)


def _parts(flow: Transformed) -> tuple[Any, Any]:
    stack: Any = flow.bijection
    stack = stack.bijection
    scan, last = stack.bijections if isinstance(stack, Chain) else (stack, None)
    if not isinstance(scan, Scan) or not isinstance(scan.bijection, Chain):
        raise InputError("flow must be one of the families in ARCHITECTURES")
    return scan, last


def _blocks(scan: Any) -> int:
    return int(jax.tree.leaves(eqx.filter(scan.bijection, eqx.is_array))[0].shape[0])


def _block(scan: Any, number: int) -> Chain:
    arrays, static = eqx.partition(scan.bijection, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda leaf: leaf[number], arrays), static)


def _stack(*leaves: Array) -> Array:
    return jnp.stack(leaves)


def _set(shift: np.ndarray, scale: np.ndarray) -> BoundedAffine:
    return BoundedAffine(jnp.asarray(shift, float), unbounded(jnp.log(jnp.asarray(scale, float))))


@eqx.filter_jit
def _transform(part: Any, rows: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    return jax.vmap(unwrap(part).transform)(rows)


def _through(part: Any, rows: Rows) -> Rows:
    chunks = [rows[i : i + _CHUNK] for i in range(0, len(rows), _CHUNK)]
    return np.concatenate(
        [np.asarray(_transform(part, jnp.asarray(chunk, float)), float) for chunk in chunks]
    )

"""Set the ActNorm layers of a fresh flow from what reaches them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import Chain, Scan
from flowjax.distributions import Transformed
from jaxtyping import Array, Float
from paramax import unwrap

from dpflows.errors import InputError
from dpflows.flows.layers import BoundedAffine, unbounded

_CHUNK = 8192

Rows = Float[np.ndarray, "rows columns"]
#: Given the rows that reach a layer and its number, the shift and scale it should take out.
Choose = Callable[[Rows, int], tuple[np.ndarray, np.ndarray]]


def act_norms(flow: Transformed) -> int:
    """How many ActNorm layers ``with_act_norms`` would set.

    Example:
        >>> from dpflows.flows.architectures import Architecture
        >>> act_norms(Architecture("maf", blocks=3, width=8).build(2, key=jax.random.key(0)))
        3
    """
    scan, last = _parts(flow)
    inside = sum(isinstance(part, BoundedAffine) for part in scan.bijection.bijections)
    return _blocks(scan) * inside + isinstance(last, BoundedAffine)


def with_act_norms(flow: Transformed, rows: Rows, choose: Choose) -> Transformed:
    """The flow with every ActNorm layer set by ``choose``, from the data side to the latent.

    Example:
        >>> from dpflows.flows.architectures import Architecture
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

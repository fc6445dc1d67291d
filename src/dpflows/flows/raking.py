"""A network of cells moved towards noisy marginals that know what it learnt badly.

Noise and clipping bias the marginals of a privately trained network. Adding to a column's
logits what its marginal lacks, once for every cell of the first column, repairs each pair of
the first column and another; it is what raking (Deming and Stephan, 1940) does to a table,
done to the model itself, so that its probabilities stay exact. Where a noisy count says less
than the network does, the network is believed.
"""

from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dpflows.flows.cells import CellNetwork, Walk

#: Rows drawn to see what the network's marginals are.
_ROWS = 1 << 15
_ROUNDS = 40
#: The most that one round changes a logit.
_REACH = 1.0


@final
class Marginals(eqx.Module):
    """Noisy counts of every column's cells, or of its pairs with the first column's cells.

    Attributes:
        counts: One table per column, filled up to the size of the largest column; one line
            per cell of the first column, or a single one.
        noise: The standard deviation of every count.
        rows: How many rows were counted.
    """

    counts: Float[Array, "columns lines most"]
    noise: Float[Array, ""]
    rows: Float[Array, ""]


def marginals(tables: Sequence[np.ndarray], *, noise: float, rows: int) -> Marginals:
    """Tables of noisy counts, each of as many lines, filled up to the widest of them.

    Example:
        >>> marginals([np.ones((1, 2)), np.ones((1, 3))], noise=1.0, rows=2).counts.shape
        (2, 1, 3)
    """
    most = max(table.shape[1] for table in tables)
    padded = [np.pad(table, ((0, 0), (0, most - table.shape[1]))) for table in tables]
    return Marginals(jnp.asarray(np.stack(padded)), jnp.asarray(noise), jnp.asarray(float(rows)))


def raked(
    network: CellNetwork,
    seen: Marginals,
    key: PRNGKeyArray,
    *,
    trust: float = 0.5,
    rows: int = _ROWS,
) -> CellNetwork:
    """The network whose logits are shifted to what the marginals say.

    Args:
        network: What was learnt.
        seen: What was counted.
        key: For the rows drawn on the way.
        trust: By how much a logit of the network is thought to be wrong.
        rows: How many rows are drawn; marginals are hit up to the error of so many draws.

    Guarantee:
        Reads the network and the noisy counts alone: post-processing of what was released.
    """
    shifts = _shifts(network, seen, key, trust, rows)
    parameters: Any = network
    bias, links = parameters.out.bias, parameters.direct.weight
    mask, weight = links.args[0], links.args[1]
    for column, (start, size) in enumerate(zip(network.starts, network.sizes, strict=True)):
        here, shift = slice(int(start), int(start) + size), shifts[column, :, :size]
        if column == 0 or len(shift) == 1:
            bias = bias.at[here].add(shift[0])
        else:
            weight = weight.at[here, : len(shift)].add(shift.T)
    moved: Any = (bias, paramax.Parameterize(jnp.where, mask, weight, 0))
    return eqx.tree_at(lambda n: (n.out.bias, n.direct.weight), network, moved)


@eqx.filter_jit
def _shifts(
    network: CellNetwork, seen: Marginals, key: PRNGKeyArray, trust: float, rows: int
) -> Float[Array, "columns lines most"]:
    """What to add to the logits, column after column, each given the columns before it."""
    lines = seen.counts.shape[1]

    def repair(state: tuple[Walk, Array], step: tuple[Array, ...]) -> tuple[tuple, Array]:
        (walk, first), (column, counts, k) = state, step
        logits = walk.logits(column)
        line = jnp.where(lines > 1, first, 0)
        shift = _shift(logits, line, counts, seen, trust)
        chosen = jr.categorical(k, logits + shift[line])
        first = jnp.where(column == 0, chosen, first)
        return (walk.step(column, chosen), first), shift

    columns = len(network.sizes)
    steps = (jnp.arange(columns), seen.counts, jr.split(key, columns))
    start = (Walk.start(paramax.unwrap(network), rows), jnp.zeros(rows, int))
    return jax.lax.scan(repair, start, steps)[1]


def _shift(
    logits: Float[Array, "n most"],
    line: Int[Array, " n"],
    counts: Float[Array, "lines most"],
    seen: Marginals,
    trust: float,
) -> Float[Array, "lines most"]:
    """Gauss-Newton towards the likeliest shift: counts are normal, and so are shifts."""
    member = jax.nn.one_hot(line, len(counts)) * (seen.rows / len(line))

    def improve(_: Any, shift: Array) -> Array:
        expected = member.T @ jax.nn.softmax(logits + shift[line])
        slope = expected / seen.noise
        gap = (expected - counts) / seen.noise
        change = (slope * gap + shift / trust**2) / (slope**2 + 1 / trust**2)
        return shift - jnp.clip(change, -_REACH, _REACH)

    return jax.lax.fori_loop(0, _ROUNDS, improve, jnp.zeros_like(counts))

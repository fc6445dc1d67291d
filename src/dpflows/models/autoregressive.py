"""Autoregressive categorical networks: exact joint distributions over rows of cell numbers.

The network (MADE; Germain et al., 2015) reads a row as one-hot vectors and gives, for every
column, the logits of its cells; masks make them depend only on earlier columns. Direct links
from inputs to outputs represent dependences between pairs of columns, and leave the rest to
the hidden layers.

Noise and clipping bias the marginals of a privately trained network. ``raked`` corrects it by
noisy marginals: shifts of a column's logits, one for every cell of the first column, match
each pair of the first column and another. This is raking (Deming and Stephan, 1940), applied
to the model instead of a table, so its probabilities stay exact. Where a noisy count is less
certain than the network, the network's value is kept.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dpflows.errors import InputError

NAME = "cells"
#: How much the last hidden layer says at the start.
_START = 0.01
#: A forged file must not make us build without end.
_LARGEST = {"width": 8192, "depth": 32}
#: The cells of a column for estimates of time and memory.
_TYPICAL = 16


@final
@dataclasses.dataclass(frozen=True)
class CellShape:
    """The shape of a network in plain numbers; ``dataclasses.asdict`` gives its JSON.

    Attributes:
        name: Always ``cells``, to distinguish it from the shapes of flows.
        width: Units per hidden layer.
        depth: Hidden layers.

    Example:
        >>> CellShape().build((2, 3), key=jr.key(0)).sizes
        (2, 3)
    """

    name: str = NAME
    width: int = 128
    depth: int = 2

    def __post_init__(self) -> None:
        if self.name != NAME:
            raise InputError(f"name must be {NAME!r}")
        for field, most in _LARGEST.items():
            value = getattr(self, field)
            if type(value) is not int or not 1 <= value <= most:
                raise InputError(f"{field} must be a whole number from 1 to {most}, got {value!r}")

    def build(
        self, sizes: Sequence[int], *, key: PRNGKeyArray, biases: Any = None
    ) -> "CellNetwork":
        """A new network of this shape over columns with these numbers of cells."""
        return cell_network(sizes, width=self.width, depth=self.depth, key=key, biases=biases)

    def size(self, sizes: Sequence[int]) -> int:
        """The number of parameters of such a network, including masked ones.

        Example:
            >>> CellShape(width=4, depth=1).size((2, 3))
            74
        """
        cells, width = sum(sizes), self.width
        hidden = (cells + 1) * width + (self.depth - 1) * (width + 1) * width
        return hidden + (width + 1) * cells + cells**2

    def weights(self, columns: int) -> int:
        """Approximate number of weights of such a network."""
        cells = _TYPICAL * columns
        return (2 * self.width + cells) * cells + (self.depth - 1) * self.width**2

    def activations(self, columns: int) -> int:
        """Approximate number of stored activations per row for its gradient."""
        return 2 * self.width * self.depth + 4 * _TYPICAL * columns

    def __str__(self) -> str:
        return f"network of cells: width {self.width}, depth {self.depth}"


class Drawn(NamedTuple):
    """Rows of cells, and the log-probability of the cells that were given in each."""

    cells: Int[Array, "n columns"]
    log_weight: Float[Array, " n"]


@final
class CellNetwork(eqx.Module):
    """An autoregressive network: an exact joint distribution over rows of cells.

    Attributes:
        hidden: Masked layers; their units are sorted by the columns they may depend on.
        out: From the last of them to all logits.
        direct: From the row itself to all logits.
        sizes: Number of cells of each column.

    Example:
        >>> network = cell_network((2, 3), width=8, depth=1, key=jr.key(0))
        >>> rows = jnp.array([[a, b] for a in range(2) for b in range(3)], float)
        >>> float(jnp.exp(jax.vmap(network.log_prob)(rows)).sum().round(4))
        1.0
    """

    hidden: tuple[eqx.nn.Linear, ...]
    out: eqx.nn.Linear
    direct: eqx.nn.Linear
    sizes: tuple[int, ...] = eqx.field(static=True)

    @property
    def starts(self) -> np.ndarray:
        """The first index of each column's cells."""
        return np.cumsum((0, *self.sizes[:-1]))

    def log_prob(self, row: Float[Array, " columns"]) -> Float[Array, ""]:
        """The log-probability of one row of cell numbers."""
        cells = row.astype(jnp.int32)
        ones = jnp.zeros(sum(self.sizes)).at[cells + self.starts].set(1.0)
        logits = self._by_column(paramax.unwrap(self)._logits(ones))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), cells[:, None], axis=1)
        return chosen.sum()

    def _logits(self, ones: Float[Array, " cells"]) -> Float[Array, " cells"]:
        units = ones
        for layer in self.hidden:
            units = jax.nn.relu(layer(units))
        return self.out(units) + self.direct(ones)

    def _by_column(self, logits: Float[Array, " cells"]) -> Float[Array, "columns most"]:
        """One row per column, padded with logits of probability zero."""
        return jnp.append(logits, -jnp.inf)[_places(self.sizes)]


@functools.cache
def _places(sizes: tuple[int, ...]) -> np.ndarray:
    places = np.full((len(sizes), max(sizes)), sum(sizes))
    for column, (start, size) in enumerate(zip(np.cumsum((0, *sizes)), sizes, strict=False)):
        places[column, :size] = start + np.arange(size)
    return places


def cell_network(
    sizes: Sequence[int], *, width: int, depth: int, key: PRNGKeyArray, biases: Any = None
) -> CellNetwork:
    """A new network, initialised with independent columns.

    Args:
        sizes: Number of cells of each column.
        width: Units per hidden layer.
        depth: Hidden layers.
        key: Random key of the initial weights.
        biases: Initial logits of all cells, column after column; zeros if None.
    """
    sizes = tuple(int(size) for size in sizes)
    if not sizes or min(sizes) < 1:
        raise InputError("sizes must name at least one cell for every column")
    column = np.repeat(np.arange(len(sizes)), sizes)
    unit = unit_ranks(len(sizes), width)
    before = [column] + [unit] * (depth - 1)
    keys = jr.split(key, depth + 2)
    hidden = tuple(
        _masked(k, unit[:, None] >= seen, 1.0) for k, seen in zip(keys, before, strict=False)
    )
    out = _masked(keys[-2], column[:, None] > unit, _START)
    direct = _masked(keys[-1], column[:, None] > column, 0.0)
    start = jnp.zeros(len(column)) if biases is None else jnp.asarray(biases, float)
    out = eqx.tree_at(lambda layer: layer.bias, out, start)
    direct = eqx.tree_at(lambda layer: layer.bias, direct, None, is_leaf=lambda x: x is None)
    return CellNetwork(hidden, out, direct, sizes)


def unit_ranks(columns: int, width: int) -> np.ndarray:
    """The last column that each hidden unit may depend on, in order.

    Example:
        >>> unit_ranks(3, 5).tolist()
        [0, 0, 0, 1, 1]
    """
    return np.sort(np.arange(width) % max(columns - 1, 1))


def _masked(key: PRNGKeyArray, mask: np.ndarray, scale: float) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(mask.shape[1], mask.shape[0], key=key)
    weight: Any = paramax.Parameterize(jnp.where, jnp.asarray(mask), scale * layer.weight, 0)
    return eqx.tree_at(
        lambda layer: (layer.weight, layer.bias), layer, (weight, jnp.zeros(mask.shape[0]))
    )


@eqx.filter_jit
def draw_cells(network: CellNetwork, given: Int[Array, "n columns"], key: PRNGKeyArray) -> Drawn:
    """Rows of cells, column by column; given cells (not -1) are kept.

    The weight of a row is the probability of its given cells, each given the cells drawn before it.
    Where the given columns come first it is the same for all rows, and the rows are draws from the
    conditional distribution; elsewhere they must be weighted.

    Example:
        >>> network = cell_network((2, 3), width=8, depth=1, key=jr.key(0))
        >>> draw_cells(network, jnp.full((5, 2), -1), jr.key(1)).cells.shape
        (5, 2)
    """

    def fill(walk: Walk, step: tuple[Array, Array, Array]) -> tuple[Walk, tuple[Array, Array]]:
        column, wanted, k = step
        log_chances = jax.nn.log_softmax(walk.logits(column))
        free = wanted < 0
        chosen = jnp.where(free, jr.categorical(k, log_chances), wanted)
        log_chance = jnp.take_along_axis(log_chances, chosen[:, None], axis=1)[:, 0]
        return walk.step(column, chosen), (chosen, jnp.where(free, 0.0, log_chance))

    columns = len(network.sizes)
    steps = (jnp.arange(columns), given.T, jr.split(key, columns))
    walk = Walk.start(paramax.unwrap(network), len(given))
    _, (cells, log_weights) = jax.lax.scan(fill, walk, steps)
    return Drawn(cells.T, log_weights.sum(axis=0))


@final
class Walk(eqx.Module):
    """Rows that are drawn column by column.

    Attributes:
        network: The network, without wrappers.
        first: The input of the first hidden layer so far.
        direct: The contribution of the direct links so far.
    """

    network: CellNetwork
    first: Float[Array, "n width"]
    direct: Float[Array, "n cells"]

    @classmethod
    def start(cls, network: CellNetwork, rows: int) -> "Walk":
        """Empty rows."""
        first, last = (
            jnp.tile(_bias(part), (rows, 1)) for part in (network.hidden[0], network.out)
        )
        return cls(network, first, last)

    def logits(self, column: Int[Array, ""]) -> Float[Array, "n most"]:
        """The logits of a column's cells, given the columns before it."""
        units = jax.nn.relu(self.first)
        for layer in self.network.hidden[1:]:
            units = jax.nn.relu(units @ layer.weight.T + _bias(layer))
        at = jnp.asarray(_places(self.network.sizes))[column]
        said = units @ self.network.out.weight[at].T + self.direct[:, at]
        return jnp.where(at < sum(self.network.sizes), said, -jnp.inf)

    def step(self, column: Int[Array, ""], chosen: Int[Array, " n"]) -> "Walk":
        """Fill a column."""
        at = chosen + jnp.asarray(self.network.starts)[column]
        first = self.first + self.network.hidden[0].weight.T[at]
        return Walk(self.network, first, self.direct + self.network.direct.weight.T[at])


def _bias(layer: eqx.nn.Linear) -> Array:
    return jnp.zeros(layer.out_features) if layer.bias is None else layer.bias


#: Rows drawn to see what the network's marginals are.
_ROWS = 1 << 15
_ROUNDS = 40
#: The most that one round changes a logit.
_REACH = 1.0


@final
class Marginals(eqx.Module):
    """Noisy counts of every column's cells, or of its pairs with the first column's cells.

    Attributes:
        counts: One table per column, padded to the size of the largest column; one row per cell of
        the first column, or a single one.
        noise: The standard deviation of every count.
        rows: How many rows were counted.
    """

    counts: Float[Array, "columns lines most"]
    noise: Float[Array, ""]
    rows: Float[Array, ""]


def marginals(tables: Sequence[np.ndarray], *, noise: float, rows: int) -> Marginals:
    """Tables of noisy counts with equal numbers of rows, padded to the widest.

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
    """The network with logits shifted to match noisy marginals.

    Args:
        network: The trained network.
        seen: The noisy marginals.
        key: Random key of the drawn samples.
        trust: Assumed standard deviation of the error of a logit.
        rows: How many rows are drawn; marginals are matched up to their sampling error.

    Guarantee:
        Reads only the network and the noisy counts: post-processing of released values.
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
    """The shifts of the logits, column after column, each given the columns before it."""
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
    """Gauss-Newton for the most probable shift, with normal counts and a normal prior."""
    member = jax.nn.one_hot(line, len(counts)) * (seen.rows / len(line))

    def improve(_: Any, shift: Array) -> Array:
        expected = member.T @ jax.nn.softmax(logits + shift[line])
        slope = expected / seen.noise
        gap = (expected - counts) / seen.noise
        change = (slope * gap + shift / trust**2) / (slope**2 + 1 / trust**2)
        return shift - jnp.clip(change, -_REACH, _REACH)

    return jax.lax.fori_loop(0, _ROUNDS, improve, jnp.zeros_like(counts))

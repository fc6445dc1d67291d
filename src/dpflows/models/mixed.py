"""The density of mixed rows: probabilities of merged bins, spread over the bins inside them.

A mixed row is one bin per column, a public part of what the column may hold, and a place
inside that bin. Bins that are too rare to be told apart are merged. The network knows
rows of merged bins; inside a merged bin, bins keep fixed shares, and inside a bin all values
are alike. The product of the three is an exact density: a probability for labels and whole
numbers, a density per unit for continuous values.
"""

from collections.abc import Sequence
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dpflows.errors import InputError
from dpflows.models.autoregressive import CellNetwork, draw_cells

#: Rows that are scored or drawn at a time.
CHUNK = 1 << 14


@final
class BinShares(eqx.Module):
    """How the bins of one column share merged bins.

    Attributes:
        groups: The merged bin of every bin; every merged bin has a bin.
        shares: The share that a bin has of its merged bin.
        log_volumes: The logarithm of how much each bin holds.

    Example:
        >>> column = BinShares(np.array([0, 1, 1]), np.array([1.0, 0.25, 0.75]), np.zeros(3))
        >>> column.size, column.draw(np.array([0, 1, 1]), np.array([0.9, 0.1, 0.9])).tolist()
        (2, [0, 1, 2])
    """

    groups: Int[np.ndarray, " bins"]
    shares: Float[np.ndarray, " bins"]
    log_volumes: Float[np.ndarray, " bins"]

    def __check_init__(self) -> None:
        if not len(self.groups) == len(self.shares) == len(self.log_volumes) > 0:
            raise InputError("groups, shares and log_volumes must have one entry per bin")
        if self.groups.min() < 0 or self.groups.max() >= len(self.groups):
            raise InputError("groups must be numbered from zero, and be no more than the bins")
        totals = np.bincount(self.groups, self.shares)
        if not np.allclose(totals, 1) or (self.shares < 0).any():
            raise InputError("shares of the bins of a merged bin must add up to one")

    @property
    def size(self) -> int:
        """How many merged bins there are."""
        return int(self.groups.max()) + 1

    @property
    def log_densities(self) -> Float[np.ndarray, " bins"]:
        """The log-density of a value of each bin, given that it is in the merged bin."""
        with np.errstate(divide="ignore"):
            return np.log(self.shares) - self.log_volumes

    def draw(
        self, groups: Int[np.ndarray, " n"], uniform: Float[np.ndarray, " n"]
    ) -> Int[np.ndarray, " n"]:
        """A bin of every merged bin, drawn by its share."""
        order = np.argsort(self.groups, kind="stable")
        # each merged bin takes up one unit of the line, and each of its bins its share of that
        ends = np.cumsum(self.shares[order])
        ends[np.flatnonzero(np.diff(self.groups[order], append=self.size))] = np.arange(
            1, self.size + 1
        )
        return order[np.searchsorted(ends, groups + uniform, side="right")]


@final
class MixedDensity(eqx.Module):
    """A probability density over mixed rows.

    A row is a point: for every column the number of its bin plus a place in [0, 1).

    Attributes:
        network: Probabilities of rows of merged bins, in the network's order of columns.
        columns: The bins of each column, in the same order.
        order: Which column of a row is the first of the network, the second and so on.
    """

    network: CellNetwork
    columns: tuple[BinShares, ...]
    order: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if tuple(column.size for column in self.columns) != self.network.sizes:
            raise InputError("columns must have the merged bins that the network knows")
        if sorted(self.order) != list(range(len(self.columns))):
            raise InputError("order must contain every column once")

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.columns)

    def log_prob(self, points: Float[np.ndarray, "n columns"]) -> Float[np.ndarray, " n"]:
        """The log-density of each row; minus infinity where a bin is negative."""
        bins = np.floor(np.asarray(points, dtype=float)[:, self.order]).astype(np.int64)
        known = (bins >= 0) & (bins < [len(column.groups) for column in self.columns])
        inside = known.all(axis=1)
        logs = np.full(len(bins), -np.inf)
        logs[inside] = self._log_prob(bins[inside])
        return logs

    def sample(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n columns"]:
        """``n`` rows."""
        return self.sample_given(key, np.full((n, self.dim), -1.0))[0]

    def sample_given(
        self, key: PRNGKeyArray, given: Float[np.ndarray, "n columns"]
    ) -> tuple[Float[np.ndarray, "n columns"], Float[np.ndarray, " n"]]:
        """Complete each given row: non-negative entries are kept, the others are drawn.

        Returns:
            The rows, and the logarithm of their weights: the probability of the given entries, each
            given the entries before it. Weighted by them, the rows follow the conditional density;
            the weights are equal if the given columns come first.
        """
        parts = [self._drawn(k, given[i : i + CHUNK]) for k, i in _chunks(key, len(given))]
        rows, weights = zip(*parts, strict=True) if parts else ((), ())
        empty = np.empty((0, self.dim))
        return np.concatenate([empty, *rows]), np.concatenate([np.empty(0), *weights])

    def _log_prob(self, bins: Int[np.ndarray, "n columns"]) -> Float[np.ndarray, " n"]:
        groups = self._groups(bins)
        logs = [
            _log_probs(self.network, _padded(groups[i : i + CHUNK]))[: len(groups) - i]
            for i in range(0, len(groups), CHUNK)
        ]
        inside = [c.log_densities[at] for c, at in zip(self.columns, bins.T, strict=True)]
        return np.concatenate([np.empty(0), *map(np.asarray, logs)]) + np.sum(inside, axis=0)

    def _groups(self, bins: Int[np.ndarray, "n columns"]) -> Int[np.ndarray, "n columns"]:
        pairs = zip(self.columns, bins.T, strict=True)
        return np.column_stack([np.where(at < 0, -1, c.groups[at]) for c, at in pairs])

    def _drawn(
        self, key: PRNGKeyArray, given: Float[np.ndarray, "n columns"]
    ) -> tuple[np.ndarray, np.ndarray]:
        wanted = np.floor(given[:, self.order]).astype(np.int64)
        first, second = jr.split(key)
        drawn = draw_cells(self.network, _padded(self._groups(wanted)), first)
        groups = np.asarray(drawn.cells)[: len(given)]
        uniform = np.asarray(jr.uniform(second, (2, *given.shape)), dtype=float)
        bins = [
            column.draw(at, u)
            for column, at, u in zip(self.columns, groups.T, uniform[0].T, strict=True)
        ]
        points = np.empty(given.shape)
        points[:, self.order] = np.column_stack(bins) + uniform[1]
        weights = np.asarray(drawn.log_weight, dtype=float)[: len(given)]
        return np.where(given < 0, points, given), weights + self._log_shares(wanted)

    def _log_shares(self, wanted: Int[np.ndarray, "n columns"]) -> Float[np.ndarray, " n"]:
        """How likely the given bins are inside their merged bins."""
        pairs = zip(self.columns, wanted.T, strict=True)
        return np.sum([np.where(at < 0, 0.0, c.log_densities[at]) for c, at in pairs], axis=0)


@eqx.filter_jit
def _log_probs(network: CellNetwork, cells: Int[Array, "n columns"]) -> Float[Array, " n"]:
    return jax.vmap(network.log_prob)(cells.astype(float))


def _padded(cells: Int[np.ndarray, "n columns"]) -> Int[Array, "m columns"]:
    """Rows up to the next power of two: few shapes, so few compilations."""
    rows = min(CHUNK, 1 << max(len(cells) - 1, 15).bit_length())
    return jnp.asarray(np.pad(cells, ((0, rows - len(cells)), (0, 0))))


def _chunks(key: PRNGKeyArray, n: int) -> Sequence[tuple[PRNGKeyArray, int]]:
    starts = range(0, n, CHUNK)
    return list(zip(jr.split(key, max(len(starts), 1)), starts, strict=False))

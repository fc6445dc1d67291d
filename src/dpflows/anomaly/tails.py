"""How many rows a density finds rare, from one noisy histogram.

A density generates rows of its own. How rare it finds a log-density is minus the logarithm of
the share of its own rows that lie below. If the density were right, the share of real rows
rarer than ``t`` would be ``exp(-t)``; how far it is from that is bought, once, and then
gives the threshold for any share.
"""

import dataclasses
import itertools
import math
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64, Int64
from scipy.optimize import minimize

from dpflows.anomaly.thresholds import CLOSE, finite, quantile_between, without_nan
from dpflows.errors import InputError
from dpflows.privacy.mechanisms.histograms import marginals_sensitivity, noisy_marginals
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.randomness import Entropy

#: What one row moves the counts by: it is in one bin, and a replaced row moves two.
COUNTS = marginals_sensitivity(1)
#: Shares of the density's own rows at which bins are cut.
SHARES = (0.5, 0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
#: Bins that the density would fill with fewer rows than this part of the noise are joined.
_WORTH = 0.7
_FEWEST = 4
#: Below the lowest of the density's own rows, one in so many, rarity is linear in log-density.
_LOWEST = 250
#: The slopes of minus the logarithm of the share of rows; a density that is right has slope 1.
_SLOPES = (0.05, 5.0)

Edges = Float64[np.ndarray, " edges"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Rarity:
    """How rare a density finds a log-density, and back.

    Attributes:
        own: Log-densities of rows that the density generated, finite and increasing.

    Guarantee:
        Reads nothing but the density's own rows. The rarity of a row depends on that row alone.

    Example:
        >>> rarity = Rarity.among(np.linspace(-10.0, 0.0, 20_000))
        >>> shares = np.exp(-rarity.of(np.array([-9.0, -5.0])))
        >>> shares.round(3).tolist(), round(rarity.score(-math.log(0.1)), 2)
        ([0.1, 0.5], -9.0)
        >>> rarity.of(np.array([-20.0, -np.inf, np.nan])).round(1).tolist()
        [501.3, inf, inf]
    """

    own: Float64[np.ndarray, " generated"]

    @classmethod
    def among(cls, generated: Float[np.ndarray, " generated"]) -> "Rarity":
        """The rarity that the log-densities of a density's own rows define."""
        return cls(np.sort(finite(generated)))

    def of(self, scores: Float[np.ndarray, " rows"]) -> Float64[np.ndarray, " rows"]:
        """Minus the logarithm of the share of own rows below each log-density."""
        logs = np.minimum(without_nan(scores), self.own[-1])
        base, deepest, unit = self._tail()
        with np.errstate(over="ignore"):
            below = np.searchsorted(self.own, logs - _gap(logs), side="left")
            outer = deepest + (base - logs) / unit
        inner = np.minimum(-np.log(np.maximum(below, 0.5) / len(self.own)), deepest)
        return np.where(logs < base - _gap(base), outer, inner)

    def score(self, rarity: float) -> float:
        """A log-density below which lie the rows that are rarer, and no others."""
        base, deepest, unit = self._tail()
        if rarity <= deepest:
            return quantile_between(self.own, math.exp(-rarity))
        return float(base - (rarity - deepest) * unit - _gap(base))

    def _tail(self) -> tuple[float, float, float]:
        """Where the lowest own rows begin, how rare that is, and the log-density per rarity."""
        base = self.own[len(self.own) // _LOWEST]
        below = int(np.searchsorted(self.own, base - _gap(base), side="left"))
        depth = float(np.mean(base - self.own[:below])) if below else 0.0
        rarest = -math.log(max(below, 0.5) / len(self.own))
        return float(base), rarest, max(depth, float(_gap(base)))


@final
@dataclasses.dataclass(frozen=True)
class Tail:
    """Which share of the rows is rarer than what.

    Attributes:
        edges: Rarities, increasing from above zero.
        depths: Minus the logarithm of the share of rows beyond each; straight lines between
            them, from zero at zero, and beyond the last.

    Example:
        >>> Tail((1.0, 3.0), (2.0, 3.0)).rarity(math.exp(-2.5))
        2.0
        >>> Tail.from_dict(Tail((1.0, 3.0), (2.0, 3.0)).to_dict()).rarity(math.exp(-3.5))
        4.0
    """

    edges: tuple[float, ...]
    depths: tuple[float, ...]

    def __post_init__(self) -> None:
        lines = (0.0, *self.edges), (0.0, *self.depths)
        steps = [b - a for line in lines for a, b in itertools.pairwise(line)]
        is_paired = 0 < len(self.edges) == len(self.depths)
        if not (is_paired and all(math.isfinite(s) and s > 0 for s in steps)):
            raise InputError("tail must have as many edges as depths, finite and increasing")

    def rarity(self, share: float) -> float:
        """The rarity that a share of the rows exceeds."""
        edges, depths, wanted = (0.0, *self.edges), (0.0, *self.depths), -math.log(share)
        if wanted <= depths[-1]:
            return float(np.interp(wanted, depths, edges))
        slope = (edges[-1] - edges[-2]) / (depths[-1] - depths[-2])
        return edges[-1] + (wanted - depths[-1]) * slope

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {"edges": list(self.edges), "depths": list(self.depths)}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Tail":
        """Read back what ``to_dict`` wrote; the content may be hostile."""
        edges, depths = (description[name] for name in ("edges", "depths"))
        return cls(tuple(float(edge) for edge in edges), tuple(float(d) for d in depths))


def edges_for(rows: int, noise: float) -> Edges:
    """Where bins are cut for a public number of rows and this noise on each count.

    Example:
        >>> [len(edges_for(rows, 10.0)) for rows in (100, 3_000, 40_000)]
        [4, 6, 8]
    """
    worth = sum(rows * share >= _WORTH * noise for share in SHARES)
    return -np.log(SHARES[: max(worth, _FEWEST)])


def bins_of(rarities: Float64[np.ndarray, " rows"], edges: Edges) -> Int64[np.ndarray, " rows"]:
    """The bin of each row: how many edges it exceeds.

    Example:
        >>> bins_of(np.array([0.5, 1.0, 1.5, np.inf]), np.array([1.0, 2.0])).tolist()
        [0, 0, 1, 2]
    """
    return np.searchsorted(edges, rarities, side="left").astype(np.int64)


def noisy_tail(
    rarities: Float64[np.ndarray, " rows"], *, noise: float, entropy: Entropy, purpose: str
) -> Release[Tail]:
    """Which share of the rows is rarer than what.

    Args:
        rarities: One per row, infinite for rows that have no density; each computed from its
            row alone.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        One Gaussian mechanism on the number of rows in each bin, with the L2 sensitivity of
        ``COUNTS``: a row is in exactly one bin. Bins follow from the noise and the public
        number of rows, and the tail from the noisy counts.

    Example:
        >>> rarities = np.random.default_rng().exponential(size=100_000)
        >>> tail = noisy_tail(
        ...     rarities, noise=5.0, entropy=Entropy.from_os(), purpose="threshold"
        ... ).value
        >>> abs(tail.rarity(0.05) - math.log(20)) < 0.2
        True
    """
    rows = len(rarities)
    edges = edges_for(rows, noise)
    release = noisy_marginals(
        bins_of(rarities, edges)[:, None],
        (len(edges) + 1,),
        noise=noise,
        entropy=entropy,
        purpose=purpose,
    )
    tail = fitted_tail(release.value[0], edges, rows=rows, noise=noise)
    return Release(tail, release.event, release.stamp)


def fitted_tail(
    counts: Float64[np.ndarray, " bins"], edges: Edges, *, rows: int, noise: float
) -> Tail:
    """The likeliest tail given noisy counts; close to the density's own if they say little.

    Counts have the variance of the noise and of the rows. A priori the logarithm of the slope
    is a random walk: normal with deviation 1 at the start, and with variance 1 per unit of
    rarity from there on. So without any rows the tail is that of a density that is right.

    Args:
        counts: One more than there are edges.
        edges: Rarities at which bins are cut.
        rows: The public number of rows.
        noise: Standard deviation of the noise on each count.

    Example:
        >>> edges = np.array([1.0, 2.0])
        >>> shares = -np.diff([1.0, math.exp(-2), math.exp(-4), 0.0])
        >>> tail = fitted_tail(1e6 * shares, edges, rows=10**6, noise=1.0)
        >>> [round(depth, 2) for depth in tail.depths]
        [2.0, 4.0]
    """
    widths = np.diff(edges, prepend=0.0)
    apart = np.diff(edges - widths / 2)

    def surprise(logs: Float64[np.ndarray, " edges"]) -> float:
        expected = rows * _bin_shares(np.exp(logs) * widths)
        variance = noise**2 + expected
        misfit = ((counts - expected) ** 2 / variance + np.log(variance)).sum()
        return float(misfit + logs[0] ** 2 + (np.diff(logs) ** 2 / apart).sum()) / 2

    bounds = [tuple(np.log(_SLOPES))] * len(edges)
    found = minimize(surprise, np.zeros(len(edges)), method="L-BFGS-B", bounds=bounds).x
    slopes = np.clip(np.exp(found), *_SLOPES)
    return Tail(tuple(edges.tolist()), tuple(np.cumsum(slopes * widths).tolist()))


def _bin_shares(steps: Edges) -> Float64[np.ndarray, " bins"]:
    """The share of rows in each bin if the tail falls by these steps of its logarithm."""
    beyond = np.exp(-np.cumsum(steps))
    return -np.diff(np.concatenate([[1.0], beyond, [0.0]]))


def _gap(scores: Any) -> Any:
    """By how much log-densities of one row may differ from batch to batch."""
    return CLOSE * (1 + np.abs(scores))

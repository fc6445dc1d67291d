"""Bend a column into a Gaussian, given how many rows lie below each of many edges."""

import dataclasses
import math
from typing import final

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from dpflows.flows.normalisers import Curve

_TAIL_KNOTS = 8
#: A tail that reaches its bound has lost this many factors of e there.
_LEAST_FALL = 4.0
_LEAST_MASS = 1e-6
_LEAST_LOG_MASS = -700.0

Edges = Float[np.ndarray, " edges"]
Knots = Float[np.ndarray, " knots"]


def gaussian_curve(edges: Edges, below: Edges, *, parts: int) -> Curve:
    """The curve that turns a column of this distribution into a standard Gaussian, nearly.

    Knots are the edges nearest to ``parts`` quantiles. Beyond the outermost the tails are
    taken to fall off exponentially, at the rate seen just inside, so that a distant bound
    does not squeeze the rows next to it.

    Args:
        edges: Increasing places.
        below: How many rows lie below each; increases from zero, and may be noisy.
        parts: How many parts of equal mass to tell apart.

    Guarantee:
        Post-processing of ``below``.

    Example:
        >>> edges = np.linspace(0, 1, 65)
        >>> curve = gaussian_curve(edges, 100 * edges, parts=8)
        >>> bool(abs(curve.value(np.array([0.5]))[0]) < 0.05)
        True
    """
    column = _Column(edges, below / below[-1])
    inner = column.quantiles(parts)
    left, right = column.tail(int(inner[0]), -1), column.tail(int(inner[-1]), 1)
    x = np.concatenate([left[0][::-1], edges[inner], right[0]])
    z = np.concatenate([left[1][::-1], ndtri(column.mass[inner]), right[1]])
    return Curve(x, _climbing(z))


@final
@dataclasses.dataclass(frozen=True)
class _Column:
    edges: Edges
    mass: Edges

    def quantiles(self, parts: int) -> Int[np.ndarray, " knots"]:
        """Indices at equal steps of mass; a bin that holds several steps keeps both sides."""
        steps = np.arange(1, parts) / parts
        after = np.searchsorted(self.mass, steps).clip(1, len(self.edges) - 2)
        heavy = self.mass[after] - self.mass[after - 1] > 1 / parts
        found = np.unique(np.concatenate([after, (after - 1)[heavy]]))
        found = found[(self.mass[found] > 0) & (self.mass[found] < 1) & (found > 0)]
        kept = found[np.diff(self.mass[found], prepend=-1.0) > _LEAST_MASS]
        return kept if len(kept) else np.array([len(self.edges) // 2])

    def tail(self, outer: int, side: int) -> tuple[Knots, Knots]:
        """Knots and heights from beyond the outermost quantile to the bound."""
        mass = self.mass[outer] if side < 0 else 1 - self.mass[outer]
        left_over = float(np.clip(mass, _LEAST_MASS, 1 - _LEAST_MASS))
        length = abs(self.edges[-1 if side > 0 else 0] - self.edges[outer])
        scale = min(self._tail_scale(outer, left_over, side), length / _LEAST_FALL)
        steps = scale * (2.0 ** np.arange(_TAIL_KNOTS) - 0.5)
        away = np.append(steps[steps < 0.9 * length], length)
        log_mass = np.maximum(math.log(left_over) - away / scale, _LEAST_LOG_MASS)
        return self.edges[outer] + side * away, side * -ndtri(np.exp(log_mass))

    def _tail_scale(self, outer: int, left_over: float, side: int) -> float:
        """The length over which the tail falls by e, from where it was up to twice as heavy."""
        heavier = min(2 * left_over, (1 + left_over) / 2)
        place = np.searchsorted(self.mass, heavier if side < 0 else 1 - heavier)
        inside = self.edges[place.clip(0, len(self.edges) - 1)]
        fall = math.log(heavier / left_over)
        return float(max(abs(self.edges[outer] - inside) / fall, self.edges[1] - self.edges[0]))


def _climbing(z: Knots) -> Knots:
    """Heights that increase by at least a little."""
    return np.maximum.accumulate(z) + 1e-4 * np.arange(len(z))

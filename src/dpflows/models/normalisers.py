"""Normalisers: maps that bring columns to comparable units, in double precision on the host.

Columns far from zero (dates, amounts) would lose digits in float32, so rows are normalised
before they reach the model. ``Scaling`` is affine; ``Curves`` transform each column to
approximately a standard Gaussian, given the number of rows below each of many edges.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import final

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import ndtri

from dpflows.errors import InputError

Rows = Float[np.ndarray, "n d"]
Knots = Float[np.ndarray, " k"]


class Normaliser(eqx.Module):
    """An increasing map of every column by itself."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of columns."""

    @abc.abstractmethod
    def apply(self, x: Rows) -> Rows:
        """Normalise rows in their original units."""

    @abc.abstractmethod
    def undo(self, z: Rows) -> Rows:
        """Convert normalised rows back to their original units."""

    @abc.abstractmethod
    def log_det(self, x: Rows) -> Float[np.ndarray, " n"]:
        """Log-determinant of ``apply`` at each row."""

    @abc.abstractmethod
    def then(self, scaling: "Scaling") -> "Normaliser":
        """This map followed by a scaling, as one map."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays from which ``normaliser_from`` restores it."""


@final
class Scaling(Normaliser):
    """``z = (x - shift) / scale``.

    Example:
        >>> unit = Scaling([1.0], [2.0])
        >>> rows = np.array([[3.0]])
        >>> unit.apply(rows).tolist(), unit.log_det(rows).round(3).tolist()
        ([[1.0]], [-0.693])
    """

    shift: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    def __init__(
        self,
        shift: Sequence[float] | np.ndarray | Array,
        scale: Sequence[float] | np.ndarray | Array,
    ) -> None:
        self.shift = np.asarray(shift, dtype=float)
        self.scale = np.asarray(scale, dtype=float)

    def __check_init__(self) -> None:
        if self.shift.ndim != 1 or self.shift.shape != self.scale.shape:
            raise InputError("shift and scale must be vectors of one length; check the normaliser")
        if not (np.isfinite(self.shift).all() and np.isfinite(self.scale).all()):
            raise InputError("shift and scale must be finite; check the normaliser")
        if not (self.scale > 0).all():
            raise InputError("scale must be positive in every column; check the normaliser")

    @classmethod
    def identity(cls, dim: int) -> "Scaling":
        """The identity on ``dim`` columns."""
        return cls(np.zeros(dim), np.ones(dim))

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.shift)

    def apply(self, x: Rows) -> Rows:
        """Shift and scale."""
        return (x - self.shift) / self.scale

    def undo(self, z: Rows) -> Rows:
        """Scale and shift back."""
        return z * self.scale + self.shift

    def log_det(self, x: Rows) -> Float[np.ndarray, " n"]:
        """The same for every row: minus the sum of the log-scales."""
        return np.full(len(x), -np.log(self.scale).sum())

    def then(self, scaling: "Scaling") -> "Scaling":
        """Both scalings in one."""
        return Scaling(self.shift + self.scale * scaling.shift, self.scale * scaling.scale)

    def arrays(self) -> dict[str, np.ndarray]:
        """The shift and the scale."""
        return {"shift": self.shift, "scale": self.scale}


@final
class Curve(eqx.Module):
    """One column's increasing rational-quadratic spline, continued by straight lines.

    Monotone with a continuous derivative and a closed inverse (Gregory and Delbourgo,
    1982). The slope at a knot is the harmonic mean of the slopes beside it.

    Example:
        >>> curve = Curve(np.array([0.0, 1.0, 2.0]), np.array([0.0, 3.0, 4.0]))
        >>> curve.value(np.array([1.0, 5.0])).tolist()
        [3.0, 7.0]
    """

    x: Knots
    z: Knots
    slope: Knots

    def __init__(self, x: Knots, z: Knots) -> None:
        self.x = np.asarray(x, dtype=float)
        self.z = np.asarray(z, dtype=float)
        _require_increasing(self.x, self.z)
        self.slope = _knot_slopes(np.diff(self.z) / np.diff(self.x))

    def value(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The curve's height."""
        place = self._place(x, self.x)
        inner = place.rise * (place.secant * place.t**2 + place.left * place.t * (1 - place.t))
        bent = place.z + inner / place.bend
        return np.where(place.outside, self._line(x, self.x, self.z, self.slope), bent)

    def log_slope(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The logarithm of the curve's derivative."""
        place, secant = self._place(x, self.x), self._place(x, self.x).secant
        t = place.t
        top = place.right * t**2 + 2 * secant * t * (1 - t) + place.left * (1 - t) ** 2
        ends = np.where(x < self.x[0], self.slope[0], self.slope[-1])
        return np.where(place.outside, np.log(ends), 2 * np.log(secant / place.bend) + np.log(top))

    def inverse(self, z: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Where the curve has the given height."""
        at = self._place(z, self.z)
        up = z - at.z
        common = up * (at.left + at.right - 2 * at.secant)
        a = at.rise * (at.secant - at.left) + common
        b = at.rise * at.left - common
        c = -at.secant * up
        root = np.sqrt(np.maximum(b**2 - 4 * a * c, 0.0))
        bent = at.x + 2 * c / (-b - root) * at.width
        return np.where(at.outside, self._line(z, self.z, self.x, 1 / self.slope), bent)

    def _place(self, value: Float[np.ndarray, " n"], knots: Knots) -> "_Place":
        index = np.clip(np.searchsorted(knots, value, side="right") - 1, 0, len(knots) - 2)
        return _Place(self, index, value, knots)

    @staticmethod
    def _line(
        value: Float[np.ndarray, " n"], knots: Knots, heights: Knots, slopes: Knots
    ) -> Float[np.ndarray, " n"]:
        end = np.where(value < knots[0], 0, -1)
        return heights[end] + (value - knots[end]) * slopes[end]


class _Place:
    """The interval of a curve that contains each value."""

    def __init__(
        self, curve: Curve, index: np.ndarray, value: Float[np.ndarray, " n"], knots: Knots
    ) -> None:
        self.x, self.z = curve.x[index], curve.z[index]
        self.width, self.rise = curve.x[index + 1] - self.x, curve.z[index + 1] - self.z
        self.left, self.right = curve.slope[index], curve.slope[index + 1]
        self.secant = self.rise / self.width
        self.outside = (value < knots[0]) | (value > knots[-1])
        self.t = np.clip((value - knots[index]) / (knots[index + 1] - knots[index]), 0.0, 1.0)
        stray = self.left + self.right - 2 * self.secant
        self.bend = self.secant + stray * self.t * (1 - self.t)


@final
class Curves(Normaliser):
    """A monotone curve for each column.

    Example:
        >>> curves = Curves([Curve(np.array([0.0, 1.0, 4.0]), np.array([-1.0, 0.0, 1.0]))])
        >>> rows = np.array([[0.5], [3.0]])
        >>> bool(np.allclose(curves.undo(curves.apply(rows)), rows))
        True
    """

    curves: tuple[Curve, ...]

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.curves = tuple(curves)

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.curves)

    def apply(self, x: Rows) -> Rows:
        """Each column through its curve."""
        return np.stack([c.value(x[:, j]) for j, c in enumerate(self.curves)], axis=1)

    def undo(self, z: Rows) -> Rows:
        """Each column back through its curve."""
        return np.stack([c.inverse(z[:, j]) for j, c in enumerate(self.curves)], axis=1)

    def log_det(self, x: Rows) -> Float[np.ndarray, " n"]:
        """The sum of the log-slopes."""
        slopes = [c.log_slope(x[:, j]) for j, c in enumerate(self.curves)]
        return np.sum(slopes, axis=0)

    def then(self, scaling: Scaling) -> "Curves":
        """Curves with rescaled heights."""
        heights = zip(self.curves, scaling.shift, scaling.scale, strict=True)
        return Curves([Curve(curve.x, (curve.z - a) / b) for curve, a, b in heights])

    def arrays(self) -> dict[str, np.ndarray]:
        """All knots, one column after the other."""
        return {
            "curve-knots": np.concatenate([curve.x for curve in self.curves]),
            "curve-heights": np.concatenate([curve.z for curve in self.curves]),
            "curve-lengths": np.array([len(curve.x) for curve in self.curves]),
        }


def normaliser_from(arrays: dict[str, np.ndarray]) -> Normaliser:
    """Restore a normaliser from ``arrays``, whose content may be hostile.

    Example:
        >>> normaliser_from(Scaling.identity(2).arrays()).dim
        2
    """
    if "curve-lengths" not in arrays:
        return Scaling(arrays["shift"], arrays["scale"])
    lengths, knots, heights = (arrays[f"curve-{part}"] for part in ("lengths", "knots", "heights"))
    if (
        lengths.ndim != 1
        or not (lengths >= 2).all()
        or not (lengths.sum() == knots.size == heights.size and knots.ndim == heights.ndim == 1)
    ):
        raise InputError("the curves in the file are inconsistent")
    cuts = np.cumsum(lengths)[:-1]
    parts = zip(np.split(knots, cuts), np.split(heights, cuts), strict=True)
    return Curves([Curve(x, z) for x, z in parts])


def _require_increasing(x: Knots, z: Knots) -> None:
    if x.ndim != 1 or x.shape != z.shape or len(x) < 2:
        raise InputError("a curve needs two knots or more, with a height for each")
    if not (np.isfinite(x).all() and np.isfinite(z).all()):
        raise InputError("a curve's knots and heights must be finite")
    if not ((np.diff(x) > 0).all() and (np.diff(z) > 0).all()):
        raise InputError("a curve's knots and heights must increase")


def _knot_slopes(secants: Float[np.ndarray, " pieces"]) -> Knots:
    inner = 2 / (1 / secants[:-1] + 1 / secants[1:])
    return np.concatenate([secants[:1], inner, secants[-1:]])


_TAIL_KNOTS = 8
#: A tail that reaches its bound has lost this many factors of e there.
_LEAST_FALL = 4.0
_LEAST_MASS = 1e-6
_LEAST_LOG_MASS = -700.0

Edges = Float[np.ndarray, " edges"]


def gaussian_curve(edges: Edges, below: Edges, *, parts: int) -> Curve:
    """The curve that maps a column of this distribution approximately to a standard Gaussian.

    Knots are the edges nearest to ``parts`` quantiles. Beyond the outermost, tails are assumed to
    decay exponentially, at the rate observed just inside, so that a distant bound does not compress
    the rows next to it.

    Args:
        edges: Increasing positions.
        below: How many rows lie below each; increases from zero, and may be noisy.
        parts: Number of parts of equal mass.

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

    def tail(self, outer: int, side: int) -> tuple[Edges, Edges]:
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


def _climbing(z: Edges) -> Edges:
    """Heights made strictly increasing."""
    return np.maximum.accumulate(z) + 1e-4 * np.arange(len(z))

"""Plots of anomaly detection: ROC curves, histograms of scores, and a map of decisions.

All of them are drawn from real rows, so they are NOT PRIVATE and say so in their titles.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from dpflows.errors import InputError
from dpflows.evaluation.plots import DOTS_PER_INCH, SURFACE_CELLS, Limits, Points
from dpflows.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scores = Float[np.ndarray, " rows"]
Normal = Bool[np.ndarray, " rows"]

_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)))
_MARKERS = "osD^vP*Xh<>"
#: Dark to light, so that curves differ in grey as well.
_COLOURS = "cividis"
_BINS = 60
#: Decisions beyond this far from the boundary look alike.
_FAR = 50.0


def roc_figure(
    curves: Mapping[str, tuple[Scores, Normal]],
    path: str | os.PathLike[str],
    *,
    title: str = "ROC curves of anomaly detection, NOT PRIVATE",
) -> None:
    """Draw ROC curves as a PNG file, with the area under each in the legend.

    Anomalies are the positive class. Curves whose names differ only after a comma or in brackets
    are a family and share a line style.

    Guarantee:
        None: computed from the rows that were scored. The title says NOT PRIVATE.

    Args:
        curves: By name the scores, higher for more normal rows, and which rows are normal.
            Infinite scores are in order; NaN counts as the lowest.
        path: The PNG file to write; it is written atomically.
        title: Of the picture.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/roc.png"
        >>> scores, normal = np.array([-9.0, -1.0, -2.0]), np.array([False, True, True])
        >>> roc_figure({"ours": (scores, normal)}, path)
        >>> os.path.getsize(path) > 0
        True
    """
    if not curves:
        raise InputError("curves must hold at least one name with its scores and normal rows")
    figure, axis = _figure((7.2, 5.2))
    axis.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    for name, style in _styles(list(curves)).items():
        alarms, found, area = roc(*curves[name])
        axis.plot(alarms, found, label=f"{name}: {area:.3f}", **style)
    axis.set(
        xlabel="share of normal rows that are flagged",
        ylabel="share of anomalies that are found",
        title=title,
        aspect="equal",
    )
    axis.legend(title="area under the curve", loc="lower right", fontsize="small")
    _write(figure, path)


def roc(scores: Scores, normal: Normal) -> tuple[np.ndarray, np.ndarray, float]:
    """False alarms, found anomalies at every threshold, and the area under their curve.

    Example:
        >>> roc(np.array([-np.inf, -1.0, -2.0]), np.array([False, True, True]))[2]
        1.0
    """
    from sklearn.metrics import auc, roc_curve

    _check(scores, normal)
    # ranks: infinite scores are as good as others
    ranks = rankdata(-np.where(np.isnan(scores), -np.inf, scores))
    alarms, found, _ = roc_curve(~normal, ranks)
    return alarms, found, float(auc(alarms, found))


def score_histograms(
    scores: Scores, normal: Normal, threshold: float | None, path: str | os.PathLike[str]
) -> None:
    """Draw how log-densities of normal rows and of anomalies are spread, as a PNG file.

    Guarantee:
        None: drawn from the rows that were scored. The title says NOT PRIVATE.

    Args:
        scores: Log-densities; those of rows outside the bounds are infinite and counted
            in the legend.
        normal: Which rows are normal.
        threshold: Below which rows are flagged, or ``None`` to draw no line.
        path: The PNG file to write; it is written atomically.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/scores.png"
        >>> score_histograms(np.array([-9.0, -1.0]), np.array([False, True]), -5.0, path)
        >>> os.path.getsize(path) > 0
        True
    """
    _check(scores, normal)
    figure, axis = _figure((7.2, 4.2))
    edges = _edges(scores, threshold)
    looks = {"normal": ("0.55", ""), "anomaly": ("tab:red", "///")}
    for kind, (colour, hatch) in looks.items():
        part = scores[normal if kind == "normal" else ~normal]
        _histogram(axis, part, edges, kind, colour, hatch)
    if threshold is not None:
        axis.axvline(threshold, color="black", linestyle="--", label=f"threshold {threshold:.3g}")
    axis.set(
        xlabel="log-density (the first bar includes all lower values)", ylabel="share of each kind"
    )
    axis.set_title("Log-densities of real rows, NOT PRIVATE")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    _write(figure, path)


def decision_map(
    decide: Callable[[np.ndarray], Any],
    rows: Points,
    anomalies: Points,
    limits: Limits,
    path: str | os.PathLike[str],
) -> None:
    """Draw the decisions of a detector of two columns, as a PNG file.

    Guarantee:
        None: it shows rows. The title says NOT PRIVATE.

    Args:
        decide: A number for each row of an (n, 2) array, not negative for normal rows,
            such as ``decision_function`` or ``predict``.
        rows: Normal rows to show.
        anomalies: Other rows to show.
        limits: ``((left, right), (bottom, top))``.
        path: The PNG file to write; it is written atomically.

    Example:
        >>> import tempfile
        >>> path, rows = f"{tempfile.mkdtemp()}/map.png", np.zeros((5, 2))
        >>> side = (-3.0, 3.0)
        >>> decision_map(lambda z: 2 - (z**2).sum(1), rows, rows + 2, (side, side), path)
        >>> os.path.getsize(path) > 0
        True
    """
    figure, axis = _figure((6.2, 5.6))
    across, up = (np.linspace(*ends, SURFACE_CELLS) for ends in limits)
    surface = _decisions(decide, across, up)
    axis.contourf(across, up, surface, levels=[-np.inf, 0, np.inf], colors=["0.82", "white"])
    if (surface < 0).any() and (surface >= 0).any():
        axis.contour(across, up, surface, levels=[0], colors="black", linewidths=1.2)
    axis.plot(*rows.T, ".", color="tab:blue", markersize=3, label="normal rows")
    axis.plot(*anomalies.T, "x", color="tab:red", markersize=5, label="anomalies")
    axis.set(xlim=limits[0], ylim=limits[1], aspect="equal")
    axis.set_title("Region of anomalies (grey), NOT PRIVATE")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    _write(figure, path)


def _decisions(
    decide: Callable[[np.ndarray], Any], across: np.ndarray, up: np.ndarray
) -> np.ndarray:
    """Decisions over a grid; one that is no number is an anomaly, as it is for a detector."""
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    found = np.nan_to_num(np.asarray(decide(grid), np.float64), nan=-_FAR)
    return np.clip(found, -_FAR, _FAR).reshape(len(up), len(across))


def _check(scores: np.ndarray, normal: np.ndarray) -> None:
    if len(scores) != len(normal) or normal.all() or not normal.any():
        raise InputError("normal must have one entry for each score, and rows of both kinds")


def _styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """A style of line for each family, and a shade and a marker for each curve."""
    import matplotlib

    families = list(dict.fromkeys(map(_family, names)))
    shades = matplotlib.colormaps[_COLOURS](np.linspace(0, 0.9, len(names)))
    return {
        name: {
            "linestyle": _DASHES[families.index(_family(name)) % len(_DASHES)],
            "color": shade,
            "linewidth": 1.6,
            "marker": _MARKERS[index % len(_MARKERS)],
            "markevery": (0.02 + 0.04 * (index % 5), 0.2),
            "markersize": 5,
        }
        for index, (name, shade) in enumerate(zip(names, shades, strict=True))
    }


def _family(name: str) -> str:
    return name.split(",")[0].split("(")[0].strip()


def _edges(scores: np.ndarray, threshold: float | None) -> np.ndarray:
    finite = scores[np.isfinite(scores)]
    if len(finite) == 0:
        raise InputError("scores must hold finite numbers; all rows are outside the bounds")
    low, high = np.quantile(finite, [0.01, 1.0])
    low = low if threshold is None else min(low, threshold)
    margin = 0.03 * max(high - low, 1e-6)
    return np.linspace(low - margin, high + margin, _BINS + 1)


def _histogram(
    axis: "Axes", part: np.ndarray, edges: np.ndarray, kind: str, colour: str, hatch: str
) -> None:
    inside = part[np.isfinite(part)]
    counts = np.histogram(np.maximum(inside, edges[0]), edges)[0] / len(part)
    outside = len(part) - len(inside)
    label = f"{kind} ({len(part):,})" + (f", {outside:,} outside the bounds" if outside else "")
    style: dict[str, Any] = {"fill": True, "alpha": 0.5, "facecolor": colour, "edgecolor": colour}
    axis.stairs(counts, edges, label=label, hatch=hatch, **style)


def _figure(size: tuple[float, float]) -> "tuple[Figure, Axes]":
    # Figure and its own canvas instead of pyplot: no global state, no display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _write(figure: "Figure", path: str | os.PathLike[str]) -> None:
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)

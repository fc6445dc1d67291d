"""Plots of densities, of synthetic rows, of figures against epsilon, and of anomaly detection.

A plot that shows real rows, or figures computed from them, is NOT PRIVATE and says so in its title.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from dpflows.errors import InputError
from dpflows.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Points = Float[np.ndarray, "_ 2"]
Limits = tuple[tuple[float, float], tuple[float, float]]

#: Perceptually uniform, readable in grey and by colour-blind readers.
COLOURS = "magma"
SURFACE_CELLS = 240
DOTS_PER_INCH = 150


def density_figure(
    real: Points,
    synthetic: Points,
    log_density: Callable[[np.ndarray], Any],
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    names: tuple[str, str] = ("x", "y"),
) -> None:
    """Draw real rows, synthetic rows and the model's density, as a PNG file.

    The three panels have the same axes and the same colour scale, density per unit
    area, so that equal colours mean equal densities.

    Guarantee:
        None: the first panel shows real rows, and without ``limits`` the axes end
        where the rows do. The title says NOT PRIVATE.

    Args:
        real: Rows of the private table.
        synthetic: Rows drawn from the model.
        log_density: The model's log density of each row of an (n, 2) array.
        path: The PNG file to write; it is written atomically.
        limits: ``((left, right), (bottom, top))``; by default what holds all rows.
        names: The names of the two columns.

    Example:
        >>> import tempfile
        >>> rows = np.random.default_rng().normal(size=(500, 2))
        >>> path = f"{tempfile.mkdtemp()}/density.png"
        >>> density_figure(rows, rows, lambda z: -0.5 * (z**2).sum(1) - np.log(2 * np.pi), path)
        >>> os.path.getsize(path) > 0
        True
    """
    _check(real, "real")
    _check(synthetic, "synthetic")
    window = limits or _limits(np.concatenate([real, synthetic]))
    panels = {
        f"real rows ({len(real):,}), NOT PRIVATE": _histogram(real, window),
        f"synthetic rows ({len(synthetic):,})": _histogram(synthetic, window),
        "density of the model": _surface(log_density, window),
    }
    figure = _draw(panels, window, names)
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)


def _check(rows: np.ndarray, name: str) -> None:
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0:
        raise InputError(f"{name} must be an (n, 2) array with rows, got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise InputError(f"{name} must hold only finite numbers; remove other rows first")


def _limits(rows: np.ndarray) -> Limits:
    low, high = rows.min(axis=0), rows.max(axis=0)
    margin = np.maximum(0.04 * (high - low), 1e-6)
    (left, bottom), (right, top) = low - margin, high + margin
    return (float(left), float(right)), (float(bottom), float(top))


def _histogram(rows: np.ndarray, window: Limits) -> np.ndarray:
    # about one cell per four rows keeps narrow shapes sharp without speckle
    cells = int(np.clip(np.sqrt(len(rows)) / 2, 30, 120))
    counts = np.histogram2d(rows[:, 0], rows[:, 1], bins=cells, range=window)[0]
    (left, right), (bottom, top) = window
    return counts.T / (len(rows) * (right - left) * (top - bottom) / cells**2)


def _surface(log_density: Callable[[np.ndarray], Any], window: Limits) -> np.ndarray:
    middles = (np.arange(SURFACE_CELLS) + 0.5) / SURFACE_CELLS
    across, up = (low + (high - low) * middles for low, high in window)
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    heights = np.exp(np.asarray(log_density(grid), dtype=np.float64))
    if not np.isfinite(heights).all():
        raise InputError("log_density must return numbers below infinity; fit the model again")
    return heights.reshape(SURFACE_CELLS, SURFACE_CELLS)


def _draw(panels: dict[str, np.ndarray], window: Limits, names: tuple[str, str]) -> "Figure":
    # Figure and its own canvas instead of pyplot: no global state, no display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True)
    brightest = max(float(np.quantile(values, 0.999)) for values in panels.values())
    scale = PowerNorm(0.5, vmin=0.0, vmax=brightest or 1.0)
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        image = _panel(axis, values, window, scale)
        axis.set_title(title)
        axis.set_xlabel(names[0])
    axes[0].set_ylabel(names[1])
    figure.colorbar(image, ax=axes, label="density", extend="max")
    return figure


def _panel(axis: "Axes", values: np.ndarray, window: Limits, scale: Any) -> Any:
    (left, right), (bottom, top) = window
    return axis.imshow(
        values,
        origin="lower",
        extent=(left, right, bottom, top),
        aspect="equal" if 0.5 < (right - left) / (top - bottom) < 2 else "auto",
        cmap=COLOURS,
        norm=scale,
        interpolation="nearest",
    )


_MARKERS = "osD^vP*Xh<>"


class Curve(NamedTuple):
    """Means and deviations of one method at each epsilon; infinite means no privacy."""

    label: str
    epsilons: Sequence[float]
    means: Sequence[float]
    deviations: Sequence[float]


def against_epsilon(
    curves: Sequence[Curve],
    path: str | os.PathLike[str],
    *,
    label: str,
    title: str,
    over: str = "epsilon",
) -> None:
    """Draw curves over epsilon as a PNG file; methods without privacy are level lines.

    Args:
        curves: One per method.
        path: The PNG file to write.
        label: What the figures are.
        title: Of the picture.
        over: What the curves run over, if not epsilon.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/curves.png"
        >>> against_epsilon([Curve("ours", [1, 2], [3, 4], [0, 0])], path, label="fit", title="")
        >>> os.path.getsize(path) > 0
        True
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for index, curve in enumerate(curves):
        _draw_curve(axis, curve, f"C{index % 10}", _MARKERS[index % len(_MARKERS)])
    axis.set(xlabel=over, ylabel=label)
    axis.set_title(title, loc="left", fontsize="medium")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)


def _draw_curve(axis: "Axes", curve: Curve, colour: str, marker: str) -> None:
    if all(math.isinf(epsilon) for epsilon in curve.epsilons):
        axis.axhline(curve.means[0], color=colour, linestyle=":", label=curve.label)
        return
    style = "--" if curve.label.endswith("in print") else "-"
    axis.errorbar(
        curve.epsilons,
        curve.means,
        yerr=curve.deviations,
        color=colour,
        marker=marker,
        linestyle=style,
        capsize=3,
        label=curve.label,
    )


Rows = Float[np.ndarray, "_ columns"]

_COLUMN_BINS, _CELLS = 60, 90
_ACROSS = 5


def column_histograms(
    real: Rows, synthetic: Mapping[str, Rows], path: str | os.PathLike[str], *, title: str
) -> None:
    """Every column's histogram, each method's rows over the real ones, as a PNG file.

    Args:
        real: Rows of the private table.
        synthetic: Rows drawn from models, by the models' names.
        path: The PNG file to write.
        title: Of the picture; NOT PRIVATE is added.

    Example:
        >>> import tempfile
        >>> rows = np.random.default_rng().normal(size=(50, 2))
        >>> path = f"{tempfile.mkdtemp()}/columns.png"
        >>> column_histograms(rows, {"model": rows}, path, title="columns")
        >>> os.path.getsize(path) > 0
        True
    """
    columns = real.shape[1]
    lines = -(-columns // _ACROSS)
    figure = _figure(14, 2.2 * lines * len(synthetic) + 0.8)
    bands = figure.subfigures(len(synthetic), 1, squeeze=False)[:, 0]
    figure.suptitle(f"{title} (real rows: NOT PRIVATE)")
    for band, (name, rows) in zip(bands, synthetic.items(), strict=True):
        band.suptitle(name, x=0.01, ha="left", fontsize="medium")
        axes = band.subplots(lines, _ACROSS, squeeze=False).flatten()
        for column, axis in enumerate(axes):
            _column_histogram(axis, real, rows, column)
    _save(figure, path)


def principal_planes(
    real: Rows,
    synthetic: Mapping[str, Rows],
    path: str | os.PathLike[str],
    *,
    title: str,
    across: int,
) -> None:
    """Density of rows on the real rows' two principal components, as a PNG file.

    Args:
        real: Rows of the private table; they define the plane.
        synthetic: Rows drawn from models, by the models' names.
        path: The PNG file to write.
        title: Of the picture; NOT PRIVATE is added.
        across: How many pictures stand side by side, the real rows' not counted.

    Example:
        >>> import tempfile
        >>> rows = np.random.default_rng().normal(size=(50, 3))
        >>> path = f"{tempfile.mkdtemp()}/planes.png"
        >>> principal_planes(rows, {"model": rows}, path, title="planes", across=1)
        >>> os.path.getsize(path) > 0
        True
    """
    middle = real.mean(axis=0)
    plane = np.linalg.svd(real - middle, full_matrices=False)[2][:2].T
    flat = {name: (rows - middle) @ plane for name, rows in synthetic.items()}
    truth = (real - middle) @ plane
    low, high = np.quantile(truth, [0.001, 0.999], axis=0)
    window = [(low[0], high[0]), (low[1], high[1])]
    lines = -(-len(flat) // across)
    figure = _figure(3.2 * (across + 1), 3 * lines + 0.6)
    figure.suptitle(f"{title} (real rows: NOT PRIVATE)")
    axes = figure.subplots(lines, across + 1, squeeze=False)
    for axis, (name, rows) in zip(axes[:, :-1].flatten(), flat.items(), strict=False):
        _cloud(axis, rows, window, name)
    for axis in axes[:, -1]:
        _cloud(axis, truth, window, "real rows")
    _save(figure, path)


def _column_histogram(axis: Any, real: Rows, rows: Rows, column: int) -> None:
    if column >= real.shape[1]:
        axis.set_axis_off()
        return
    left, right = np.quantile(real[:, column], [0.001, 0.999])
    edges = np.linspace(left, right, _COLUMN_BINS).tolist()
    axis.hist(real[:, column], edges, density=True, color="C0", alpha=0.6, label="real")
    axis.hist(rows[:, column], edges, density=True, color="C1", alpha=0.6, label="synthetic")
    axis.set_title(f"column {column}", fontsize="small")
    axis.set_yticks([])
    if column == 0:
        axis.legend(fontsize="x-small", frameon=False)


def _cloud(axis: Any, rows: Rows, window: list[tuple[float, float]], name: str) -> None:
    counts = np.histogram2d(rows[:, 0], rows[:, 1], bins=_CELLS, range=window)[0]
    axis.imshow(np.log1p(counts.T), origin="lower", cmap=COLOURS, aspect="auto")
    axis.set_title(name, fontsize="small")
    axis.set_xticks([])
    axis.set_yticks([])


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)


Scores = Float[np.ndarray, " rows"]
Normal = Bool[np.ndarray, " rows"]

_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)))
#: Dark to light, so that curves differ in grey as well.
_KINDS_COLOURS = "cividis"
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
    figure, axis = _one_panel((7.2, 5.2))
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
    _save(figure, path)


def roc(scores: Scores, normal: Normal) -> tuple[np.ndarray, np.ndarray, float]:
    """False alarms, found anomalies at every threshold, and the area under their curve.

    Example:
        >>> roc(np.array([-np.inf, -1.0, -2.0]), np.array([False, True, True]))[2]
        1.0
    """
    from sklearn.metrics import auc, roc_curve

    _check_scores(scores, normal)
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
    _check_scores(scores, normal)
    figure, axis = _one_panel((7.2, 4.2))
    edges = _edges(scores, threshold)
    looks = {"normal": ("0.55", ""), "anomaly": ("tab:red", "///")}
    for kind, (colour, hatch) in looks.items():
        part = scores[normal if kind == "normal" else ~normal]
        _score_histogram(axis, part, edges, kind, colour, hatch)
    if threshold is not None:
        axis.axvline(threshold, color="black", linestyle="--", label=f"threshold {threshold:.3g}")
    axis.set(
        xlabel="log-density (the first bar includes all lower values)", ylabel="share of each kind"
    )
    axis.set_title("Log-densities of real rows, NOT PRIVATE")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    _save(figure, path)


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
    figure, axis = _one_panel((6.2, 5.6))
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
    _save(figure, path)


def _decisions(
    decide: Callable[[np.ndarray], Any], across: np.ndarray, up: np.ndarray
) -> np.ndarray:
    """Decisions over a grid; one that is no number is an anomaly, as it is for a detector."""
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    found = np.nan_to_num(np.asarray(decide(grid), np.float64), nan=-_FAR)
    return np.clip(found, -_FAR, _FAR).reshape(len(up), len(across))


def _check_scores(scores: np.ndarray, normal: np.ndarray) -> None:
    if len(scores) != len(normal) or normal.all() or not normal.any():
        raise InputError("normal must have one entry for each score, and rows of both kinds")


def _styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """A style of line for each family, and a shade and a marker for each curve."""
    import matplotlib

    families = list(dict.fromkeys(map(_family, names)))
    shades = matplotlib.colormaps[_KINDS_COLOURS](np.linspace(0, 0.9, len(names)))
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


def _score_histogram(
    axis: "Axes", part: np.ndarray, edges: np.ndarray, kind: str, colour: str, hatch: str
) -> None:
    inside = part[np.isfinite(part)]
    counts = np.histogram(np.maximum(inside, edges[0]), edges)[0] / len(part)
    outside = len(part) - len(inside)
    label = f"{kind} ({len(part):,})" + (f", {outside:,} outside the bounds" if outside else "")
    style: dict[str, Any] = {"fill": True, "alpha": 0.5, "facecolor": colour, "edgecolor": colour}
    axis.stairs(counts, edges, label=label, hatch=hatch, **style)


def _one_panel(size: tuple[float, float]) -> "tuple[Figure, Axes]":
    figure = _figure(*size)
    return figure, figure.subplots()

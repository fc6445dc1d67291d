"""Synthetic rows drawn over real ones; pictures of real rows are NOT PRIVATE and say so."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from dpflows.evaluation.plots import COLOURS, DOTS_PER_INCH
from dpflows.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Float[np.ndarray, "_ columns"]

_BINS, _CELLS = 60, 90
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
            _histogram(axis, real, rows, column)
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


def _histogram(axis: Any, real: Rows, rows: Rows, column: int) -> None:
    if column >= real.shape[1]:
        axis.set_axis_off()
        return
    left, right = np.quantile(real[:, column], [0.001, 0.999])
    edges = np.linspace(left, right, _BINS).tolist()
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

"""Pictures of densities.

A picture that shows real rows is NOT PRIVATE and says so in its title.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

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
    """Draw real rows beside synthetic rows beside the model's density, as a PNG file.

    The three panels have the same axes and the same colour scale, density per unit
    area, so that equal colours mean equal densities.

    Guarantee:
        None: the first panel shows real rows, and without ``limits`` the axes end
        where the rows do. The title says NOT PRIVATE.

    Args:
        real: Rows of the private table.
        synthetic: Rows drawn from the model.
        log_density: The model's log density of each row of an (n, 2) array.
        path: The PNG file to write; it appears whole or not at all.
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
        raise InputError(f"{name} must hold finite numbers only; drop the others first")


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
        raise InputError(
            "log_density must give numbers below infinity, got others; fit the model again"
        )
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

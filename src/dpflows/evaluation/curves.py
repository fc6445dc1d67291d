"""Figures against epsilon, several methods in one picture."""

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dpflows.evaluation.plots import DOTS_PER_INCH
from dpflows.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        _draw(axis, curve, f"C{index % 10}", _MARKERS[index % len(_MARKERS)])
    axis.set(xlabel=over, ylabel=label)
    axis.set_title(title, loc="left", fontsize="medium")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)


def _draw(axis: "Axes", curve: Curve, colour: str, marker: str) -> None:
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

"""``dpflows account``: what a training run costs under every accountant."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dpflows.cli import output
from dpflows.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpflows.privacy.accounting import Run, View
    from dpflows.privacy.events import Sampling

_CURVE_POINTS = 14


def account(
    rows: Annotated[int, typer.Option(help="Number of rows, which is public.")],
    batch_size: Annotated[int, typer.Option(help="Expected number of rows per batch.")],
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise standard deviation over the clipping norm.")
    ],
    delta: Annotated[float, typer.Option(help="Delta, far below 1 / rows.")],
    steps: Annotated[int | None, typer.Option(help="Number of steps; epsilon is computed.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon; the number of steps is computed.")
    ] = None,
    sampling: Annotated[
        str | None, typer.Option(help="Show only this batch sampling: poisson or uniform.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot of epsilon against steps to this file.")
    ] = None,
) -> None:
    """Compare all accountants on one training run; reads no row."""
    from dpflows.privacy.accounting import Run
    from dpflows.privacy.guarantee import check_delta, check_epsilon

    _check_target(steps, epsilon)
    check_delta(delta)
    if epsilon is not None:
        check_epsilon(epsilon)
    run = Run(rows, batch_size, noise_multiplier, delta)
    views = list(run.views(_samplings(sampling)))
    found = [_figure(run, view, steps, epsilon) for view in views]
    if plot is not None:
        _draw(run, views, _longest(found, steps), plot)
    if as_json:
        output.print_json({"rows": [_row(v, f) for v, f in zip(views, found, strict=True)]})
    else:
        output.console().print(_table(views, found))


def _check_target(steps: int | None, epsilon: float | None) -> None:
    if (steps is None) == (epsilon is None):
        raise InputError("give either --steps or --epsilon; the other is computed")
    if steps is not None and steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")


def _samplings(only: str | None) -> "tuple[Sampling, ...]":
    from dpflows.privacy.events import SAMPLINGS, check_sampling

    if only is None:
        return SAMPLINGS
    check_sampling(only)
    return tuple(sampling for sampling in SAMPLINGS if sampling == only)


def _figure(
    run: "Run", view: "View", steps: int | None, epsilon: float | None
) -> dict[str, int | float | None]:
    if steps is not None:
        cost = run.epsilon(view, steps=steps)
        return {"epsilon": cost if math.isfinite(cost) else None}
    return {"steps": run.steps(view, epsilon=epsilon or math.nan)}


def _row(view: "View", figure: dict[str, int | float | None]) -> dict[str, Any]:
    return {
        "accountant": view.accountant,
        "sampling": view.sampling,
        "neighbours": view.neighbours,
        **figure,
        "kind": view.kind,
    }


def _table(views: "Sequence[View]", found: Sequence[dict[str, int | float | None]]) -> Table:
    name = next(iter(found[0]))
    table = Table("accountant", "sampling", "neighbours", name, "kind", "reading")
    table.caption = _caption(views)
    table.columns[3].justify = "right"
    for view, figure in zip(views, found, strict=True):
        table.add_row(
            view.accountant,
            view.sampling,
            view.neighbours,
            _shown(figure[name]),
            view.kind,
            view.reading,
        )
    return table


def _caption(views: "Sequence[View]") -> str:
    from dpflows.privacy.accounting import ACCOUNTANTS

    silent = [name for name in ACCOUNTANTS if name not in {view.accountant for view in views}]
    advice = "An estimate is not a guarantee."
    return f"{advice} Not applicable to batches: {', '.join(silent)}." if silent else advice


def _shown(value: int | float | None) -> str:
    if value is None:
        return "unbounded"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _longest(found: Sequence[dict[str, int | float | None]], steps: int | None) -> int:
    if steps is not None:
        return steps
    return max(2, *(int(figure["steps"] or 0) for figure in found))


def _draw(run: "Run", views: "Sequence[View]", longest: int, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = [_curve(run, view, longest) for view in views if _drawn(view)]
    for view, steps, costs in sorted(curves, key=lambda curve: -curve[2][-1]):
        style = "--" if view.kind == "estimate" else "-"
        axes.plot(steps, costs, style, label=_label(view))
    _dress(axes, run)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    _save(figure, path)


def _drawn(view: "View") -> bool:
    """One curve per result: relations with equal costs are drawn once."""
    return (
        view.neighbours
        in {"poisson": ("zero-out", "replace-one"), "uniform": ("replace-one",)}[view.sampling]
    )


def _curve(run: "Run", view: "View", longest: int) -> "tuple[View, list[int], list[float]]":
    shares = [(index / _CURVE_POINTS) ** 2 for index in range(1, _CURVE_POINTS + 1)]
    steps = sorted({max(1, round(longest * share)) for share in shares})
    return view, steps, [run.epsilon(view, steps=count) for count in steps]


def _label(view: "View") -> str:
    return f"{view.accountant}, {view.sampling}, {view.neighbours} ({view.kind})"


def _dress(axes: "Axes", run: "Run") -> None:
    axes.set(xlabel="steps", ylabel=f"epsilon at delta {run.delta:.3g}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_title(run), fontsize="medium")


def _title(run: "Run") -> str:
    return f"{run.rows:,} rows, batches of {run.batch_size:,}, noise {run.noise_multiplier:g}"


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as problem:
        raise InputError(f"plot must be a writable .png, .pdf or .svg file: {problem}") from problem

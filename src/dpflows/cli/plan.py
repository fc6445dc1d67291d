"""``dpflows plan``: the stages and cost of a fit, without reading a row."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import displayable

if TYPE_CHECKING:
    from dpflows.pipeline.plan import Plan
    from dpflows.privacy.guarantee import Guarantee


def plan(
    schema: settings.SchemaFile,
    rows: Annotated[int, typer.Option(help="Number of rows, which is public.")],
    epsilon: settings.Epsilon,
    delta: settings.Delta = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Allow a delta of 1 / rows or more.")
    ] = False,
    neighbours: settings.Neighbours = "zero-out",
    accountant: settings.Accountant = None,
    sampling: settings.Sampling = None,
    model: settings.Model = None,
    prior: settings.Prior = None,
    architecture: settings.Architecture = None,
    normalisation: settings.Normalisation = None,
    discover: settings.Discover = None,
    optimizer: settings.Optimizer = None,
    steps: settings.Steps = None,
    batch_size: settings.BatchSize = None,
    learning_rate: settings.LearningRate = None,
    noise_multiplier: settings.NoiseMultiplier = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages and the cost of a fit; reads no row."""
    settings.check_limits(rows=rows)
    declared = settings.read_schema(schema, discover, mixed=True)
    estimator = settings.make_estimator(
        model,
        declared,
        epsilon=epsilon,
        delta=settings.settle_delta(delta, rows),
        neighbours=neighbours,
        accountant=accountant,
        sampling=sampling,
        prior=prior,
        architecture=architecture,
        normalisation=normalisation,
        discover=discover,
        optimizer=optimizer,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        noise_multiplier=noise_multiplier,
        allow_large_delta=allow_large_delta,
    )
    made = estimator.plan(rows)
    promise = made.guarantee()
    if as_json:
        output.print_json(_result(made, promise, by_rule=delta is None))
    else:
        _tell(made, promise, by_rule=delta is None)


def _result(made: "Plan", promise: "Guarantee", *, by_rule: bool) -> dict[str, Any]:
    return {
        "guarantee": promise.to_dict(),
        "delta_rule": settings.DELTA_RULE if by_rule else None,
        "purposes": [
            {"purpose": purpose, "epsilon": cost if math.isfinite(cost) else None}
            for purpose, cost in made.shares().items()
        ],
        "plan": made.to_dict(),
        "seconds": made.seconds,
        "megabytes": made.megabytes,
    }


def _tell(made: "Plan", promise: "Guarantee", *, by_rule: bool) -> None:
    screen = output.console()
    for stamp in promise.stamps:
        output.say(screen, stamp)
    if made.is_private:
        screen.print(_purposes(made, promise))
        output.say(screen, _delta_line(promise, by_rule))
        output.say(screen, _replace_one_line(promise))
    for caveat in promise.caveats:
        output.say(screen, f"Caveat: {caveat}")
    for line in _run_lines(made):
        output.say(screen, line)


def _purposes(made: "Plan", promise: "Guarantee") -> Table:
    table = Table("release", "epsilon alone", show_footer=True)
    table.columns[0].footer = "all releases together (less than the sum)"
    table.columns[1].footer = f"{promise.epsilon:.4g}"
    table.columns[1].justify = "right"
    for purpose, cost in made.shares().items():
        table.add_row(displayable(purpose), f"{cost:.4g}")
    return table


def _delta_line(promise: "Guarantee", by_rule: bool) -> str:
    origin = f" (by the public rule: {settings.DELTA_RULE})" if by_rule else ""
    return f"delta {promise.delta:g}{origin}, neighbours {promise.neighbours}, {promise.kind}"


def _replace_one_line(promise: "Guarantee") -> str:
    cost = promise.replace_one_epsilon
    figure = "not known" if cost is None or not math.isfinite(cost) else f"{cost:.4g}"
    return f"epsilon for replace-one neighbours: {figure}"


def _run_lines(made: "Plan") -> list[str]:
    cost = f"about {made.seconds:,.0f} s on two cores, {made.megabytes:,.0f} MB beyond the rows"
    if made.steps == 0:
        name = made.details.get("model", "statistics of the rows")
        return [f"{name} of {made.rows:,} rows, no training steps (--model flow trains)", cost]
    batches = made.batches
    return [
        f"noise multiplier {made.noise_multiplier:.4g}, {made.steps:,} steps of about "
        f"{batches.batch_size:,} of {made.rows:,} rows ({batches.sampling})",
        f"architecture {made.architecture}; optimizer {made.optimizer.name}",
        cost,
    ]

"""``dpflows fit``: spend a budget on a table and leave a model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.estimators.flow import DPFlow


def fit(
    rows: settings.RowsFile,
    schema: settings.SchemaFile,
    epsilon: settings.Epsilon,
    model: Annotated[Path, typer.Option("--output", metavar="FILE", help="The model, .dpflow.")],
    delta: settings.Delta = None,
    neighbours: settings.Neighbours = "zero-out",
    accountant: settings.Accountant = None,
    sampling: settings.Sampling = None,
    prior: settings.Prior = None,
    architecture: settings.Architecture = None,
    normalisation: settings.Normalisation = None,
    discover: settings.Discover = None,
    steps: settings.Steps = None,
    batch_size: settings.BatchSize = None,
    learning_rate: settings.LearningRate = None,
    noise_multiplier: settings.NoiseMultiplier = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps the run if it is interrupted.")
    ] = None,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """Fit a private density to a table and write the model."""
    given = dict(
        accountant=accountant,
        sampling=sampling,
        prior=prior,
        architecture=architecture,
        normalisation=normalisation,
        discover=discover,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        noise_multiplier=noise_multiplier,
    )
    settings.check_limits(epsilon=epsilon, delta=delta, **given)
    _require_targets(model, checkpoint, rows)
    declared = settings.read_schema(schema, discover)
    frame = _read(rows, declared, drop_extra=drop_extra, no_header=no_header)
    settled = settings.settle_delta(delta, frame.num_rows)
    budget = {"epsilon": epsilon, "delta": settled, "neighbours": neighbours}
    flow = settings.make_flow(declared, **budget, **given)
    _train(flow, frame, checkpoint)
    flow.save(model)
    _tell(flow, model, frame.num_rows, by_rule=delta is None, as_json=as_json)


def _require_targets(model: Path, checkpoint: Path | None, rows: Path) -> None:
    settings.require_target(model, (".dpflow",), source=rows)
    if checkpoint is not None:
        settings.require_target(checkpoint, (), source=rows)
        if checkpoint.resolve() == model.resolve():
            raise InputError("checkpoint must not be the output; choose another name")


def _read(rows: Path, declared: Any, *, drop_extra: bool, no_header: bool) -> Any:
    from dpflows.cli.tables import read_rows

    return read_rows(rows, declared, drop_extra=drop_extra, no_header=no_header)


def _train(flow: "DPFlow", frame: Any, checkpoint: Path | None) -> None:
    """Fit with a bar that shows steps, epsilon and time left; silent away from a terminal."""
    from dpflows.training.loop import Callbacks
    from dpflows.training.odometer import Odometer

    plan = flow.plan(frame.num_rows)
    if not is_terminal() or plan.steps == 0:
        flow.fit(frame, checkpoint=checkpoint)
        return
    spent = Odometer(plan)
    with output.progress("training", steps=plan.steps) as advance:
        watch = Callbacks(on_progress=lambda at: advance(at.step, spent(at.step)))
        flow.fit(frame, callbacks=watch, checkpoint=checkpoint)


def is_terminal() -> bool:
    """Whether somebody watches; progress would only litter a log."""
    return sys.stderr.isatty()


def _tell(flow: "DPFlow", model: Path, rows: int, *, by_rule: bool, as_json: bool) -> None:
    promise = flow.guarantee_
    command = f"dpflows sample {model} --rows {rows} --output synthetic.csv"
    rule = settings.DELTA_RULE if by_rule else None
    if as_json:
        output.print_json(_result(flow, model) | {"delta_rule": rule, "next": command})
        return
    screen = output.console()
    for line in promise.stamps or (flow.privacy_statement().split("\n")[0],):
        output.say(screen, f"Guarantee: {line}")
    if rule:
        output.say(screen, f"Delta by the public rule: {rule}.")
    output.say(screen, f"Model: {model}")
    output.say(screen, f"Next: {command}")


def _result(flow: "DPFlow", model: Path) -> dict[str, Any]:
    from dpflows.cli.certificate import describe

    facts = describe(flow)
    names = [*flow.guarantee_.to_dict(), "is_private"]
    return {"file": str(model), "guarantee": {name: facts[name] for name in names}}

"""``dpflows fit``: fit a private density to a table and write the model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.estimators.base import DensityEstimator, PreparedFit
    from dpflows.privacy.ledger import Ledger


@settings.reads_text(hidden=True)
def fit(
    rows: settings.RowsFile,
    schema: settings.SchemaFile,
    epsilon: settings.Epsilon,
    model: Annotated[
        Path,
        typer.Option("--output", metavar="FILE", help="Where to write the model, a .dpflow file."),
    ],
    delta: settings.Delta = None,
    allow_large_delta: settings.AllowLargeDelta = False,
    neighbours: settings.Neighbours = "zero-out",
    accountant: settings.Accountant = None,
    sampling: Annotated[str | None, typer.Option(hidden=True)] = None,
    estimator: settings.Model = None,
    prior: settings.Prior = None,
    architecture: settings.Architecture = None,
    normalisation: settings.Normalisation = None,
    discover: settings.Discover = None,
    optimizer: Annotated[str | None, typer.Option(hidden=True)] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps.")] = None,
    batch_size: settings.BatchSize = None,
    learning_rate: Annotated[float | None, typer.Option(hidden=True)] = None,
    noise_multiplier: Annotated[float | None, typer.Option(hidden=True)] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Checkpoint file, from which a stopped fit resumes."),
    ] = None,
    ledger: settings.LedgerPlace = None,
    cap_epsilon: settings.CapEpsilon = None,
    cap_delta: settings.CapDelta = None,
    force: settings.Force = False,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
    *,
    text: dict[str, str],
) -> None:
    """Fit a private density to a table and write the model."""
    given = dict(
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
    settings.check_limits(epsilon=epsilon, delta=delta, **given)
    kept = model.with_name(f"{model.name}.run") if checkpoint is None and ledger else checkpoint
    _require_targets(model, kept, rows, ledger, force=force)
    declared = settings.with_text(settings.read_schema(schema, discover, mixed=True), text)
    frame = _read(rows, declared, drop_extra=drop_extra, no_header=no_header)
    settled = settings.settle_delta(delta, frame.num_rows)
    budget = {"epsilon": epsilon, "delta": settled, "neighbours": neighbours}
    flow = settings.make_estimator(estimator, declared, **budget, **given)
    prepared = flow.prepare(frame)
    if ledger is not None:
        _require_cost(prepared.plan.stamps)
    books = settings.open_ledger(ledger, cap_epsilon, cap_delta, neighbours)
    _train(flow, prepared, kept, books)
    flow.save(model, overwrite=force)
    charged = settings.LedgerReport.of(books, ledger, flow.receipt_)
    _tell(flow, model, frame.num_rows, charged, by_rule=delta is None, as_json=as_json)


def _require_targets(
    model: Path, checkpoint: Path | None, rows: Path, ledger: str | None, *, force: bool
) -> None:
    # a run that was killed when it was all but done may have left its model: that is seen later
    is_kept = ledger is not None and checkpoint is not None and checkpoint.exists()
    settings.require_target(model, (".dpflow",), source=rows, force=force or is_kept)
    settings.require_apart(ledger, rows, model, checkpoint)
    if checkpoint is not None:
        settings.require_target(checkpoint, (), source=rows, force=True)
        if checkpoint.resolve() == model.resolve():
            raise InputError("checkpoint must not be the output; choose another name")


def _require_cost(stamps: tuple[str, ...]) -> None:
    """Refuse to charge what has no cost that epsilon states, before a ledger is made for it."""
    from dpflows.estimators.charging import require_price

    require_price(stamps)


def _read(rows: Path, declared: Any, *, drop_extra: bool, no_header: bool) -> Any:
    from dpflows.cli.tables import read_rows

    return read_rows(rows, declared, drop_extra=drop_extra, no_header=no_header)


def _train(
    flow: "DensityEstimator", prepared: "PreparedFit", kept: Path | None, books: "Ledger | None"
) -> None:
    """Fit with a bar that shows steps, epsilon and time left; silent away from a terminal."""
    from dpflows.pipeline.plan import Odometer
    from dpflows.training.dp_sgd import Callbacks

    plan = prepared.plan
    if not is_terminal() or plan.steps == 0:
        flow.fit(prepared, checkpoint=kept, ledger=books)
        return
    spent = Odometer(plan)
    with output.progress("training", steps=plan.steps) as advance:
        watch = Callbacks(on_progress=lambda at: advance(at.step, spent(at.step)))
        flow.fit(prepared, callbacks=watch, checkpoint=kept, ledger=books)


def is_terminal() -> bool:
    """Whether somebody watches; progress would only litter a log."""
    return sys.stderr.isatty()


def _tell(
    flow: "DensityEstimator",
    model: Path,
    rows: int,
    charged: settings.LedgerReport,
    *,
    by_rule: bool,
    as_json: bool,
) -> None:
    promise = flow.guarantee_
    command = f"dpflows sample {model} --rows {rows} --output synthetic.csv"
    rule = settings.DELTA_RULE if by_rule else None
    if as_json:
        facts = {"delta_rule": rule, "next": command}
        output.print_json(_result(flow, model) | charged.facts | facts)
        return
    screen = output.console()
    for line in promise.stamps or (flow.privacy_statement().split("\n")[0],):
        output.say(screen, f"Guarantee: {line}")
    for caveat in promise.caveats:
        output.say(screen, f"Caveat: {caveat}")
    if rule:
        output.say(screen, f"Delta by the public rule: {rule}.")
    shown = (f"Model: {model}", *output.permissions(model), f"Next: {command}")
    for line in (*charged.lines, *shown):
        output.say(screen, line)


def _result(flow: "DensityEstimator", model: Path) -> dict[str, Any]:
    from dpflows.cli.certificate import describe

    facts = describe(flow)
    names = [*flow.guarantee_.to_dict(), "is_private"]
    return {"file": str(model), "guarantee": {name: facts[name] for name in names}}

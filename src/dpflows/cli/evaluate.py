"""``dpflows evaluate``: how well a model describes rows, for insiders or for all."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.evaluation.measures import Subject
    from dpflows.evaluation.private import PrivateEvaluation
    from dpflows.privacy.ledger import Ledger, Receipt


def evaluate(
    model: settings.ModelFile,
    rows: settings.RowsFile,
    private: Annotated[
        bool, typer.Option("--private", help="Release noisy figures that may be published.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="What --private may spend.")] = None,
    delta: settings.Delta = None,
    neighbours: settings.Neighbours = "zero-out",
    ledger: settings.LedgerPlace = None,
    cap_epsilon: settings.CapEpsilon = None,
    cap_delta: settings.CapDelta = None,
    target: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="A .json file for all figures.")
    ] = None,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """Compare a model with held-out rows; INTERNAL, or --private."""
    from dpflows.anomaly.persistence import density_of, load
    from dpflows.cli.tables import spoken
    from dpflows.evaluation.measures import Subject
    from dpflows.privacy.randomness import Entropy
    from dpflows.table.reading import read_table

    _check(private, epsilon, delta, (ledger, cap_epsilon, cap_delta))
    if target is not None:
        settings.require_target(target, (".json",), source=rows)
    settings.require_apart(ledger, rows, model, target)
    fitted = density_of(load(model))
    with spoken():
        table = read_table(
            rows,
            fitted.encoding_.schema,
            drop_extra=drop_extra,
            header=False if no_header else None,
        )
    subject = Subject.of(fitted, table, Entropy.from_os())
    if epsilon is None:
        _finish(_internal(subject), target, None, None, as_json=as_json)
        return
    if ledger is not None:
        _require_price(subject)
    plan = _plan(epsilon, settings.settle_delta(delta, table.rows), neighbours, subject)
    books = settings.open_ledger(ledger, cap_epsilon, cap_delta, neighbours)
    receipt = _charge(books, plan)
    found = _released(subject, plan, receipt)
    _finish(found, target, books, receipt, place=ledger, as_json=as_json)


def _check(
    private: bool, epsilon: float | None, delta: float | None, books: tuple[Any, ...]
) -> None:
    if private != (epsilon is not None):
        raise InputError("--private and --epsilon are given together, or not at all")
    if not private and (delta is not None or books != (None, None, None)):
        raise InputError("--delta, --ledger and its caps belong to --private")
    if epsilon == float("inf"):
        raise InputError("epsilon must be finite with --private; leave both out for INTERNAL")
    settings.check_limits(epsilon=epsilon, delta=delta)


def _internal(subject: "Subject") -> dict[str, Any]:
    from dpflows.evaluation.comparing import evaluate
    from dpflows.evaluation.measures import INTERNAL_STAMP

    return {
        "internal": True,
        "stamps": [INTERNAL_STAMP, *subject.model.guarantee_.stamps],
        "rows": subject.table.rows,
        "figures": evaluate(subject),
    }


def _plan(epsilon: float, delta: float, neighbours: Any, subject: "Subject") -> "PrivateEvaluation":
    from dpflows.evaluation.private import bins_of, plan_evaluation
    from dpflows.privacy.events import NEIGHBOURS, check_choice
    from dpflows.privacy.guarantee import Budget

    check_choice("neighbours", neighbours, NEIGHBOURS)
    budget = Budget(epsilon, delta, neighbours)
    return plan_evaluation(
        budget, rows=subject.table.rows, columns=len(subject.names), bins=bins_of(subject)
    )


def _require_price(subject: "Subject") -> None:
    """Refuse to charge figures of a model that nothing was paid for, before a ledger is made."""
    if stamps := subject.model.guarantee_.stamps:
        raise InputError(
            f"a ledger takes only figures that have a price, but the model is {stamps[0]}; "
            "evaluate it without --private, and keep the figures INTERNAL"
        )


def _charge(books: "Ledger | None", plan: "PrivateEvaluation") -> "Receipt | None":
    from dpflows.evaluation.private import PURPOSE

    return None if books is None else books.reserve(plan.events, purpose=PURPOSE)


def _released(
    subject: "Subject", plan: "PrivateEvaluation", receipt: "Receipt | None"
) -> dict[str, Any]:
    from dpflows.privacy.randomness import Entropy

    # bins and ranges come from the model: what voids its promise voids that of the figures
    guarantee = plan.guarantee(stamps=subject.model.guarantee_.stamps)
    return {
        "internal": not guarantee.is_private,
        "stamps": list(guarantee.stamps),
        "rows": subject.table.rows,
        "figures": plan.release(subject, Entropy.from_os()),
        "plan": plan.to_dict(),
        "guarantee": guarantee.to_dict() | {"is_private": guarantee.is_private},
        "receipt": None if receipt is None else receipt.to_dict(),
    }


def _finish(
    found: dict[str, Any],
    target: Path | None,
    books: "Ledger | None",
    receipt: "Receipt | None",
    *,
    place: str | None = None,
    as_json: bool,
) -> None:
    """The file first, the ledger's mark, then words."""
    if target is not None:
        _write(found, target, books, receipt)
    elif books is not None and receipt is not None:
        books.release(receipt)
    told = settings.Told.of(books, place, receipt)
    if as_json:
        output.print_json(found | told.facts | {"file": None if target is None else str(target)})
        return
    for line in [*_lines(found), *told.lines, *([f"Figures: {target}"] if target else [])]:
        output.say(output.console(), line)


def _write(
    found: dict[str, Any], target: Path, books: "Ledger | None", receipt: "Receipt | None"
) -> None:
    from dpflows.files import write_atomically
    from dpflows.privacy.ledger import publish

    def write(path: Path) -> None:
        with write_atomically(path) as file:
            file.write(json.dumps(found, indent=2, allow_nan=False).encode() + b"\n")

    if books is None or receipt is None:
        write(target)
    else:
        publish(books, receipt, target, write)


def _lines(found: dict[str, Any]) -> list[str]:
    from dpflows.evaluation.comparing import MEASURES
    from dpflows.privacy.guarantee import Guarantee

    lines = list(found["stamps"])
    for name, figures in found["figures"].items():
        lines.append(MEASURES[name].line(figures))
    if "guarantee" not in found:
        return lines
    fields = {name: of for name, of in found["guarantee"].items() if name != "is_private"}
    statement = Guarantee.from_dict(fields).privacy_statement().split("\n")[0]
    noise = found["plan"]["distance_of_noise_alone"]
    return [
        *lines,
        f"Noise alone would show a total variation of about {noise:.3f} per column.",
        f"Guarantee for the {found['rows']:,} rows of this evaluation: {statement}",
    ]

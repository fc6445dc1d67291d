"""``dpflows evaluate``: how well a model describes rows, INTERNAL or differentially private."""

import dataclasses
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


@settings.reads_text(hidden=False)
def evaluate(
    model: settings.ModelFile,
    rows: settings.RowsFile,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="Compute noisy, differentially private figures that may be published."
        ),
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of --private.")] = None,
    delta: settings.Delta = None,
    neighbours: settings.Neighbours = "zero-out",
    ledger: settings.LedgerPlace = None,
    cap_epsilon: settings.CapEpsilon = None,
    cap_delta: settings.CapDelta = None,
    target: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write all figures to this .json file."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report with plots to this .html file."),
    ] = None,
    force: settings.Force = False,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
    *,
    text: dict[str, str],
) -> None:
    """Compare a model with held-out rows; INTERNAL, or --private."""
    from dpflows.anomaly.persistence import density_of, load
    from dpflows.cli.tables import spoken
    from dpflows.evaluation.measures import Subject
    from dpflows.privacy.randomness import Entropy
    from dpflows.table.reading import read_table

    _check(private, epsilon, delta, (ledger, cap_epsilon, cap_delta))
    places = _Places(target, report, force)
    places.check(rows, model)
    settings.require_apart(ledger, rows, model, target, report)
    fitted = density_of(load(model))
    with spoken():
        table = read_table(
            rows,
            settings.with_text(fitted.encoding_.schema, text),
            drop_extra=drop_extra,
            header=False if no_header else None,
        )
    subject = Subject.of(fitted, table, Entropy.from_os())
    if epsilon is None:
        _finish(_internal(subject), subject, places, None, None, as_json=as_json)
        return
    if ledger is not None:
        _require_price(subject)
    plan = _plan(epsilon, settings.settle_delta(delta, table.rows), neighbours, subject)
    books = settings.open_ledger(ledger, cap_epsilon, cap_delta, neighbours)
    receipt = _charge(books, plan)
    found = _released(subject, plan, receipt)
    _finish(found, subject, places, books, receipt, ledger=ledger, as_json=as_json)


@dataclasses.dataclass(frozen=True)
class _Places:
    """The paths of the figures and of the report."""

    figures: Path | None
    report: Path | None
    force: bool

    def check(self, *sources: Path) -> None:
        """Refuse paths that cannot be written or that are input files."""
        for source in sources:
            if self.figures is not None:
                settings.require_target(self.figures, (".json",), source=source, force=self.force)
            if self.report is not None:
                settings.require_target(
                    self.report, (".html", ".htm"), source=source, force=self.force
                )

    def contents(self, found: dict[str, Any], subject: "Subject") -> dict[Path, bytes]:
        """The content of each file; a ledger records the first one."""
        written = {}
        if self.figures is not None:
            text = json.dumps(found, indent=2, allow_nan=False)
            written[self.figures] = text.encode() + b"\n"
        if self.report is not None:
            from dpflows.evaluation.report import render

            written[self.report] = render(found, subject).encode()
        return written

    @property
    def facts(self) -> dict[str, str | None]:
        """As JSON values."""
        named = {"file": self.figures, "report": self.report}
        return {name: None if path is None else str(path) for name, path in named.items()}

    @property
    def lines(self) -> list[str]:
        """As text."""
        named = {"Figures": self.figures, "Report": self.report}
        return [f"{name}: {path}" for name, path in named.items() if path is not None]


def _check(
    private: bool, epsilon: float | None, delta: float | None, books: tuple[Any, ...]
) -> None:
    if private != (epsilon is not None):
        raise InputError("--private and --epsilon must be given together")
    if not private and (delta is not None or books != (None, None, None)):
        raise InputError("--delta, --ledger, --cap-epsilon and --cap-delta need --private")
    if epsilon == float("inf"):
        raise InputError(
            "epsilon must be finite with --private; remove both for an INTERNAL evaluation"
        )
    settings.check_limits(epsilon=epsilon, delta=delta)


def _internal(subject: "Subject") -> dict[str, Any]:
    from dpflows.evaluation.measures import INTERNAL_STAMP
    from dpflows.evaluation.report import evaluate

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
    """Refuse to charge for figures of a non-private model, before a ledger is created."""
    if stamps := subject.model.guarantee_.stamps:
        raise InputError(
            f"a model that is not private cannot be evaluated with --ledger; it is {stamps[0]}; "
            "evaluate it without --private and keep the figures INTERNAL"
        )


def _charge(books: "Ledger | None", plan: "PrivateEvaluation") -> "Receipt | None":
    from dpflows.evaluation.private import PURPOSE

    return None if books is None else books.reserve(plan.events, purpose=PURPOSE)


def _released(
    subject: "Subject", plan: "PrivateEvaluation", receipt: "Receipt | None"
) -> dict[str, Any]:
    from dpflows.privacy.randomness import Entropy

    # bins and ranges come from the model: if it is not private, neither are the figures
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
    subject: "Subject",
    places: _Places,
    books: "Ledger | None",
    receipt: "Receipt | None",
    *,
    ledger: str | None = None,
    as_json: bool,
) -> None:
    """Write the files, record them in the ledger, then print."""
    contents = places.contents(found, subject)
    if books is None or receipt is None:
        _write(contents, places.force)
    else:
        _publish(contents, books, receipt, places.force)
    charged = settings.LedgerReport.of(books, ledger, receipt)
    if as_json:
        output.print_json(found | charged.facts | places.facts)
        return
    for line in [*_lines(found), *charged.lines, *places.lines]:
        output.say(output.console(), line)


def _write(contents: dict[Path, bytes], force: bool) -> None:
    from dpflows.files import write_atomically

    for path, content in contents.items():
        with write_atomically(path, overwrite=force) as file:
            file.write(content)


def _publish(contents: dict[Path, bytes], books: "Ledger", receipt: "Receipt", force: bool) -> None:
    """Record the run as released with its first file; the others hold nothing further."""
    from dpflows.privacy.ledger import publish

    if not contents:
        books.release(receipt)
        return
    first, *others = contents
    # the pending file may be replaced, the file of its final name only if forced
    publish(
        books, receipt, first, lambda place: _write({place: contents[first]}, True), overwrite=force
    )
    _write({path: contents[path] for path in others}, force)


def _lines(found: dict[str, Any]) -> list[str]:
    from dpflows.evaluation.private import noise_note
    from dpflows.evaluation.report import MEASURES
    from dpflows.privacy.guarantee import Guarantee

    lines = list(found["stamps"])
    for name, figures in found["figures"].items():
        lines.append(MEASURES[name].line(figures))
    if "guarantee" not in found:
        return lines
    fields = {name: of for name, of in found["guarantee"].items() if name != "is_private"}
    statement = Guarantee.from_dict(fields).privacy_statement().split("\n")[0]
    return [
        *lines,
        noise_note(found["plan"]),
        f"Guarantee for the {found['rows']:,} rows of this evaluation: {statement}",
    ]

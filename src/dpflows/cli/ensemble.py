"""``dpflows ensemble``: fit an ensemble of densities that finds anomalies by private votes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.anomaly.ensemble import DPEnsembleDetector
    from dpflows.estimators.base import DensityEstimator
    from dpflows.privacy.guarantee import Budget
    from dpflows.table.schema import Schema

ESTIMATORS = ("mixture", "flow")


@settings.reads_text(hidden=True)
def ensemble(
    rows: settings.RowsFile,
    schema: settings.SchemaFile,
    epsilon: Annotated[float, typer.Option(help="Total epsilon of all answers.")],
    epsilon_per_query: Annotated[
        float, typer.Option(help="Epsilon of one answer, or of one stream.")
    ],
    target: Annotated[
        Path,
        typer.Option("--output", metavar="FILE", help="Output file: .dpflow, INTERNAL."),
    ],
    delta: settings.Delta = None,
    allow_large_delta: settings.AllowLargeDelta = False,
    neighbours: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Neighbours: zero-out (default), replace-one or add-remove.",
        ),
    ] = "zero-out",
    parts: Annotated[
        int, typer.Option(help="Number of parts; one density is fitted to each.")
    ] = 10,
    mechanism: Annotated[
        str,
        typer.Option(
            help="Vote: geometric (default), exponential or sparse-vector.",
            show_default=False,
        ),
    ] = "geometric",
    alarms: Annotated[int, typer.Option(help="Anomalies per stream, for sparse-vector.")] = 1,
    estimator: Annotated[
        str, typer.Option(help="Density of each part: mixture or flow.")
    ] = "mixture",
    contamination: Annotated[float, typer.Option(help="Share of each part's rows to flag.")] = 0.1,
    jobs: Annotated[int, typer.Option(help="Number of parts fitted in parallel.")] = 1,
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
    """Fit an ensemble whose private votes find anomalies; INTERNAL."""
    from dpflows.anomaly.ensemble import DPEnsembleDetector
    from dpflows.cli.tables import read_rows

    settings.check_limits(epsilon=epsilon, delta=delta)
    settings.require_target(target, (".dpflow",), source=rows, force=force)
    settings.require_apart(ledger, rows, target)
    _check(jobs, delta, neighbours)
    declared = settings.with_text(settings.read_schema(schema, None), text)
    detector = DPEnsembleDetector(
        parts,
        _density(estimator, declared),
        epsilon_per_query=epsilon_per_query,
        total_budget=_budget(epsilon, settings.settle_delta(delta, 1), neighbours),
        mechanism=mechanism,
        alarms=alarms,
        contamination=contamination,
        n_jobs=jobs,
        allow_large_delta=allow_large_delta,
    )
    # A budget that buys nothing is refused before the rows are read.
    detector.plan()
    frame = read_rows(rows, declared, drop_extra=drop_extra, no_header=no_header)
    settled = settings.settle_delta(delta, frame.num_rows)
    detector.set_params(total_budget=_budget(epsilon, settled, neighbours))
    books = settings.open_ledger(ledger, cap_epsilon, cap_delta, neighbours)
    with _progress(parts) as on_member:
        detector.fit(frame, on_member=on_member, ledger=books)
    detector.save(target, overwrite=force)
    _tell(detector, target, settings.LedgerReport.of(books, ledger), as_json=as_json, place=ledger)


def _density(name: str, declared: "Schema") -> "DensityEstimator":
    from dpflows.estimators.flow import DPFlow
    from dpflows.estimators.mixture import DPGaussianMixture

    if name not in ESTIMATORS:
        raise InputError(f"estimator must be {' or '.join(ESTIMATORS)}, got {name!r}")
    return DPFlow(schema=declared) if name == "flow" else DPGaussianMixture(schema=declared)


def _budget(epsilon: float, delta: float, neighbours: Any) -> "Budget":
    from dpflows.privacy.guarantee import Budget

    return Budget(epsilon, delta, neighbours)


def _check(jobs: int, delta: float | None, neighbours: str) -> None:
    from dpflows.privacy.events import NEIGHBOURS, check_choice

    check_choice("neighbours", neighbours, NEIGHBOURS)
    if jobs == 0 or jobs < -1:
        raise InputError(f"jobs must be at least 1, or -1 for all cores, got {jobs}")
    if neighbours == "add-remove" and delta is None:
        raise InputError(
            "delta must be given with add-remove neighbours, because the default depends on the "
            "number of rows, which is then private; add --delta"
        )


@contextlib.contextmanager
def _progress(parts: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar over the parts, on a terminal only."""
    from dpflows.cli.fit import is_terminal

    if not is_terminal():
        yield None
        return
    with output.counting("parts") as advance:
        yield lambda ready: advance(ready, parts, "")


def _tell(
    detector: "DPEnsembleDetector",
    target: Path,
    charged: settings.LedgerReport,
    *,
    as_json: bool,
    place: str | None,
) -> None:
    from dpflows.anomaly.members import INTERNAL_STAMP

    command = f"dpflows detect {target} rows.csv --output answers.csv"
    if place is not None:
        command += f" --ledger {place if '://' not in place else 'ADDRESS'}"
    if as_json:
        output.print_json(_result(detector, target) | charged.facts | {"next": command})
        return
    promise = detector.guarantee_
    head = promise.stamps or (promise.privacy_statement().split("\n")[0],)
    lines = [
        INTERNAL_STAMP,
        *(f"Guarantee of all answers together: {line}" for line in head),
        *(f"Caveat: {caveat}" for caveat in promise.caveats),
        f"{detector.plan_.sentence} Answers within the budget: at least "
        f"{detector.remaining_queries():,}",
        *charged.lines,
        f"Ensemble: {target}",
        f"Next: {command}",
    ]
    for line in lines:
        output.say(output.console(), line)


def _result(detector: "DPEnsembleDetector", target: Path) -> dict[str, Any]:
    from dpflows.anomaly.members import INTERNAL_STAMP

    promise = detector.guarantee_
    return {
        "file": str(target),
        "internal": True,
        "stamp": INTERNAL_STAMP,
        "plan": detector.plan_.to_dict(),
        "remaining_queries": detector.remaining_queries(),
        "guarantee": promise.to_dict() | {"is_private": promise.is_private},
    }

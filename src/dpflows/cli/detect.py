"""``dpflows detect``: which rows of a table are anomalies."""

import abc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from dpflows.cli import output, settings
from dpflows.cli.score import require_private_target, write_answers
from dpflows.cli.settings import (
    AnswersFile,
    AsJson,
    DropExtra,
    Force,
    ModelFile,
    NoHeader,
    RowsFile,
)
from dpflows.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from dpflows.anomaly.threshold import DPAnomalyDetector

NOTE = (
    "INTERNAL: results about private rows are themselves private, and no guarantee covers them. "
    "Store the file as you store the rows."
)
ENSEMBLE_NOTE = (
    "The guarantee covers the ensemble's training rows. It does not cover the rows scored here: "
    "treat the results as you treat those rows."
)
DEFAULT_CONTAMINATION = 0.1


@settings.reads_text(hidden=False)
def detect(
    model: ModelFile,
    rows: RowsFile,
    target: AnswersFile = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Flag rows whose log-density, in original units, is below this."),
    ] = None,
    contamination: Annotated[
        float | None, typer.Option(help="Share of normal rows to flag [default: 0.1].")
    ] = None,
    ledger: settings.LedgerPlace = None,
    force: Force = False,
    drop_extra: DropExtra = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    *,
    text: dict[str, str],
) -> None:
    """Write which rows of a table are anomalies; INTERNAL."""
    from dpflows.anomaly.persistence import load
    from dpflows.cli.tables import read_rows

    if threshold is not None and contamination is not None:
        raise InputError(
            "give --threshold or --contamination, not both: each determines the threshold"
        )
    target = require_private_target(target, "detections", rows, force=force)
    settings.require_apart(ledger, rows, model, target)
    judge = judge_for(load(model), threshold, contamination, ledger)
    schema = settings.with_text(judge.model.encoding_.schema, text)
    frame = read_rows(rows, schema, drop_extra=drop_extra, no_header=no_header)
    judge.write(frame, target, force=force)
    if as_json:
        output.print_json({"file": str(target), "rows": frame.num_rows} | judge.facts())
    else:
        counted = f"Anomalies: {judge.flagged:,} of {frame.num_rows:,} rows"
        for line in [*judge.lines(counted), f"Answers: {target}"]:
            output.say(output.console(), line)


class Judge(abc.ABC):
    """Flags the rows of a table and reports what was flagged."""

    def __init__(self, model: Any) -> None:
        self.model, self.flagged = model, 0

    @abc.abstractmethod
    def write(self, frame: Any, target: Path, *, force: bool) -> None:
        """Flag the rows and write the result."""

    @abc.abstractmethod
    def lines(self, counted: str) -> list[str]:
        """The report as text."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """The report as JSON values."""

    def _counted(self, anomaly: "np.ndarray") -> "np.ndarray":
        self.flagged += int(anomaly.sum())
        return anomaly


@final
class ByThreshold(Judge):
    """A density and a threshold: its answers cost no privacy."""

    def __init__(self, model: "DPAnomalyDetector", said: str) -> None:
        super().__init__(model)
        self._said = said

    def write(self, frame: Any, target: Path, *, force: bool) -> None:
        """Flag the rows in chunks."""
        write_answers(frame, target, self._answer, force=force)

    def lines(self, counted: str) -> list[str]:
        """Warnings, the origin of the threshold, and the number of rows below it."""
        promise, rule = self.model.guarantee_, self.model.threshold_rule_
        said = [self._said] if self._said else []
        return [*promise.stamps, NOTE, *said, f"{counted}, by {rule.sentence}"]

    def facts(self) -> dict[str, Any]:
        """The same as JSON values."""
        rule = self.model.threshold_rule_
        return {
            "columns": ["anomaly", "log_density"],
            "anomalies": self.flagged,
            "threshold": rule.to_dict() | {"sentence": rule.sentence},
            "internal": True,
            "stamps": list(self.model.guarantee_.stamps),
        }

    def _answer(self, piece: Any) -> dict[str, Any]:
        logs = self.model.score_samples(piece)
        # a row whose log-density is not a number is flagged
        return {"anomaly": self._counted(~(logs >= self.model.offset_)), "log_density": logs}


@final
class ByVote(Judge):
    """An ensemble: every answer is charged, and either all rows are answered or none."""

    def __init__(self, model: Any, place: str | None) -> None:
        super().__init__(model)
        self._place, self._ledger = place, settings.open_ledger(place)

    def write(self, frame: Any, target: Path, *, force: bool) -> None:
        """Answer all rows at once; if the budget does not suffice, nothing is charged."""
        write_answers(frame, target, self._answer, chunk=max(frame.num_rows, 1), force=force)

    def lines(self, counted: str) -> list[str]:
        """Warnings, the number of flagged rows, and the number of answers left."""
        remaining = f"Answers left: {self.model.remaining_queries():,}"
        stamps, charged = (
            self.model.guarantee_.stamps,
            settings.LedgerReport.of(self._ledger, self._place),
        )
        return [
            *stamps,
            ENSEMBLE_NOTE,
            f"{counted}, by private votes",
            remaining,
            *charged.lines,
        ]

    def facts(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "columns": ["anomaly"],
            "anomalies": self.flagged,
            "remaining_queries": self.model.remaining_queries(),
            "internal": True,
            "stamps": list(self.model.guarantee_.stamps),
            **settings.LedgerReport.of(self._ledger, self._place).facts,
        }

    def _answer(self, piece: Any) -> dict[str, Any]:
        answers = self.model.predict(piece, ledger=self._ledger)
        return {"anomaly": self._counted(answers == -1)}


def judge_for(
    model: Any, threshold: float | None, contamination: float | None, ledger: str | None = None
) -> Judge:
    """The judge for a model: its own threshold, a requested one, or votes."""
    from dpflows.anomaly.persistence import density_of
    from dpflows.anomaly.threshold import DPAnomalyDetector
    from dpflows.estimators.base import DensityEstimator

    asked = threshold is not None or contamination is not None
    if not isinstance(model, DensityEstimator | DPAnomalyDetector):
        return _vote(model, asked, ledger)
    if ledger is not None:
        raise InputError(
            "only the answers of an ensemble are charged; this model was charged when it was "
            "fitted, so remove --ledger"
        )
    if isinstance(model, DPAnomalyDetector) and threshold is None:
        own = model if contamination is None else model.with_contamination(contamination)
        return ByThreshold(own, "")
    share = DEFAULT_CONTAMINATION if contamination is None else contamination
    rule = "samples" if threshold is None else threshold
    detector = DPAnomalyDetector.around(density_of(model), contamination=share, threshold=rule)
    said = f"The model has no threshold; using --contamination {share:g}."
    return ByThreshold(detector, "" if asked else said)


def _vote(model: Any, asked: bool, ledger: str | None) -> Judge:
    if asked:
        raise InputError(
            "an ensemble takes neither --threshold nor --contamination: its thresholds were set "
            "when it was fitted; remove the option, or fit another ensemble with dpflows ensemble "
            "--contamination"
        )
    return ByVote(model, ledger)

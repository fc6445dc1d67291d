"""What generated rows are worth to a learner, and whether it can tell them from real ones."""

import math
from typing import final

from dpflows.evaluation.coding import Columns
from dpflows.evaluation.learning import detection_auc, has_labels, learn_auc, thinned
from dpflows.evaluation.measures import Figures, Measure, Subject

#: More rows are thinned out.
MOST_ROWS = 30_000
#: Fewer real rows are not divided for a learner of their own.
FEWEST_ROWS = 500
#: Fewer rows cannot be told from others in folds.
FEWEST_DETECTED = 6


@final
class Prediction(Measure):
    """Train on generated rows, test on real ones: predicting the declared target.

    Beside it, as a ceiling: the same learner trained on two thirds of the real rows and
    tested on the others. INTERNAL.
    """

    name = "prediction"
    title = "Learned from generated rows, tested on real ones"

    def of(self, subject: Subject) -> Figures:
        """AUC, or R squared of a numeric target, and the ceiling; nothing without a target."""
        schema = subject.schema
        if schema.target is None:
            return {}
        unit = "auc" if has_labels(schema.column(schema.target)) else "r_squared"
        score = learn_auc(subject.generated, subject.rows, schema, most_rows=MOST_ROWS)
        found = {unit: score, f"{unit}_of_real_rows": _ceiling(subject)}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def line(self, figures: Figures) -> str:
        """Score and ceiling."""
        words = {"auc": "AUC", "r_squared": "R squared"}
        unit, score = next(iter(figures.items()))
        ceiling = figures.get(f"{unit}_of_real_rows")
        beside = "" if ceiling is None else f" (learned from real rows: {ceiling:.3f})"
        return f"{self.title}: {words.get(unit, unit)} {score:.3f}{beside}"


@final
class Detection(Measure):
    """How well boosted trees tell real rows from generated ones. INTERNAL."""

    name = "detection"
    title = "Detection of generated rows"

    def of(self, subject: Subject) -> Figures:
        """The area under the curve, by cross-validation; nothing for a handful of rows."""
        if subject.table.rows < FEWEST_DETECTED:
            return {}
        auc = detection_auc(
            subject.rows,
            subject.generated,
            subject.schema,
            entropy=subject.entropy,
            most_rows=MOST_ROWS // 2,
        )
        return {"auc": auc}

    def line(self, figures: Figures) -> str:
        """The area, and what it would be for equal laws."""
        return f"{self.title}: AUC {figures['auc']:.3f} (0.5: they cannot be told apart)"


def _ceiling(subject: Subject) -> float:
    rows = subject.table.rows
    if rows < FEWEST_ROWS:
        return math.nan
    mixed = thinned(subject.rows, MOST_ROWS, subject.entropy)
    cut = 2 * min(rows, MOST_ROWS) // 3
    return learn_auc(_part(mixed, slice(cut)), _part(mixed, slice(cut, None)), subject.schema)


def _part(columns: Columns, rows: slice) -> Columns:
    return {name: cells[rows] for name, cells in columns.items()}

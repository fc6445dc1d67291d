"""Utility measures by machine learning, with boosted trees.

Trees trained on generated rows are tested on real ones, and trees try to separate generated
from real rows.

Guarantee:
    None: all figures here are INTERNAL, since they are computed from real rows.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Bool, Float64, Int64
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score
from threadpoolctl import threadpool_limits

from dpflows.errors import InputError
from dpflows.evaluation.measures import (
    Coding,
    Columns,
    Figures,
    Measure,
    Subject,
    is_missing,
    numbers,
)
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

#: More rows are thinned out, so that a learner takes seconds.
MOST_ROWS = 50_000
#: Trees tell so many labels apart; the rarer ones are taken together.
MOST_LABELS = 250
#: One forest is grown for each class of the target; the rarer ones are taken together.
MOST_CLASSES = 20

Features = Float64[np.ndarray, "_ features"]
Classes = Int64[np.ndarray, " _"]


def learn_auc(
    synthetic: Columns, real: Columns, schema: Schema, *, most_rows: int = MOST_ROWS
) -> float:
    """Train on synthetic rows, test on real ones: how well the schema's target is predicted.

    Args:
        synthetic: Cells by column to learn from.
        real: Cells by column to be tested on.
        schema: The schema, which declares a target.
        most_rows: More rows of either kind are thinned out at random.

    Returns:
        The area under the ROC curve if the target has labels or truth values: with more than
        two, the mean over the classes of telling one from the others, weighted by their real
        shares. The share of the variance that is explained, R squared, if it has numbers or
        dates.

    Example:
        >>> age = Column("age", "continuous", min=0, max=1)
        >>> schema = Schema((age, Column("ill", "boolean")), target="ill")
        >>> u = np.random.default_rng().random(200)
        >>> learn_auc({"age": u, "ill": u > 0.5}, {"age": u, "ill": u > 0.5}, schema)
        1.0
    """
    if schema.target is None:
        raise InputError('schema declares no target; add target = "COLUMN" to it')
    target, entropy = schema.column(schema.target), Entropy.from_os()
    train, test = (
        thinned(_filled(columns, target), most_rows, entropy) for columns in (synthetic, real)
    )
    return _predicted(train, test, schema, target)


def detection_auc(
    real: Columns,
    generated: Columns,
    schema: Schema,
    *,
    entropy: Entropy,
    most_rows: int = 15_000,
    folds: int = 3,
) -> float:
    """AUC of boosted trees that separate real from generated rows; 0.5 is indistinguishable.

    As many rows of either kind are taken, at most ``most_rows``. The trees judge rows that
    they were not trained on, and the areas under the ROC curves of the folds are averaged.

    Example:
        >>> schema = Schema.from_bounds([0], [1])
        >>> rows = np.random.default_rng().random(100)
        >>> detection_auc({"x0": rows}, {"x0": rows / 99}, schema, entropy=Entropy.from_os()) > 0.9
        True
    """
    count = min(most_rows, *(len(next(iter(one.values()))) for one in (real, generated)))
    if count < 2 * folds:
        raise InputError(f"detection needs at least {2 * folds} rows of either kind, got {count}")
    both = [thinned(columns, count, entropy) for columns in (real, generated)]
    joined = {name: np.concatenate([one[name] for one in both]) for name in schema.names}
    reader = Reader.of(joined, schema.columns)
    lesson = _Lesson(reader.features(joined), np.repeat([1, 0], count))
    # both halves are in random order, so that every so many rows one is a random fold
    fold = np.tile(np.arange(count) % folds, 2)
    areas = [_area(reader, lesson.part(fold != i), lesson.part(fold == i)) for i in range(folds)]
    return float(np.mean(areas))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """Cells as the numbers that trees learn from.

    Numbers and dates stay numbers, and NaN where they are missing. Labels and truth values
    become codes without an order, the rarer ones of many in one.

    Attributes:
        columns: What is read.
        groups: Of each column with codes, what every code of its bins becomes.

    Example:
        >>> columns = (Column("sex", "categorical", categories=("F", "M")),)
        >>> cells = {"sex": np.array(["M", "F", "M"], dtype=object)}
        >>> Reader.of(cells, columns).features(cells).tolist()
        [[0.0], [1.0], [0.0]]
    """

    columns: tuple[Column, ...]
    groups: dict[str, Classes]

    @classmethod
    def of(cls, cells: Columns, columns: Sequence[Column]) -> "Reader":
        """A reader whose groups of labels are those of the given rows."""
        groups = {c.name: _groups(cells, c, MOST_LABELS) for c in columns if c.rules.has_labels}
        return cls(tuple(columns), groups)

    @property
    def unordered(self) -> list[bool]:
        """Which features are codes."""
        return [column.name in self.groups for column in self.columns]

    def features(self, cells: Columns) -> Features:
        """One row of numbers per row."""
        return np.column_stack([self._feature(cells[c.name], c) for c in self.columns])

    def classifier(self) -> HistGradientBoostingClassifier:
        """Boosted trees for these features; they draw nothing at random."""
        return HistGradientBoostingClassifier(
            categorical_features=self.unordered, early_stopping=False
        )

    def regressor(self) -> HistGradientBoostingRegressor:
        """Boosted trees for these features; they draw nothing at random."""
        return HistGradientBoostingRegressor(
            categorical_features=self.unordered, early_stopping=False
        )

    def _feature(self, cells: np.ndarray, column: Column) -> Float64[np.ndarray, " rows"]:
        if column.name not in self.groups:
            return numbers(cells, column)
        return self.groups[column.name][Coding(column).codes(cells)].astype(np.float64)


def thinned(
    columns: Columns, most: int, entropy: Entropy, *, step: int = 0
) -> dict[str, np.ndarray]:
    """At most so many of the rows, in random order.

    Example:
        >>> thinned({"x": np.arange(9)}, 3, Entropy.from_os())["x"].shape
        (3,)
    """
    rows = len(next(iter(columns.values())))
    chosen = np.argsort(entropy.uniforms("sampling", step=step, count=rows))[:most]
    return {name: cells[chosen] for name, cells in columns.items()}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Lesson:
    """Features of rows, and what is to be told from them."""

    features: Float64[np.ndarray, "rows features"]
    truth: Int64[np.ndarray, " rows"] | Float64[np.ndarray, " rows"]

    def part(self, rows: Bool[np.ndarray, " rows"]) -> "_Lesson":
        return _Lesson(self.features[rows], self.truth[rows])


def _predicted(train: Columns, test: Columns, schema: Schema, target: Column) -> float:
    """The score on test rows of trees that learned the target from the others."""
    reader = Reader.of(train, [column for column in schema.columns if column is not target])
    is_class = target.rules.has_labels
    truths = (_classes if is_class else _values)(train, test, target)
    lessons = [
        _Lesson(reader.features(cells), truth)
        for cells, truth in zip((train, test), truths, strict=True)
    ]
    return (_area if is_class else _explained)(reader, *lessons)


def _classes(train: Columns, test: Columns, target: Column) -> list[np.ndarray]:
    groups, coding = _groups(train, target, MOST_CLASSES), Coding(target)
    return [groups[coding.codes(cells[target.name])] for cells in (train, test)]


def _values(train: Columns, test: Columns, target: Column) -> list[np.ndarray]:
    return [numbers(cells[target.name], target) for cells in (train, test)]


def _explained(reader: Reader, train: _Lesson, test: _Lesson) -> float:
    """The share of the variance that is explained; not a number if there is none."""
    if len(test.truth) < 2 or len(train.truth) < 2:
        return float("nan")
    with threadpool_limits(1, user_api="openmp"):
        told = reader.regressor().fit(train.features, train.truth).predict(test.features)
    return float(r2_score(test.truth, told, force_finite=False))


def _area(reader: Reader, train: _Lesson, test: _Lesson) -> float:
    """The area under the curve of each class against the others, weighted by real shares."""
    present, counts = np.unique(test.truth, return_counts=True)
    if len(present) < 2:
        return float("nan")
    chances = _chances(reader, train, test.features)
    areas = [roc_auc_score(test.truth == one, chances[:, one]) for one in present]
    return float(np.average(areas, weights=counts))


def _chances(
    reader: Reader, train: _Lesson, features: Features
) -> Float64[np.ndarray, "_ classes"]:
    """The chance of every class; that of one which was never seen is zero."""
    chances = np.zeros((len(features), MOST_CLASSES + 1))
    if len(np.unique(train.truth)) < 2:
        return chances
    with threadpool_limits(1, user_api="openmp"):
        trees = reader.classifier().fit(train.features, train.truth)
        chances[:, trees.classes_] = trees.predict_proba(features)
    return chances


def _groups(cells: Columns, column: Column, most: int) -> Classes:
    """A number for every code of a column: the commonest have their own, the rest the last."""
    coding = Coding(column)
    counts = np.bincount(coding.codes(cells[column.name]), minlength=coding.size)
    rank = np.empty(coding.size, dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(coding.size)
    return np.minimum(rank, most)


def _filled(columns: Columns, target: Column) -> Columns:
    """Without the rows whose target is missing, if it is a number."""
    if target.rules.has_labels:
        return columns
    present = ~is_missing(columns[target.name])
    return {name: cells[present] for name, cells in columns.items()}


#: More rows are thinned out.
MOST_JUDGED = 30_000
#: Fewer real rows are not divided for a learner of their own.
FEWEST_ROWS = 500
#: Fewer rows cannot be told from others in folds.
FEWEST_DETECTED = 6


@final
class Prediction(Measure):
    """Train on generated rows, test on real ones: predicting the declared target.

    For reference, the same learner is trained on two thirds of the real rows and tested on the
    others. INTERNAL.
    """

    name = "prediction"
    title = "Trained on generated rows, tested on real rows"

    def of(self, subject: Subject) -> Figures:
        """AUC, or R squared of a numeric target, and the ceiling; nothing without a target."""
        schema = subject.schema
        if schema.target is None:
            return {}
        unit = "auc" if schema.column(schema.target).rules.has_labels else "r_squared"
        score = learn_auc(subject.generated, subject.rows, schema, most_rows=MOST_JUDGED)
        found = {unit: score, f"{unit}_of_real_rows": _ceiling(subject)}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def line(self, figures: Figures) -> str:
        """Score and ceiling."""
        words = {"auc": "AUC", "r_squared": "R squared"}
        unit, score = next(iter(figures.items()))
        ceiling = figures.get(f"{unit}_of_real_rows")
        beside = "" if ceiling is None else f" (trained on real rows: {ceiling:.3f})"
        return f"{self.title}: {words.get(unit, unit)} {score:.3f}{beside}"


@final
class Detection(Measure):
    """Separation of real and generated rows by boosted trees. INTERNAL."""

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
            most_rows=MOST_JUDGED // 2,
        )
        return {"auc": auc}

    def line(self, figures: Figures) -> str:
        """The area, and what it would be for equal laws."""
        return f"{self.title}: AUC {figures['auc']:.3f} (0.5: indistinguishable)"


def _ceiling(subject: Subject) -> float:
    rows = subject.table.rows
    if rows < FEWEST_ROWS:
        return math.nan
    mixed = thinned(subject.rows, MOST_JUDGED, subject.entropy)
    cut = 2 * min(rows, MOST_JUDGED) // 3
    return learn_auc(_part(mixed, slice(cut)), _part(mixed, slice(cut, None)), subject.schema)


def _part(columns: Columns, rows: slice) -> Columns:
    return {name: cells[rows] for name, cells in columns.items()}

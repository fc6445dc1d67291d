"""Comparison of dpflows and baselines on the same rows, at the same total budget.

Guarantee:
    None: every figure here is INTERNAL, since held-out real rows are read for it. What each
    method spends on the rows that it is fitted to is stated beside its figures.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.estimators.charging import untracked
from dpflows.estimators.persistence import ESTIMATORS, estimator_class
from dpflows.evaluation.fidelity import column_errors, pair_errors
from dpflows.evaluation.learners import detection_auc, learn_auc
from dpflows.evaluation.measures import Codings, moved_inside, reference_codings
from dpflows.experiments.baselines import BASELINES
from dpflows.experiments.baselines.base import (
    SECONDS,
    Baseline,
    Columns,
    Grid,
    TooSlow,
    require_finite,
)
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema

#: The method that models every schema.
OURS = "DPDensity"
REAL, DISCRETISED = "real rows", "real, discretised"

#: A method's rows and what they cost; nothing is promised where there is no guarantee.
Made = tuple[Columns, Guarantee | None]


@final
@dataclasses.dataclass(frozen=True)
class Figures:
    """How far synthetic rows are from held-out real ones.

    Attributes:
        one_way: Mean total variation of columns, numbers in 20 quantile bins of held-out rows.
        two_way: The same of pairs of columns.
        one_way_fitted: As ``one_way``, in the same bins, from the rows that were fitted. Real
            rows have none of it, while two samples of one law differ from each other.
        two_way_fitted: The same of pairs of columns.
        learning: How well a target is learned from synthetic rows, tested on real ones: area
            under the ROC curve, or R squared; nothing where no target is declared.
        detection: Area under the curve of telling both apart; 0.5 is best.
    """

    one_way: float
    two_way: float
    one_way_fitted: float
    two_way_fitted: float
    learning: float | None
    detection: float


@final
@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the comparison.

    Attributes:
        method: By name.
        seconds: Seconds for fitting and drawing.
        figures: None if the method gave no rows.
        guarantee: Its guarantee; None for real rows.
        remark: Why there are no figures.
    """

    method: str
    seconds: float
    figures: Figures | None = None
    guarantee: Guarantee | None = None
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; what is not a number is left out as null."""
        promise = self.guarantee
        found = {} if self.figures is None else dataclasses.asdict(self.figures)
        return {
            "method": self.method,
            "epsilon": None if promise is None else promise.epsilon,
            "delta": None if promise is None else promise.delta,
            "accountant": None if promise is None else promise.accountant,
            "neighbours": None if promise is None else promise.neighbours,
            "replace_one_epsilon": None if promise is None else promise.replace_one_epsilon,
            "stamps": [] if promise is None else list(promise.stamps),
            **{name: None if value is None else _finite(value) for name, value in found.items()},
            "seconds": round(self.seconds, 1),
            "remark": self.remark,
        }


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison: the rows to fit and the rows to test on, for all methods.

    Attributes:
        train: The rows that methods are fitted to.
        test: Held-out rows.
        schema: The schema.
        budget: The budget of each method on the training rows.
        entropy: Source of randomness.
        seconds: Time limit of a baseline, in seconds.
    """

    train: Columns
    test: Columns
    schema: Schema
    budget: Budget
    entropy: Entropy = dataclasses.field(default_factory=Entropy.from_os)
    seconds: float = SECONDS

    @property
    def rows(self) -> int:
        """How many rows are fitted, and drawn."""
        return len(next(iter(self.train.values())))

    def judge(self, columns: Columns) -> Figures:
        """Synthetic rows against the held-out ones."""
        sides = (self.test, self.train, columns)
        test, train, made = (moved_inside(one, self.schema) for one in sides)
        return Figures(
            *_variations(test, made, self._codings),
            *_variations(train, made, self._codings),
            learning=None if self.schema.target is None else learn_auc(made, test, self.schema),
            detection=detection_auc(test, made, self.schema, entropy=self.entropy),
        )

    def attempt(self, method: str) -> Line:
        """Fit one method, and evaluate its rows."""
        start = time.monotonic()
        columns, guarantee = _maker(method)(self)
        seconds = time.monotonic() - start
        return Line(method, seconds, self.judge(columns), guarantee)

    def line(self, method: str) -> Line:
        """The same, whatever happens.

        If a method fails, its line says so, and the others are not lost. The line names the type of
        the failure, and quotes only dpflows' own messages.
        """
        start = time.monotonic()
        try:
            return self.attempt(method)
        except (TooSlow, InputError) as problem:
            return Line(method, time.monotonic() - start, remark=str(problem))
        except Exception as problem:  # its message could quote a row
            failure = f"failed ({type(problem).__name__})"
            return Line(method, time.monotonic() - start, remark=failure)

    @functools.cached_property
    def _codings(self) -> Codings:
        return reference_codings(moved_inside(self.test, self.schema), self.schema)


def methods_for(schema: Schema) -> tuple[str, ...]:
    """The methods that can model a schema, those of dpflows first.

    Example:
        >>> methods_for(Schema.from_bounds([0], [1]))[:2]
        ('DPDensity', 'DPAutoregressive')
        >>> from dpflows.table.columns import Column
        >>> methods_for(Schema((Column("ill", "boolean"),)))
        ('DPDensity', 'mst', 'aim', 'smartnoise-mst', 'smartnoise-aim')
    """
    is_plain = not dataclasses.replace(schema, target=None).is_mixed
    ours = tuple(dict.fromkeys((OURS, *ESTIMATORS))) if is_plain else (OURS,)
    return (*ours, *BASELINES)


def missing_of(methods: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Baselines that cannot run here, and what to install for them."""
    needs = ((name, BASELINES[name]().missing()) for name in methods if name in BASELINES)
    return tuple((name, needed) for name, needed in needs if needed is not None)


def check_methods(methods: Sequence[str], schema: Schema) -> tuple[str, ...]:
    """Refuse methods that are not known, or cannot model the schema."""
    able = methods_for(schema)
    for name in methods:
        if name not in able:
            raise InputError(f"methods must be some of {', '.join(able)}; got {name!r}")
    return tuple(dict.fromkeys(methods))


def compare(compared: Comparison, methods: Sequence[str]) -> Iterator[Line]:
    """The lines of real rows, then one for each method as it ends.

    Example:
        >>> from dpflows.table.columns import Column
        >>> ill = np.random.default_rng().random(300) < 0.3
        >>> schema = Schema((Column("ill", "boolean"),))
        >>> arena = Comparison({"ill": ill[:200]}, {"ill": ill[200:]}, schema, Budget(1.0, 1e-4))
        >>> [line.method for line in compare(arena, [])]
        ['real rows', 'real, discretised']
    """
    require_finite(compared.budget)
    for method in (REAL, DISCRETISED, *check_methods(methods, compared.schema)):
        yield compared.line(method)


def split(columns: Columns, held_out: float, entropy: Entropy) -> tuple[Columns, Columns]:
    """A random part of the rows to fit, and the rest to judge by; rows are not looked at.

    Example:
        >>> parts = split({"x": np.arange(60)}, 0.2, Entropy.from_os())
        >>> [len(part["x"]) for part in parts]
        [48, 12]
    """
    rows = len(next(iter(columns.values())))
    order = np.argsort(entropy.uniforms("sampling", step=0, count=rows))
    cut = rows - round(held_out * rows)
    if min(cut, rows - cut) < 10:
        raise InputError(f"a comparison needs at least 10 rows on either side, got {rows} in all")
    return tuple({n: cells[part] for n, cells in columns.items()} for part in _cut(order, cut))  # type: ignore[return-value]


def _cut(order: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
    return order[:at], order[at:]


def _variations(real: Columns, made: Columns, codings: Codings) -> tuple[float, float]:
    """Mean total variations of columns and of pairs; a single column has no pair."""
    ones = list(column_errors(real, made, codings).values())
    twos = list(pair_errors(real, made, codings).values())
    return float(np.mean(ones)), float(np.mean(twos)) if twos else 0.0


def _maker(method: str) -> Callable[[Comparison], Made]:
    if method == REAL:
        return _real
    if method == DISCRETISED:
        return _discretised
    if method in BASELINES:
        return functools.partial(_by_peer, BASELINES[method])
    return functools.partial(_by_ours, method)


def _real(compared: Comparison) -> Made:
    return compared.train, None


def _discretised(compared: Comparison) -> Made:
    grid = Grid.of(compared.schema)
    return grid.decode(grid.encode(compared.train), compared.entropy), None


def _by_peer(kind: type[Baseline], compared: Comparison) -> Made:
    baseline = kind(seconds=compared.seconds)
    if needed := baseline.missing():
        raise InputError(f"not installed: {needed}")
    drawn = baseline.fit_sample(
        compared.train,
        compared.schema,
        compared.budget,
        compared.rows,
        compared.entropy,
    )
    return drawn, baseline.guarantee(compared.schema, compared.budget, stamp=compared.entropy.stamp)


def _by_ours(name: str, compared: Comparison) -> Made:
    budget = compared.budget
    schema = compared.schema if name == OURS else dataclasses.replace(compared.schema, target=None)
    estimator = estimator_class(name)(
        budget.epsilon, budget.delta, schema=schema, neighbours=budget.neighbours
    )
    # a comparison is INTERNAL: its models are not released together
    with untracked():
        estimator.fit(pa.table(dict(compared.train)))
    drawn = read_table(estimator.sample(compared.rows), compared.schema).columns
    return drawn, estimator.guarantee_


def _finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None

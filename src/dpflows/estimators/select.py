"""Private selection of hyperparameters: the best of a random number of private fits."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.model_selection import ParameterGrid
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import BudgetError, InputError, TrainingError
from dpflows.estimators.base import DensityEstimator, entropy_for
from dpflows.estimators.charging import charge, note_fit, warn_of_transformers, withdrawn_on_failure
from dpflows.pipeline.domain import read_bounds, stamps_of
from dpflows.pipeline.plan import FAINT, Stage, Work, needed
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.accounting.certificates import Misstated, check_sizes
from dpflows.privacy.accounting.registry import PrivacyPlan
from dpflows.privacy.events import Event, GaussianEvent, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee, require_small_delta
from dpflows.privacy.ledger import Ledger, Receipt
from dpflows.privacy.mechanisms.selection import (
    SCORING,
    noisy_mean_score,
    select_best,
    selection_event,
)
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Encoding, Table
from dpflows.table.schema import Schema

#: The laws of the number of runs, and the shape that the accountant knows them by.
LAWS: dict[str, float | None] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}
#: Every run is calibrated by Rényi costs, which is how a selection is priced.
_RUN_ACCOUNTANT = "rdp"
_SCORE = "score of a candidate"
#: What belongs to the selection, or to the table, and is no setting to choose.
FIXED = (
    "epsilon",
    "delta",
    "schema",
    "bounds",
    "neighbours",
    "accountant",
    "allow_large_delta",
    "insecure_test_seed",
)


@final
@dataclasses.dataclass(frozen=True)
class Scoring(Stage):
    """The stage that scores a run: the mean log-density of all rows, clipped, with noise.

    Attributes:
        low: The lowest log-density that counts, in nats.
        high: The highest log-density that counts, in nats.
        noise: Standard deviation of the noise on the sum, in half-widths of the range.
    """

    low: float
    high: float
    noise: float

    @property
    def events(self) -> tuple[Event, ...]:
        """The event of scoring one run."""
        return (GaussianEvent(noise=self.noise, sensitivity=SCORING, purpose=_SCORE),)

    def run(self, work: Work) -> Work:
        """Needs the density of the run."""
        logs = needed(work.density).log_densities(work.table)
        found = noisy_mean_score(
            np.asarray(logs, np.float64),
            self.low,
            self.high,
            noise=self.noise,
            entropy=work.entropy,
            purpose=_SCORE,
        )
        return work.after(score=found.value)

    def error(self, rows: int) -> float:
        """The standard deviation of the noise on the mean, in nats."""
        return self.noise * (self.high - self.low) / 2 / rows


@final
@dataclasses.dataclass(frozen=True)
class SelectionPlan(PrivacyPlan):
    """The plan and cost of a selection, before a row is read.

    Attributes:
        budget: The budget of the whole selection.
        accountant: The accountant's name.
        rows: Public number of rows.
        columns: Number of columns.
        mean: The mean number of runs.
        law: The law of the number of runs.
        run: The budget of one fit, without its score.
        scoring: The scoring of runs.
        candidates: The settings to choose from.
        plans: The plan of a fit with each of them.

    Guarantee:
        ``events`` covers everything computed from the rows: one selection, accounted for by its
        costliest candidate.
    """

    budget: Budget
    accountant: str
    rows: int
    columns: int
    mean: float
    law: str
    run: Budget
    scoring: Scoring
    candidates: tuple[dict[str, Any], ...]
    plans: tuple[Any, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The selection."""
        if not self.is_private:
            return ()
        fits = [plan.events for plan in self.plans]
        return (selection_event(self.scoring.events, fits, mean=self.mean, shape=LAWS[self.law]),)

    @property
    def seconds(self) -> float:
        """Estimated seconds of all runs together on two cores, on average."""
        return self.mean * sum(plan.seconds for plan in self.plans) / len(self.plans)

    @property
    def megabytes(self) -> float:
        """Estimated megabytes of the largest fit, beyond the rows."""
        return max(float(plan.megabytes) for plan in self.plans)

    @property
    def sentence(self) -> str:
        """The plan in one sentence."""
        error = self.scoring.error(self.rows)
        return (
            f"{self.mean:g} fits on average ({self.law} law) among {len(self.candidates)} "
            f"candidates, each at epsilon {self.run.epsilon:.4g}, scored to within {error:.2g} "
            f"nats; about {self.seconds:,.0f} s on two cores"
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        names = ("accountant", "rows", "columns", "law", "seconds", "megabytes")
        return {name: getattr(self, name) for name in names} | {
            "mean_runs": self.mean,
            "run_epsilon": self.run.epsilon if self.run.is_private else None,
            "run_delta": self.run.delta,
            "score_range": [self.scoring.low, self.scoring.high],
            "score_noise": self.scoring.error(self.rows),
            "candidates": [
                {name: _shown(value) for name, value in candidate.items()}
                for candidate in self.candidates
            ],
        }


@final
class DPSelect(DensityMixin, BaseEstimator):
    """The best of several settings of an estimator, chosen within one budget.

    A random number of runs is made. Each fits a candidate that is drawn at random and scores it by
    the noisy mean log-density of the rows; the model with the best score is kept and everything
    else is discarded (Liu and Talwar 2019, Papernot and Steinke 2022).

    Args:
        estimator: The estimator, with a schema or bounds.
        candidates: Settings to choose from: dictionaries of parameters, or a dictionary of
            lists, of which every combination is a candidate.
        epsilon: The total epsilon of the selection; ``None`` for the estimator's.
        delta: The total delta; ``None`` for the estimator's.
        mean_runs: The mean number of runs; ``None`` is the number of candidates, and at
            least 2.
        law: Distribution of the number of runs: ``geometric``; ``logarithmic``, where single fits
        may cost
            more but few runs are more likely; or ``poisson``, which may make no run at all.
        score_share: The share of a run's epsilon that is spent on its score.
        score_range: The ``(low, high)`` log-densities that count, in nats above a uniform
        distribution over the declared domain; ``None`` is ``(-c - 3, 3 c + 3)`` with
            ``c`` columns. Values beyond are clipped.
        accountant: The accountant of the selection: ``rdp``, or ``pld``, which gives no lower
        epsilon and takes longer.
        allow_large_delta: Allow a delta of one over the number of rows or more; it becomes a caveat
        of the guarantee.
        insecure_test_seed: Seed for tests; makes everything reproducible and NOT PRIVATE.

    Attributes:
        best_estimator_: The selected model; its guarantee is that of the whole selection.
        best_params_: Its settings.
        best_score_: Its noisy mean log-density.
        guarantee_: The guarantee of the whole selection.
        plan_: The plan that was run.
        receipt_: The ledger's receipt of the charge; ``None`` without a ledger.

    Guarantee:
        ``guarantee_`` covers the selected model, its settings and its noisy score. The number of
        runs, and the other models and scores, are not covered and are not kept. The duration of
        ``fit`` depends on the number of runs and must not be published.

    Example:
        >>> from dpflows import DPGaussianMixture
        >>> rows = np.random.default_rng().normal(size=(2000, 2)).clip(-4, 4)
        >>> mixture = DPGaussianMixture(epsilon=2.0, delta=1e-5, bounds=(-4, 4))
        >>> search = DPSelect(mixture, {"components": [1, 2]}).fit(rows)
        >>> search.best_params_["components"] in (1, 2), search.guarantee_.epsilon <= 2.0
        (True, True)
        >>> search.sample(3).shape
        (3, 2)
    """

    best_estimator_: DensityEstimator
    best_params_: dict[str, Any]
    best_score_: float
    plan_: SelectionPlan

    def __init__(
        self,
        estimator: DensityEstimator,
        candidates: Any,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        mean_runs: float | None = None,
        law: str = "geometric",
        score_share: float = 0.1,
        score_range: tuple[float, float] | None = None,
        accountant: str = "rdp",
        allow_large_delta: bool = False,
        insecure_test_seed: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.candidates = candidates
        self.epsilon = epsilon
        self.delta = delta
        self.mean_runs = mean_runs
        self.law = law
        self.score_share = score_share
        self.score_range = score_range
        self.accountant = accountant
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> SelectionPlan:
        """The plan of ``fit`` for a table of this shape; reads no row."""
        budget, settings = self._budget(), self._settings()
        require_small_delta(budget, rows, allowed=self.allow_large_delta)
        columns = self._whole(settings[0]).spec().count(columns)
        mean = self._mean(len(settings))

        def planned(epsilon: float) -> SelectionPlan:
            # Half of delta is left for what a run may fail with, which counts once per run.
            run = dataclasses.replace(budget, epsilon=epsilon, delta=budget.delta / (2 * mean))
            part = (1 - self.score_share) * epsilon
            fits = [self._candidate(one, part, run.delta).plan(rows, columns) for one in settings]
            return SelectionPlan(
                budget=budget,
                accountant=self.accountant,
                rows=rows,
                columns=columns,
                mean=mean,
                law=self.law,
                run=dataclasses.replace(run, epsilon=part),
                scoring=self._scoring(run, columns),
                candidates=tuple(settings),
                plans=tuple(fits),
            )

        if not budget.is_private:
            return planned(math.inf)
        level = calibrate_noise(
            budget, lambda level: planned(1 / level).events, accountant=self.accountant
        )
        return _listable(planned(1 / level))

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        on_plan: Callable[[SelectionPlan], None] | None = None,
    ) -> "DPSelect":
        """Select and fit a model to the rows of ``X`` within the budget.

        Args:
            X: A table in any form that ``read_table`` accepts.
            y: Ignored.
            ledger: The ledger to which the selection is charged, once, before the rows are used.
            on_plan: Called with the plan before the first run starts.
        """
        warn_of_transformers()
        entropy = entropy_for(self.insecure_test_seed)
        first = self._whole(self._settings()[0])
        table = first.spec().read(X)
        plan = self.plan(table.rows, len(table.schema.columns))
        stamps = (*stamps_of(table.schema), *self.stamps())
        payment = charge(ledger, plan.events, stamps=stamps)
        note_fit(table, plan.events, plan.budget, stamps=stamps, is_charged=ledger is not None)
        if on_plan is not None:
            on_plan(plan)
        promise = plan.guarantee(stamps=stamps, caveats=self.caveats(table.rows))
        with withdrawn_on_failure(self):
            self._adopt(self._select(table, plan, entropy), plan, promise)
            winner = self.best_estimator_
            winner.receipt_ = payment.receipt
            winner._payment = payment.hand_out(winner._file_content)
        return self

    def sample(self, n_samples: int = 1, **settings: Any) -> Any:
        """Synthetic rows of the selected model, as the kind of table that was fitted."""
        return self._winner().sample(n_samples, **settings)

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """The selected model's log-density of each row; scores of private rows are private."""
        return self._winner().score_samples(X)

    def score(self, X: Any, y: Any = None) -> float:
        """The selected model's mean log-density of the rows."""
        return self._winner().score(X)

    def privacy_statement(self) -> str:
        """The guarantee of the whole selection in plain language."""
        return self._winner().privacy_statement()

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the selected model to a ``.dpflow`` file with the selection's guarantee.

        Args:
            path: Where the file goes.
            overwrite: Whether an existing file may be overwritten.
        """
        self._winner().save(path, overwrite=overwrite)

    @property
    def guarantee_(self) -> Guarantee:
        """The guarantee of the whole selection."""
        return self._winner().guarantee_

    @property
    def receipt_(self) -> Receipt | None:
        """The ledger's receipt of the charge."""
        return self._winner().receipt_

    @property
    def encoding_(self) -> Encoding:
        """The encoding of rows, from the schema only."""
        return self._winner().encoding_

    def stamps(self) -> tuple[str, ...]:
        """The stamps of the settings, including any candidate's, since it may be selected."""
        probes = [self._whole(settings) for settings in self._settings()]
        return _united([probe.stamps() for probe in probes])

    def caveats(self, rows: int) -> tuple[str, ...]:
        """The caveats of the certificate of a fit to this number of rows."""
        probes = [self._whole(settings) for settings in self._settings()]
        return _united([probe.caveats(rows) for probe in probes])

    def _select(
        self, table: Table, plan: SelectionPlan, entropy: Entropy
    ) -> tuple[DensityEstimator, int, float]:
        """The best of the runs; a failed run counts as the worst, since failing depends on rows."""
        runs: list[int] = []

        def run(index: int) -> tuple[Any, float]:
            runs.append(index)
            model = self._candidate(plan.candidates[index], plan.run.epsilon, plan.run.delta)
            own = self._run_entropy(entropy, len(runs))
            try:
                score = _scored(model, plan, index, Work(table, own))
            except Exception:
                # An error would tell of the rows outside of what is paid for.
                return None, -math.inf
            return (model, index, score), score

        release = select_best(
            run,
            len(plan.candidates),
            run_events=plan.scoring.events,
            candidate_events=[fit.events for fit in plan.plans],
            mean=plan.mean,
            shape=LAWS[plan.law],
            entropy=entropy,
        )
        if release.value is None:
            raise _nothing(plan)
        return release.value

    def _adopt(
        self, chosen: tuple[DensityEstimator, int, float], plan: SelectionPlan, promise: Guarantee
    ) -> None:
        self.best_estimator_, at, self.best_score_ = chosen
        self.best_estimator_.guarantee_ = promise
        self.best_params_, self.plan_ = dict(plan.candidates[at]), plan
        self.n_features_in_ = self.best_estimator_.n_features_in_
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _winner(self) -> DensityEstimator:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def _run_entropy(self, entropy: Entropy, run: int) -> Entropy:
        """The entropy of one run; runs with a test seed must not repeat each other's noise."""
        return (
            Entropy.insecure((self.insecure_test_seed or 0) + 7919 * run)
            if entropy.stamp
            else entropy
        )

    def _budget(self) -> Budget:
        """The budget of the whole selection."""
        wanted = _checked(self.estimator)
        epsilon = wanted.epsilon if self.epsilon is None else self.epsilon
        delta = wanted.delta if self.delta is None else self.delta
        return dataclasses.replace(wanted.budget(), epsilon=epsilon, delta=delta)

    def _settings(self) -> list[dict[str, Any]]:
        """The candidates one by one, checked."""
        every = ParameterGrid(self.candidates) if _is_grid(self.candidates) else self.candidates
        try:
            settings = [dict(candidate) for candidate in every]
        except (TypeError, ValueError):
            raise InputError(_FORM) from None
        if not settings:
            raise InputError(_FORM)
        known = _checked(self.estimator).get_params(deep=False)
        for name in dict.fromkeys(name for candidate in settings for name in candidate):
            _check_name(name, known)
        return settings

    def _mean(self, candidates: int) -> float:
        check_choice("law", self.law, tuple(LAWS))
        if not 0 < self.score_share < 1:
            raise InputError(f"score_share must be between 0 and 1, got {self.score_share}")
        mean = float(max(candidates, 2)) if self.mean_runs is None else float(self.mean_runs)
        if not (math.isfinite(mean) and mean > 1):
            raise InputError(f"mean_runs must be finite and above 1, got {self.mean_runs}")
        return mean

    def _whole(self, settings: Mapping[str, Any]) -> DensityEstimator:
        """A candidate with the whole budget, for its stamps and declarations."""
        budget = self._budget()
        return self._candidate(settings, budget.epsilon, budget.delta)

    def _candidate(
        self, settings: Mapping[str, Any], epsilon: float, delta: float
    ) -> DensityEstimator:
        """An unfitted copy; a fitted prior among its settings stays fitted."""
        wanted = _checked(self.estimator)
        fixed = {
            "epsilon": epsilon,
            "delta": delta,
            "accountant": _RUN_ACCOUNTANT,
            "allow_large_delta": True,
            "insecure_test_seed": self.insecure_test_seed,
        }
        return type(wanted)(**(wanted.get_params(deep=False) | dict(settings) | fixed))

    def _scoring(self, run: Budget, columns: int) -> Scoring:
        low, high = self._range(columns)
        if not run.is_private:
            return Scoring(low, high, FAINT)
        part = dataclasses.replace(run, epsilon=self.score_share * run.epsilon)
        noise = calibrate_noise(
            part, lambda noise: Scoring(low, high, noise).events, accountant="gdp"
        )
        return Scoring(low, high, noise)

    def _range(self, columns: int) -> tuple[float, float]:
        """The log-densities that count, in the units of the declared columns."""
        given = (
            (-columns - 3.0, 3.0 * columns + 3.0) if self.score_range is None else self.score_range
        )
        try:
            low, high = (float(end) for end in given)
        except (TypeError, ValueError):
            raise InputError("score_range must be (low, high) in nats, or None") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError("score_range must be finite with low below high")
        even = self._even_density(columns)
        return low + even, high + even

    def _even_density(self, columns: int) -> float:
        """The log-density of a uniform distribution over the declared domain."""
        spec = _checked(self.estimator).spec()
        schema = spec.schema
        if schema is None and spec.bounds is not None:
            schema = Schema.from_bounds(*read_bounds(spec.bounds, columns))
        if schema is None or schema.undeclared():
            raise InputError(
                "candidates are compared by log-densities in a declared range, but some columns "
                "are not declared; declare their bounds or categories"
            )
        return -sum(column.rules.log_size for column in schema.columns)


_FORM = "candidates must be a list of dictionaries of parameters, or a dictionary of lists"


def _is_grid(candidates: Any) -> bool:
    return isinstance(candidates, Mapping)


def _check_name(name: Any, known: Mapping[str, Any]) -> None:
    if name in FIXED:
        raise InputError(
            f"candidates must not set {name}, which is common to all of them; remove it"
        )
    if name not in known:
        raise InputError(
            f"candidates must set parameters of the estimator; {name!r} is not one of them"
        )


def _checked(estimator: Any) -> DensityEstimator:
    if not isinstance(estimator, DensityEstimator):
        kind = type(estimator).__name__
        raise InputError(f"estimator must be a density estimator such as DPDensity(), got {kind}")
    return estimator


def _scored(model: DensityEstimator, plan: SelectionPlan, index: int, work: Work) -> float:
    """Fit a candidate, and its score."""
    fit = plan.plans[index]
    model._run(fit, work)
    return float(needed(fit.carry_out(plan.scoring, work.after(density=model)).score))


def _listable(plan: SelectionPlan) -> SelectionPlan:
    """The plan, if a file can list its candidates' releases."""
    try:
        check_sizes(plan.events)
    except Misstated:
        raise InputError(
            "candidates must have fewer different training settings (steps, batch sizes, noise): "
            "the cost of so many cannot be checked in reasonable time"
        ) from None
    return plan


def _nothing(plan: SelectionPlan) -> Exception:
    if plan.law == "poisson":
        return BudgetError(
            "the poisson law drew zero runs, or every run failed; the selection is charged "
            "nevertheless. Use law='geometric', which always makes a run"
        )
    return TrainingError(
        "every run of the selection failed, and it is charged nevertheless; fit one candidate to "
        "generated rows to find the reason"
    )


def _shown(value: Any) -> Any:
    """A setting as a JSON value."""
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


def _united(lines: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for one in lines for line in one))

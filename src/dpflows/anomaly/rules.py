"""The rules that find a detector's threshold: what each reads and what each costs.

A new rule is one class and one line in ``RULES``.
"""

import abc
import dataclasses
import math
from numbers import Real
from typing import Any, ClassVar, final

import numpy as np

from dpflows.anomaly.thresholds import (
    GENERATED,
    best_threshold,
    check_contamination,
    contamination_threshold,
    generated_scores,
    normal_rows,
    places_for,
)
from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import BoundedRangeEvent, Event, Sensitivity, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.quantiles import private_quantile, quantile_sensitivity

_PURPOSE = "threshold"


@final
@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold, and where it came from.

    Attributes:
        rule: The name of the rule that found it.
        value: In log-density, original units.
        contamination: The share of rows that was meant to lie below, if any.
        rows: How many generated or public rows it was found from, if any.
        epsilon: What it cost; infinite if it was read from the rows without noise.

    Example:
        >>> Threshold("given", -7.5).sentence
        'threshold: -7.5, as given (free)'
    """

    rule: str
    value: float
    contamination: float | None = None
    rows: int | None = None
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, tuple(RULES))
        if not math.isfinite(self.value):
            raise InputError(f"threshold must be a finite number, got {self.value}")

    @property
    def sentence(self) -> str:
        """Where it came from and what it cost, in plain words."""
        return f"threshold: {RULES[self.rule].describe(self)}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; an infinite epsilon becomes ``None``."""
        epsilon = self.epsilon if math.isfinite(self.epsilon) else None
        return dataclasses.asdict(self) | {"epsilon": epsilon}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Threshold":
        """Read back what ``to_dict`` wrote; the content may be hostile."""
        share, rows, epsilon = (description[name] for name in ("contamination", "rows", "epsilon"))
        return cls(
            rule=str(description["rule"]),
            value=float(description["value"]),
            contamination=None if share is None else float(share),
            rows=None if rows is None else int(rows),
            epsilon=math.inf if epsilon is None else float(epsilon),
        )


@final
@dataclasses.dataclass(frozen=True)
class Wish:
    """What the user said about the threshold, all of it public."""

    threshold: Any
    contamination: float
    public: Any
    share: float

    @property
    def rule(self) -> "Rule":
        """The rule that was named; a number is taken as it is."""
        if isinstance(self.threshold, Real) and not isinstance(self.threshold, bool):
            return RULES["given"]
        named = self.threshold if isinstance(self.threshold, str) else None
        if named is None or named == "given" or named not in RULES:
            names = ", ".join(name for name in RULES if name != "given")
            raise InputError(f"threshold must be a number or one of {names}")
        return RULES[named]


@final
@dataclasses.dataclass(frozen=True)
class Task:
    """What a rule may use: the wish, the released density, the budget; rows if it pays."""

    wish: Wish
    density: DensityEstimator
    budget: Budget
    rows: Any = None


#: The threshold, and every release that was made for it.
Found = tuple[Threshold, tuple[Event, ...]]


class Rule(abc.ABC):
    """One way to find a threshold.

    Guarantee:
        Only a rule that says ``is_paid`` is given the private rows, and what it releases
        is in the events that it hands back. The others read the released density and
        public things: post-processing.
    """

    name: str
    is_paid: ClassVar[bool] = False

    def check(self, wish: Wish, estimator: DensityEstimator) -> None:
        """Refuse public settings that cannot work, before any row is read."""
        check_contamination(wish.contamination)

    def events(self, wish: Wish, budget: Budget) -> tuple[Event, ...]:
        """Every release that ``find`` will make, known before any row is read."""
        return ()

    @abc.abstractmethod
    def find(self, task: Task) -> Found:
        """The threshold, and every release that was made for it."""

    @abc.abstractmethod
    def describe(self, found: Threshold) -> str:
        """Where the threshold came from and what it cost."""


@final
class Given(Rule):
    """A number that the user knows."""

    name = "given"

    def find(self, task: Task) -> Found:
        """The number itself."""
        return Threshold(self.name, float(task.wish.threshold)), ()

    def describe(self, found: Threshold) -> str:
        """Where the threshold came from and what it cost."""
        return f"{found.value:g}, as given (free)"


@final
class OwnSamples(Rule):
    """A quantile of the log-densities of rows that the density generates itself."""

    name = "samples"

    def find(self, task: Task) -> Found:
        """Reads the released density alone."""
        share = task.wish.contamination
        value = contamination_threshold(generated_scores(task.density), share)
        return Threshold(self.name, value, share, GENERATED), ()

    def describe(self, found: Threshold) -> str:
        """Where the threshold came from and what it cost."""
        quantile = f"the {found.contamination or 0:.3g} quantile"
        return f"{quantile} of the log-densities of {found.rows or 0:,} generated rows (free)"


@final
class BestOnPublic(Rule):
    """The best threshold for labelled rows that are public."""

    def __init__(self, name: str, words: str) -> None:
        self.name, self._words = name, words

    def check(self, wish: Wish, estimator: DensityEstimator) -> None:
        """Refuse a set that is no pair of rows and labels of both kinds."""
        super().check(wish, estimator)
        normal = normal_rows(_labelled(wish.public, self.name)[1])
        if normal.all() or not normal.any():
            raise InputError("labels must hold both kinds: +1 for normal rows, -1 for anomalies")

    def find(self, task: Task) -> Found:
        """Reads the released density and the public set."""
        table, labels = _labelled(task.wish.public, self.name)
        normal, logs = normal_rows(labels), task.density.score_samples(table)
        if len(logs) != len(normal):
            raise InputError(
                f"public must have one label for each row, got {len(logs)} and {len(normal)}"
            )
        return Threshold(self.name, best_threshold(logs, normal, self.name), rows=len(logs)), ()

    def describe(self, found: Threshold) -> str:
        """Where the threshold came from and what it cost."""
        return f"{self._words} on {found.rows or 0:,} labelled rows that are public (free)"


@final
class Bought(Rule):
    """A quantile of the training rows' log-densities, paid with a share of epsilon.

    Guarantee:
        One exponential mechanism over public places. A row moves the scores of all places
        by what ``quantile_sensitivity`` says, whatever density it is scored by, and the
        density was released before. Without privacy the plain quantile is taken.
    """

    name = "bought"
    is_paid = True

    def check(self, wish: Wish, estimator: DensityEstimator) -> None:
        """Refuse a share outside (0, 1), or an accountant that cannot price the quantile."""
        super().check(wish, estimator)
        if not 0 < wish.share < 1:
            raise InputError(f"threshold_share must be between 0 and 1, got {wish.share}")
        event = BoundedRangeEvent(epsilon=Sensitivity.uniformly(1.0))
        epsilon_of([event], delta=1e-6, accountant=estimator.accountant)

    def events(self, wish: Wish, budget: Budget) -> tuple[Event, ...]:
        """One exponential mechanism; without privacy there is nothing to price."""
        if not budget.is_private:
            return ()
        scale = quantile_scale(wish.share * budget.epsilon, wish.contamination, budget)
        turned = quantile_sensitivity(wish.contamination)
        factor = 2 / scale
        width = Sensitivity(
            factor * turned.zero_out, factor * turned.add_remove, factor * turned.replace_one
        )
        return (BoundedRangeEvent(epsilon=width, purpose=_PURPOSE),)

    def find(self, task: Task) -> Found:
        """Reads the private rows through one paid release."""
        share, price = task.wish.contamination, task.wish.share * task.budget.epsilon
        logs = np.asarray(task.density.score_samples(task.rows), np.float64)
        if not task.budget.is_private:
            value = contamination_threshold(logs, share)
            return Threshold(self.name, value, share, epsilon=math.inf), ()
        release = private_quantile(
            logs,
            places_for(generated_scores(task.density)),
            fraction=share,
            scale=quantile_scale(price, share, task.budget),
            entropy=task.density._entropy(),
            purpose=_PURPOSE,
        )
        return Threshold(self.name, release.value, share, epsilon=price), (release.event,)

    def describe(self, found: Threshold) -> str:
        """Where the threshold came from and what it cost."""
        quantile = (
            f"the {found.contamination or 0:.3g} quantile of the training rows' log-densities"
        )
        if not math.isfinite(found.epsilon):
            return f"{quantile} (NOT PRIVATE: read without noise)"
        return f"about {quantile}, bought with epsilon {found.epsilon:.3g}"


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Given(),
        OwnSamples(),
        BestOnPublic("accuracy", "the best accuracy"),
        BestOnPublic("youden", "the best mean of both kinds' accuracies (Youden)"),
        Bought(),
    )
}


def quantile_scale(epsilon: float, fraction: float, budget: Budget) -> float:
    """The noise, in rows, at which a private quantile costs ``epsilon``.

    Example:
        >>> quantile_scale(0.1, 0.1, Budget(1.0, 1e-6))
        18.0
    """
    return 2 * quantile_sensitivity(fraction).under(budget.neighbours) / epsilon


def _labelled(public: Any, rule: str) -> tuple[Any, Any]:
    if not (isinstance(public, tuple | list) and len(public) == 2):
        raise InputError(
            f"public must be a pair of rows and labels (+1 normal, -1 anomaly) where the "
            f"threshold is {rule!r}"
        )
    return public[0], public[1]

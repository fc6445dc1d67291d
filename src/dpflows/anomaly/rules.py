"""The rules that find a detector's threshold: what each reads and what each costs.

A new rule is one class and one line in ``RULES``.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float64

from dpflows.anomaly.tails import COUNTS, Rarity, Tail, noisy_tail
from dpflows.anomaly.thresholds import (
    GENERATED,
    best_threshold,
    check_contamination,
    contamination_threshold,
    generated_scores,
    normal_rows,
)
from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.privacy.accounting import calibrate_noise, epsilon_of
from dpflows.privacy.events import Event, GaussianEvent, check_choice
from dpflows.privacy.guarantee import Budget

_PURPOSE = "threshold"
#: The noise on a count of rows that a threshold should have, in rows that are to be flagged.
_FINE = 0.3
#: The part of the squared Gaussian budget that it takes for that, at least and at most.
_SHARES = (0.05, 0.25)


@final
@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold, and where it came from.

    Attributes:
        rule: The name of the rule that found it.
        value: In log-density, original units.
        contamination: The share of rows that was meant to lie below, if any.
        rows: How many generated or public rows it was found from, if any.
        epsilon: What it cost by itself; infinite if it was read from the rows without noise.
        tail: What was bought of the rows' log-densities, from which the threshold for any
            other contamination follows at no cost.

    Example:
        >>> Threshold("given", -7.5).sentence
        'threshold: -7.5, as given (free)'
    """

    rule: str
    value: float
    contamination: float | None = None
    rows: int | None = None
    epsilon: float = 0.0
    tail: Tail | None = None

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
        tail = None if self.tail is None else self.tail.to_dict()
        return dataclasses.asdict(self) | {"epsilon": epsilon, "tail": tail}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Threshold":
        """Read back what ``to_dict`` wrote, also before 0.2; the content may be hostile."""
        share, rows, epsilon = (description[name] for name in ("contamination", "rows", "epsilon"))
        tail = description.get("tail")
        return cls(
            rule=str(description["rule"]),
            value=float(description["value"]),
            contamination=None if share is None else float(share),
            rows=None if rows is None else int(rows),
            epsilon=math.inf if epsilon is None else float(epsilon),
            tail=None if tail is None else Tail.from_dict(tail),
        )


@final
@dataclasses.dataclass(frozen=True)
class Wish:
    """What the user said about the threshold, all of it public.

    Attributes:
        threshold: A number or the name of a rule.
        contamination: The share of rows to call anomalies.
        public: Labelled rows that are public, if any.
        share: The part of the squared Gaussian budget for a rule that is paid, or ``None`` for
            the public rule of ``share_for``.
    """

    threshold: Any
    contamination: float
    public: Any
    share: float | None

    @property
    def rule(self) -> "Rule":
        """The rule that was named; a number is taken as it is."""
        if isinstance(self.threshold, Real) and not isinstance(self.threshold, bool):
            return RULES["given"]
        named = self.threshold if isinstance(self.threshold, str) else None
        if named is None or named == "given" or named not in RULES:
            names = ", ".join(name for name in RULES if name != "given")
            raise InputError(f"threshold must be a number or one of auto, {names}")
        return RULES[named]


@final
@dataclasses.dataclass(frozen=True)
class Task:
    """What a rule may use: the wish, the released density, the budget; rows if it pays.

    Attributes:
        events: What the rule said that it would release; it was paid for.
    """

    wish: Wish
    density: DensityEstimator
    budget: Budget
    events: tuple[GaussianEvent, ...] = ()
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

    def events(
        self, wish: Wish, budget: Budget, accountant: str, rows: int
    ) -> tuple[GaussianEvent, ...]:
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
    """A quantile of the training rows' log-densities, paid with a share of the budget.

    Guarantee:
        One Gaussian mechanism on counts of rows, by how rare the released density finds them.
        A row is in exactly one bin, whatever the density, so it moves the counts by
        ``COUNTS`` at most; the threshold follows from the noisy counts, the density and public
        numbers. Without privacy the plain quantile is taken.
    """

    name = "bought"
    is_paid = True

    def check(self, wish: Wish, estimator: DensityEstimator) -> None:
        """Refuse a share outside (0, 1)."""
        super().check(wish, estimator)
        if wish.share is not None and not 0 < wish.share < 1:
            raise InputError(f"threshold_share must be between 0 and 1, got {wish.share}")

    def events(
        self, wish: Wish, budget: Budget, accountant: str, rows: int
    ) -> tuple[GaussianEvent, ...]:
        """One Gaussian mechanism; without privacy there is nothing to price."""
        if not budget.is_private:
            return ()
        whole = whole_noise(budget, accountant)
        share = wish.share or share_for(whole, wish.contamination, rows)
        return (_counting(whole / math.sqrt(share)),)

    def find(self, task: Task) -> Found:
        """Reads the private rows through one paid release."""
        logs = np.asarray(task.density.score_samples(task.rows), np.float64)
        if not task.budget.is_private:
            share = task.wish.contamination
            value = contamination_threshold(logs, share)
            return Threshold(self.name, value, share, epsilon=math.inf), ()
        return self._bought(logs, task)

    def _bought(self, logs: Float64[np.ndarray, " rows"], task: Task) -> Found:
        share, density = task.wish.contamination, task.density
        rarity, (event,) = Rarity.among(generated_scores(density)), task.events
        release = noisy_tail(
            rarity.of(logs), noise=event.noise, entropy=density._entropy(), purpose=_PURPOSE
        )
        value = rarity.score(release.value.rarity(share))
        price = together([release.event], task.budget, density.accountant)
        found = Threshold(self.name, value, share, epsilon=price, tail=release.value)
        return found, (release.event,)

    def describe(self, found: Threshold) -> str:
        """Where the threshold came from and what it cost."""
        quantile = (
            f"the {found.contamination or 0:.3g} quantile of the training rows' log-densities"
        )
        if not math.isfinite(found.epsilon):
            return f"{quantile} (NOT PRIVATE: read without noise)"
        return f"about {quantile}, bought with epsilon {found.epsilon:.3g} by itself"


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


def whole_noise(budget: Budget, accountant: str) -> float:
    """The noise on counts of rows that would take the whole budget.

    Example:
        >>> round(whole_noise(Budget(1.0, 1e-5), "pld"), 2)
        3.73
    """
    return calibrate_noise(budget, lambda noise: [_counting(noise)], accountant=accountant)


def share_for(whole: float, contamination: float, rows: int) -> float:
    """The public rule: the part of the squared Gaussian budget that a threshold should get.

    Enough for noise of three tenths of the rows that are to be flagged, within bounds.

    Args:
        whole: The noise that would take the whole budget.
        contamination: The share of rows to flag.
        rows: The public number of rows.

    Example:
        >>> [round(share_for(3.0, 0.01, rows), 2) for rows in (1_500, 3_300, 40_000)]
        [0.25, 0.09, 0.05]
    """
    wanted = (whole / (_FINE * contamination * max(rows, 1))) ** 2
    return min(max(wanted, _SHARES[0]), _SHARES[1])


def left_beside(event: GaussianEvent, budget: Budget, accountant: str) -> float:
    """The epsilon that a threshold's event leaves of a budget, if all else is Gaussian.

    Example:
        >>> whole = whole_noise(Budget(1.0, 1e-5), "pld")
        >>> event = GaussianEvent(noise=whole / math.sqrt(0.1), sensitivity=COUNTS)
        >>> round(left_beside(event, Budget(1.0, 1e-5), "pld"), 3)
        0.944
    """
    left = whole_noise(budget, accountant) ** -2 - event.noise**-2
    return min(together([_counting(left**-0.5)], budget, accountant), budget.epsilon)


def together(events: Sequence[Event], budget: Budget, accountant: str) -> float:
    """What events cost at the delta of a budget."""
    return epsilon_of(
        events, delta=budget.delta, neighbours=budget.neighbours, accountant=accountant
    )


def moved(found: Threshold, density: DensityEstimator, contamination: float) -> Threshold | None:
    """The threshold for another contamination from what was bought; none if nothing was kept.

    Guarantee:
        Reads the release and the released density: post-processing.
    """
    check_contamination(contamination)
    if found.tail is None:
        return None
    rarity = Rarity.among(generated_scores(density))
    value = rarity.score(found.tail.rarity(contamination))
    return dataclasses.replace(found, value=value, contamination=contamination)


def _counting(noise: float) -> GaussianEvent:
    return GaussianEvent(noise=noise, sensitivity=COUNTS, purpose=_PURPOSE)


def _labelled(public: Any, rule: str) -> tuple[Any, Any]:
    if not (isinstance(public, tuple | list) and len(public) == 2):
        raise InputError(
            f"public must be a pair of rows and labels (+1 normal, -1 anomaly) where the "
            f"threshold is {rule!r}"
        )
    return public[0], public[1]

"""Rules for the threshold of a detector, what each of them reads and what it costs.

A row is an anomaly if its log-density lies below the threshold. The rules compute it from a
share of anomalies or from labelled rows. A new rule is one class and one line in ``RULES``.

The rule ``bought`` estimates a quantile of private rows from one noisy histogram. The rarity
of a log-density is minus the logarithm of the share of the density's own samples below it. If
the density were exact, the share of real rows rarer than ``t`` would be ``exp(-t)``; the
deviation from that is released once, and gives the threshold for any share.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from scipy.optimize import minimize

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.pipeline.plan import Stage, Work, needed
from dpflows.privacy.accounting import calibrate_noise, epsilon_of
from dpflows.privacy.events import Event, GaussianEvent, Release, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import marginals_sensitivity, noisy_marginals
from dpflows.privacy.randomness import Entropy

CRITERIA = ("accuracy", "youden")

#: Rows the density generates to learn which of its own log-densities are low.
GENERATED = 20_000
#: Log-densities of one row may differ by this from batch to batch.
CLOSE = 1e-6

Logs = Float[np.ndarray, " rows"]


def contamination_threshold(log_densities: Logs, contamination: float) -> float:
    """A number below which lies the given share of the log-densities, and no more.

    It lies half-way between two log-densities, so that rounding changes no decision.

    Guarantee:
        None of its own: a quantile of private rows' log-densities is private.

    Example:
        >>> contamination_threshold(np.arange(10.0), 0.1)
        0.5
    """
    check_contamination(contamination)
    return quantile_between(np.sort(without_nan(log_densities)), contamination)


def quantile_between(ordered: Logs, share: float) -> float:
    """A number half-way between two of these increasing numbers, below which lies a share of them.

    Example:
        >>> quantile_between(np.arange(10.0), 0.75)
        6.5
    """
    finite(ordered[-1:])
    place = min(int(share * len(ordered) + 1e-9), len(ordered) - 1)
    value = max(ordered[place], ordered[np.isfinite(ordered)][0])
    gap = CLOSE * (1 + abs(value))
    lower = ordered[np.isfinite(ordered) & (ordered < value - gap)]
    return float((lower[-1] + value) / 2 if len(lower) else value - gap)


def best_threshold(log_densities: Logs, normal: Bool[np.ndarray, " rows"], criterion: str) -> float:
    """The threshold that separates labelled rows best.

    Args:
        log_densities: One per row; NaN counts as the lowest.
        normal: Which rows are normal; both kinds must be there.
        criterion: ``accuracy``, the share of correct decisions, or
            ``youden``, the mean of that share over the two kinds.

    Guarantee:
        None of its own: what is computed from private rows is private.

    Example:
        >>> logs = np.array([-9.0, -8.0, -2.0, -1.0])
        >>> best_threshold(logs, np.array([False, False, True, True]), "accuracy")
        -5.0
    """
    check_choice("criterion", criterion, CRITERIA)
    if normal.all() or not normal.any():
        raise InputError("normal must contain rows of both kinds, normal and anomalous")
    logs = without_nan(log_densities)
    places = _between(logs)
    kept = 1 - _share_below(logs[normal], places)
    caught = _share_below(logs[~normal], places)
    weight = float(normal.mean()) if criterion == "accuracy" else 0.5
    return float(places[np.argmax(weight * kept + (1 - weight) * caught)])


def check_contamination(contamination: float) -> None:
    """Refuse a share of anomalies outside (0, 0.5]."""
    if not 0 < contamination <= 0.5:
        raise InputError(f"contamination must be in (0, 0.5], got {contamination}")


def normal_rows(labels: Any) -> Bool[np.ndarray, " rows"]:
    """Which rows are normal by labels +1 and -1; labels that could mean either are refused.

    Example:
        >>> normal_rows([1, -1, 1]).tolist()
        [True, False, True]
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.isin(array, (-1, 1)).all():
        raise InputError(
            "labels must be +1 for normal rows and -1 for anomalies; booleans, 0 and 1 could be "
            "meant either way, so convert them, for example by np.where(is_anomaly, -1, 1)"
        )
    return np.asarray(array == 1)


def generated_scores(density: DensityEstimator) -> Float64[np.ndarray, " rows"]:
    """Log-densities of rows that the density generates; reads nothing but the density."""
    return np.asarray(density.score_samples(density.sample(GENERATED)), np.float64)


def without_nan(log_densities: Logs) -> Float64[np.ndarray, " rows"]:
    """Log-densities with NaN replaced by the lowest.

    Example:
        >>> without_nan(np.array([np.nan, 1.0])).tolist()
        [-inf, 1.0]
    """
    logs = np.asarray(log_densities, np.float64)
    return np.where(np.isnan(logs), -np.inf, logs)


def finite(log_densities: Logs) -> Float64[np.ndarray, " finite"]:
    """The finite values, of which there must be at least one.

    Example:
        >>> finite(np.array([-np.inf, 1.0])).tolist()
        [1.0]
    """
    logs = np.asarray(log_densities, np.float64)
    logs = logs[np.isfinite(logs)]
    if len(logs) == 0:
        raise InputError("log_densities must hold at least one finite number")
    return logs


def _between(logs: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, " places"]:
    """All thresholds with different decisions: below, between and above the rows."""
    values = np.unique(finite(logs))
    middles = values[:-1] + np.diff(values) / 2
    inner = np.where(middles > values[:-1], middles, values[1:])
    return np.concatenate([values[:1], inner, [np.nextafter(values[-1], np.inf)]])


def _share_below(
    logs: Float64[np.ndarray, " rows"], places: Float64[np.ndarray, " places"]
) -> Float64[np.ndarray, " places"]:
    return np.searchsorted(np.sort(logs), places, side="left") / len(logs)


#: What one row moves the counts by: it is in one bin, and a replaced row moves two.
COUNTS = marginals_sensitivity(1)
#: Shares of the density's own rows at which bins are cut.
SHARES = (0.5, 0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
#: Bins that the density would fill with fewer rows than this part of the noise are joined.
_WORTH = 0.7
_FEWEST = 4
#: Below the lowest of the density's own rows, one in so many, rarity is linear in log-density.
_LOWEST = 250
#: The slopes of minus the logarithm of the share of rows; a density that is right has slope 1.
_SLOPES = (0.05, 5.0)

Edges = Float64[np.ndarray, " edges"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Rarity:
    """The rarity of a log-density under a density, and its inverse.

    Attributes:
        own: Log-densities of rows that the density generated, finite and increasing.

    Guarantee:
        Reads only the density's own samples. The rarity of a row depends only on that row.

    Example:
        >>> rarity = Rarity.among(np.linspace(-10.0, 0.0, 20_000))
        >>> shares = np.exp(-rarity.of(np.array([-9.0, -5.0])))
        >>> shares.round(3).tolist(), round(rarity.score(-math.log(0.1)), 2)
        ([0.1, 0.5], -9.0)
        >>> rarity.of(np.array([-20.0, -np.inf, np.nan])).round(1).tolist()
        [501.3, inf, inf]
    """

    own: Float64[np.ndarray, " generated"]

    @classmethod
    def among(cls, generated: Float[np.ndarray, " generated"]) -> "Rarity":
        """The rarity that the log-densities of a density's own rows define."""
        return cls(np.sort(finite(generated)))

    def of(self, scores: Float[np.ndarray, " rows"]) -> Float64[np.ndarray, " rows"]:
        """Minus the logarithm of the share of own rows below each log-density."""
        logs = np.minimum(without_nan(scores), self.own[-1])
        base, deepest, unit = self._tail()
        with np.errstate(over="ignore"):
            below = np.searchsorted(self.own, logs - _gap(logs), side="left")
            outer = deepest + (base - logs) / unit
        inner = np.minimum(-np.log(np.maximum(below, 0.5) / len(self.own)), deepest)
        return np.where(logs < base - _gap(base), outer, inner)

    def score(self, rarity: float) -> float:
        """A log-density below which lie the rows that are rarer, and no others."""
        base, deepest, unit = self._tail()
        if rarity <= deepest:
            return quantile_between(self.own, math.exp(-rarity))
        return float(base - (rarity - deepest) * unit - _gap(base))

    def _tail(self) -> tuple[float, float, float]:
        """Where the lowest own rows begin, how rare that is, and the log-density per rarity."""
        base = self.own[len(self.own) // _LOWEST]
        below = int(np.searchsorted(self.own, base - _gap(base), side="left"))
        depth = float(np.mean(base - self.own[:below])) if below else 0.0
        rarest = -math.log(max(below, 0.5) / len(self.own))
        return float(base), rarest, max(depth, float(_gap(base)))


@final
@dataclasses.dataclass(frozen=True)
class Tail:
    """The share of rows beyond each rarity.

    Attributes:
        edges: Rarities, increasing from above zero.
        depths: Minus the logarithm of the share of rows beyond each; straight lines between
            them, from zero at zero, and beyond the last.

    Example:
        >>> Tail((1.0, 3.0), (2.0, 3.0)).rarity(math.exp(-2.5))
        2.0
        >>> Tail.from_dict(Tail((1.0, 3.0), (2.0, 3.0)).to_dict()).rarity(math.exp(-3.5))
        4.0
    """

    edges: tuple[float, ...]
    depths: tuple[float, ...]

    def __post_init__(self) -> None:
        lines = (0.0, *self.edges), (0.0, *self.depths)
        steps = [b - a for line in lines for a, b in itertools.pairwise(line)]
        is_paired = 0 < len(self.edges) == len(self.depths)
        if not (is_paired and all(math.isfinite(s) and s > 0 for s in steps)):
            raise InputError("tail must have as many edges as depths, finite and increasing")

    def rarity(self, share: float) -> float:
        """The rarity that a share of the rows exceeds."""
        edges, depths, wanted = (0.0, *self.edges), (0.0, *self.depths), -math.log(share)
        if wanted <= depths[-1]:
            return float(np.interp(wanted, depths, edges))
        slope = (edges[-1] - edges[-2]) / (depths[-1] - depths[-2])
        return edges[-1] + (wanted - depths[-1]) * slope

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {"edges": list(self.edges), "depths": list(self.depths)}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Tail":
        """Read back what ``to_dict`` wrote; the content may be hostile."""
        edges, depths = (description[name] for name in ("edges", "depths"))
        return cls(tuple(float(edge) for edge in edges), tuple(float(d) for d in depths))


def edges_for(rows: int, noise: float) -> Edges:
    """The edges of bins for a public number of rows and this noise on each count.

    Example:
        >>> [len(edges_for(rows, 10.0)) for rows in (100, 3_000, 40_000)]
        [4, 6, 8]
    """
    worth = sum(rows * share >= _WORTH * noise for share in SHARES)
    return -np.log(SHARES[: max(worth, _FEWEST)])


def bins_of(rarities: Float64[np.ndarray, " rows"], edges: Edges) -> Int64[np.ndarray, " rows"]:
    """The bin of each row: the number of edges it exceeds.

    Example:
        >>> bins_of(np.array([0.5, 1.0, 1.5, np.inf]), np.array([1.0, 2.0])).tolist()
        [0, 0, 1, 2]
    """
    return np.searchsorted(edges, rarities, side="left").astype(np.int64)


def noisy_tail(
    rarities: Float64[np.ndarray, " rows"], *, noise: float, entropy: Entropy, purpose: str
) -> Release[Tail]:
    """The share of rows beyond each rarity.

    Args:
        rarities: One per row, infinite for rows that have no density; each computed only from its
        row.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        One Gaussian mechanism on the number of rows in each bin, with the L2 sensitivity of
        ``COUNTS``: a row is in exactly one bin. Bins follow from the noise and the public
        number of rows, and the tail from the noisy counts.

    Example:
        >>> rarities = np.random.default_rng().exponential(size=100_000)
        >>> tail = noisy_tail(
        ...     rarities, noise=5.0, entropy=Entropy.from_os(), purpose="threshold"
        ... ).value
        >>> abs(tail.rarity(0.05) - math.log(20)) < 0.2
        True
    """
    rows = len(rarities)
    edges = edges_for(rows, noise)
    release = noisy_marginals(
        bins_of(rarities, edges)[:, None],
        (len(edges) + 1,),
        noise=noise,
        entropy=entropy,
        purpose=purpose,
    )
    tail = fitted_tail(release.value[0], edges, rows=rows, noise=noise)
    return Release(tail, release.event, release.stamp)


def fitted_tail(
    counts: Float64[np.ndarray, " bins"], edges: Edges, *, rows: int, noise: float
) -> Tail:
    """The most probable tail given noisy counts, shrunk towards that of the density.

    Counts have the variance of the noise and of the rows. A priori the logarithm of the slope
    is a random walk: normal with deviation 1 at the start, and with variance 1 per unit of
    rarity from there on. So without any rows the tail is that of an exact density.

    Args:
        counts: One more than there are edges.
        edges: Rarities at which bins are cut.
        rows: The public number of rows.
        noise: Standard deviation of the noise on each count.

    Example:
        >>> edges = np.array([1.0, 2.0])
        >>> shares = -np.diff([1.0, math.exp(-2), math.exp(-4), 0.0])
        >>> tail = fitted_tail(1e6 * shares, edges, rows=10**6, noise=1.0)
        >>> [round(depth, 2) for depth in tail.depths]
        [2.0, 4.0]
    """
    widths = np.diff(edges, prepend=0.0)
    apart = np.diff(edges - widths / 2)

    def surprise(logs: Float64[np.ndarray, " edges"]) -> float:
        expected = rows * _bin_shares(np.exp(logs) * widths)
        variance = noise**2 + expected
        misfit = ((counts - expected) ** 2 / variance + np.log(variance)).sum()
        return float(misfit + logs[0] ** 2 + (np.diff(logs) ** 2 / apart).sum()) / 2

    bounds = [tuple(np.log(_SLOPES))] * len(edges)
    found = minimize(surprise, np.zeros(len(edges)), method="L-BFGS-B", bounds=bounds).x
    slopes = np.clip(np.exp(found), *_SLOPES)
    return Tail(tuple(edges.tolist()), tuple(np.cumsum(slopes * widths).tolist()))


def _bin_shares(steps: Edges) -> Float64[np.ndarray, " bins"]:
    """The share of rows in each bin if the tail falls by these steps of its logarithm."""
    beyond = np.exp(-np.cumsum(steps))
    return -np.diff(np.concatenate([[1.0], beyond, [0.0]]))


def _gap(scores: Any) -> Any:
    """By how much log-densities of one row may differ from batch to batch."""
    return CLOSE * (1 + np.abs(scores))


_PURPOSE = "threshold"
#: The noise on a count of rows that a threshold should have, in rows that are to be flagged.
_FINE = 0.3
#: The part of the squared Gaussian budget that it takes for that, at least and at most.
_SHARES = (0.05, 0.25)


@final
@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold and its origin.

    Attributes:
        rule: The name of the rule that found it.
        value: In log-density, original units.
        contamination: The intended share of rows below, if any.
        rows: Number of generated or public rows it was computed from, if any.
        epsilon: Its epsilon alone; infinite if it was read from the rows without noise.
        tail: The released tail of the rows' log-densities, from which the threshold for any other
        contamination follows at no cost.

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
        """Its origin and cost, in words."""
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
class ThresholdSettings:
    """The user's settings of the threshold, all of them public.

    Attributes:
        threshold: A number or the name of a rule.
        contamination: The share of rows to call anomalies.
        public: Labelled rows that are public, if any.
        share: The share of the squared Gaussian budget for a charged rule, or ``None`` for the
        public rule of ``share_for``.
    """

    threshold: Any
    contamination: float
    public: Any = None
    share: float | None = None

    @property
    def rule(self) -> "Rule":
        """The named rule; a number is used as given."""
        if isinstance(self.threshold, Real) and not isinstance(self.threshold, bool):
            return RULES["given"]
        named = self.threshold if isinstance(self.threshold, str) else None
        if named is None or named == "given" or named not in RULES:
            names = ", ".join(name for name in RULES if name != "given")
            raise InputError(f"threshold must be a number or one of auto, {names}")
        return RULES[named]


@final
@dataclasses.dataclass(frozen=True)
class FindThreshold(Stage):
    """The stage after a density's fit: find the threshold of a detector.

    Attributes:
        settings: The user's settings of the threshold.
        budget: The budget of density and threshold together.
        accountant: Which accountant computes the cost.
        released: What the rule will release.

    Guarantee:
        Only a rule that says ``is_paid`` is given the private rows, and it releases
        ``released`` and nothing else.
    """

    settings: ThresholdSettings
    budget: Budget
    accountant: str
    released: tuple[GaussianEvent, ...] = ()

    @classmethod
    def planned(
        cls, settings: ThresholdSettings, budget: Budget, accountant: str, rows: int
    ) -> "FindThreshold":
        """The stage for a public number of rows."""
        released = settings.rule.events(settings, budget, accountant, rows)
        return cls(settings, budget, accountant, released)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the rule releases."""
        return self.released

    def run(self, work: Work) -> Work:
        """Needs the density that was fitted to the rows."""
        density = needed(work.density)
        logs = density.log_densities(work.table) if self.settings.rule.is_paid else None
        return work.after(threshold=self.settings.rule.find(self, density, logs))


class Rule(abc.ABC):
    """A rule that computes a threshold.

    Guarantee:
        Only a rule that says ``is_paid`` is given log-densities of private rows, and what it
        releases is in its ``events``. The others read the released density and public things:
        post-processing.
    """

    name: str
    is_paid: ClassVar[bool] = False

    def check(self, settings: ThresholdSettings) -> None:
        """Refuse public settings that cannot work, before any row is read."""
        check_contamination(settings.contamination)

    def events(
        self, settings: ThresholdSettings, budget: Budget, accountant: str, rows: int
    ) -> tuple[GaussianEvent, ...]:
        """Every release that ``find`` will make, known before any row is read."""
        return ()

    @abc.abstractmethod
    def find(self, stage: FindThreshold, density: DensityEstimator, logs: Logs | None) -> Threshold:
        """The threshold of a released density.

        Args:
            stage: What was asked for, and what may be released.
            density: The released density.
            logs: Log-densities of the private rows, for a rule that ``is_paid``.
        """

    @abc.abstractmethod
    def describe(self, found: Threshold) -> str:
        """The origin and cost of the threshold."""


@final
class Given(Rule):
    """A threshold given by the user."""

    name = "given"

    def find(self, stage: FindThreshold, density: DensityEstimator, logs: Logs | None) -> Threshold:
        """The number itself."""
        return Threshold(self.name, float(stage.settings.threshold))

    def describe(self, found: Threshold) -> str:
        """The origin and cost of the threshold."""
        return f"{found.value:g}, as given (free)"


@final
class OwnSamples(Rule):
    """A quantile of the log-densities of the density's own samples."""

    name = "samples"

    def find(self, stage: FindThreshold, density: DensityEstimator, logs: Logs | None) -> Threshold:
        """Reads only the released density."""
        share = stage.settings.contamination
        value = contamination_threshold(generated_scores(density), share)
        return Threshold(self.name, value, share, GENERATED)

    def describe(self, found: Threshold) -> str:
        """The origin and cost of the threshold."""
        quantile = f"the {found.contamination or 0:.3g} quantile"
        return f"{quantile} of the log-densities of {found.rows or 0:,} generated rows (free)"


@final
class BestOnPublic(Rule):
    """The best threshold for labelled rows that are public."""

    def __init__(self, name: str, words: str) -> None:
        self.name, self._words = name, words

    def check(self, settings: ThresholdSettings) -> None:
        """Refuse anything but a pair of rows and labels of both kinds."""
        super().check(settings)
        normal = normal_rows(_labelled(settings.public, self.name)[1])
        if normal.all() or not normal.any():
            raise InputError("labels must hold both kinds: +1 for normal rows, -1 for anomalies")

    def find(self, stage: FindThreshold, density: DensityEstimator, logs: Logs | None) -> Threshold:
        """Reads the released density and the public set."""
        table, labels = _labelled(stage.settings.public, self.name)
        normal, logs = normal_rows(labels), density.score_samples(table)
        if len(logs) != len(normal):
            raise InputError(
                f"public must have one label for each row, got {len(logs)} and {len(normal)}"
            )
        return Threshold(self.name, best_threshold(logs, normal, self.name), rows=len(logs))

    def describe(self, found: Threshold) -> str:
        """The origin and cost of the threshold."""
        return f"{self._words} on {found.rows or 0:,} labelled rows that are public (free)"


@final
class NoisyQuantile(Rule):
    """A quantile of the training rows' log-densities, charged to a share of the budget.

    Guarantee:
        One Gaussian mechanism on counts of rows, by how rare the released density finds them. A row
        is in exactly one bin, whatever the density, so it changes the counts by at most ``COUNTS``;
        the threshold follows from the noisy counts, the density and public numbers. Without privacy
        the plain quantile is taken.
    """

    name = "bought"
    is_paid = True

    def check(self, settings: ThresholdSettings) -> None:
        """Refuse a share outside (0, 1)."""
        super().check(settings)
        if settings.share is not None and not 0 < settings.share < 1:
            raise InputError(f"threshold_share must be between 0 and 1, got {settings.share}")

    def events(
        self, settings: ThresholdSettings, budget: Budget, accountant: str, rows: int
    ) -> tuple[GaussianEvent, ...]:
        """One Gaussian mechanism; nothing without privacy."""
        if not budget.is_private:
            return ()
        whole = whole_noise(budget, accountant)
        share = settings.share or share_for(whole, settings.contamination, rows)
        return (_counting(whole / math.sqrt(share)),)

    def find(self, stage: FindThreshold, density: DensityEstimator, logs: Logs | None) -> Threshold:
        """Reads the private rows through one charged release."""
        logs, share = np.asarray(needed(logs), np.float64), stage.settings.contamination
        if not stage.budget.is_private:
            value = contamination_threshold(logs, share)
            return Threshold(self.name, value, share, epsilon=math.inf)
        rarity, (event,) = Rarity.among(generated_scores(density)), stage.released
        release = noisy_tail(
            rarity.of(logs), noise=event.noise, entropy=density.entropy(), purpose=_PURPOSE
        )
        value = rarity.score(release.value.rarity(share))
        epsilon = together([release.event], stage.budget, stage.accountant)
        return Threshold(self.name, value, share, epsilon=epsilon, tail=release.value)

    def describe(self, found: Threshold) -> str:
        """The origin and cost of the threshold."""
        quantile = (
            f"the {found.contamination or 0:.3g} quantile of the training rows' log-densities"
        )
        if not math.isfinite(found.epsilon):
            return f"{quantile} (NOT PRIVATE: read without noise)"
        return f"about {quantile}, released with epsilon {found.epsilon:.3g}"


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Given(),
        OwnSamples(),
        BestOnPublic("accuracy", "the best accuracy"),
        BestOnPublic("youden", "the best mean of both kinds' accuracies (Youden)"),
        NoisyQuantile(),
    )
}


def whole_noise(budget: Budget, accountant: str) -> float:
    """The noise on counts of rows that would use the whole budget.

    Example:
        >>> round(whole_noise(Budget(1.0, 1e-5), "pld"), 2)
        3.73
    """
    return calibrate_noise(budget, lambda noise: [_counting(noise)], accountant=accountant)


def share_for(whole: float, contamination: float, rows: int) -> float:
    """The public rule: the share of the squared Gaussian budget for a threshold.

    Enough for noise of three tenths of the rows that are to be flagged, within bounds.

    Args:
        whole: The noise that would use the whole budget.
        contamination: The share of rows to flag.
        rows: The public number of rows.

    Example:
        >>> [round(share_for(3.0, 0.01, rows), 2) for rows in (1_500, 3_300, 40_000)]
        [0.25, 0.09, 0.05]
    """
    wanted = (whole / (_FINE * contamination * max(rows, 1))) ** 2
    return min(max(wanted, _SHARES[0]), _SHARES[1])


def left_beside(event: GaussianEvent, budget: Budget, accountant: str) -> float:
    """The epsilon that remains after a threshold's event, if all else is Gaussian.

    Example:
        >>> whole = whole_noise(Budget(1.0, 1e-5), "pld")
        >>> event = GaussianEvent(noise=whole / math.sqrt(0.1), sensitivity=COUNTS)
        >>> round(left_beside(event, Budget(1.0, 1e-5), "pld"), 3)
        0.944
    """
    left = whole_noise(budget, accountant) ** -2 - event.noise**-2
    return min(together([_counting(left**-0.5)], budget, accountant), budget.epsilon)


def together(events: Sequence[Event], budget: Budget, accountant: str) -> float:
    """The epsilon of events at the delta of a budget."""
    return epsilon_of(
        events, delta=budget.delta, neighbours=budget.neighbours, accountant=accountant
    )


def moved(found: Threshold, density: DensityEstimator, contamination: float) -> Threshold | None:
    """The threshold for another contamination from the released tail; None without one.

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

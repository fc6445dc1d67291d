"""Accountants by name: what events cost, and the noise or the steps that a budget allows.

``epsilon_of``, ``delta_of`` and ``guarantee_for`` compute what events cost. ``calibrate_noise`` and
``calibrate_steps`` keep a bracket of which one end is known to be within the budget, and return
that end, so rounding never exceeds the budget. ``Run`` is one training run whose cost can be
computed by every accountant.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting.gdp import GDPAccountant, GDPCLTAccountant, ZCDPAccountant
from dpflows.privacy.accounting.pld import PLDAccountant
from dpflows.privacy.accounting.privacy_profiles import (
    Accountant,
    Approximated,
    GaussianProfile,
    Profile,
)
from dpflows.privacy.accounting.rdp import RDPAccountant
from dpflows.privacy.events import (
    NEIGHBOURS,
    SAMPLINGS,
    Event,
    GaussianEvent,
    Neighbours,
    SampledGaussianEvent,
    Sampling,
    Sensitivity,
    check_choice,
    total_distance,
)
from dpflows.privacy.guarantee import Budget, Guarantee, Kind, check_delta

ACCOUNTANTS: dict[str, Accountant] = {
    accountant.name: accountant
    for accountant in (
        PLDAccountant(),
        RDPAccountant(),
        GDPCLTAccountant(),
        ZCDPAccountant(),
        GDPAccountant(),
    )
}

_LIBRARIES = ("dpflows", "dp-accounting", "numpy", "opendp", "scipy")


def epsilon_of(
    events: Sequence[Event],
    *,
    delta: float,
    neighbours: Neighbours = "zero-out",
    accountant: str = "pld",
) -> float:
    """The epsilon of all ``events`` together at ``delta``.

    Guarantee:
        At least the true cost if the accountant's ``kind`` is ``bound``.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=5.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> round(epsilon_of([event], delta=1e-5), 3)
        0.726
    """
    check_delta(delta)
    check_choice("neighbours", neighbours, NEIGHBOURS)
    return profile_of(events, neighbours, accountant).epsilon(delta) if events else 0.0


def delta_of(
    events: Sequence[Event],
    *,
    epsilon: float,
    neighbours: Neighbours = "zero-out",
    accountant: str = "pld",
) -> float:
    """The delta of all ``events`` together at ``epsilon``.

    Guarantee:
        At least the true delta if the accountant's ``kind`` is ``bound``.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> delta_of([PureEvent(epsilon=Sensitivity.uniformly(0.5))], epsilon=1.0) < 1e-11
        True
    """
    if not epsilon >= 0:
        raise InputError(f"epsilon must not be negative, got {epsilon}")
    check_choice("neighbours", neighbours, NEIGHBOURS)
    return profile_of(events, neighbours, accountant).delta(epsilon) if events else 0.0


def profile_of(events: Sequence[Event], neighbours: Neighbours, accountant: str) -> Profile:
    """The privacy profile of all ``events``, including the distance of program from mechanism."""
    ideal = choose(accountant).profile(events, neighbours)
    distance = total_distance(events)
    return Approximated(ideal, distance) if distance else ideal


def guarantee_for(
    events: Sequence[Event],
    *,
    budget: Budget,
    accountant: str = "pld",
    stamps: Sequence[str] = (),
    caveats: Sequence[str] = (),
) -> Guarantee:
    """The certificate of a release that made exactly ``events``.

    Guarantee:
        States the cost of the events at the budget's delta, never less, whatever the budget
        allowed. For an unlimited budget nothing is guaranteed.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=5.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> promise = guarantee_for([event], budget=Budget(1.0, 1e-5))
        >>> promise.kind, round(promise.epsilon, 3), round(promise.replace_one_epsilon, 3)
        ('bound', 0.726, 1.555)
    """
    epsilon = _claimed(events, budget, accountant)
    return Guarantee(
        epsilon=epsilon,
        delta=budget.delta,
        neighbours=budget.neighbours,
        accountant=accountant,
        kind=choose(accountant).kind if math.isfinite(epsilon) else "none",
        events=tuple(events),
        replace_one_epsilon=_replace_one(events, budget, epsilon),
        versions=_versions(),
        stamps=tuple(stamps),
        caveats=tuple(caveats),
    )


def choose(accountant: str) -> Accountant:
    """The accountant of that name."""
    if accountant not in ACCOUNTANTS:
        check_choice("accountant", accountant, tuple(ACCOUNTANTS))
    return ACCOUNTANTS[accountant]


def _claimed(events: Sequence[Event], budget: Budget, accountant: str) -> float:
    if not budget.is_private:
        return math.inf
    return epsilon_of(
        events, delta=budget.delta, neighbours=budget.neighbours, accountant=accountant
    )


def _replace_one(events: Sequence[Event], budget: Budget, epsilon: float) -> float | None:
    if not math.isfinite(epsilon):
        return None
    try:
        return epsilon_of(events, delta=budget.delta, neighbours="replace-one")
    except InputError:
        return None


def _versions() -> dict[str, str]:
    return {library: metadata.version(library) for library in _LIBRARIES}


class PrivacyPlan(abc.ABC):
    """A plan that knows its events before a row is read.

    Attributes:
        budget: The budget of the plan.
        accountant: The accountant's name.

    Guarantee:
        ``guarantee`` is that of exactly ``events``: whoever carries the plan out must release those
        and nothing else.
    """

    budget: Budget
    accountant: str

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """Every release the plan makes, in order."""

    @property
    def is_private(self) -> bool:
        """Whether the budget is finite."""
        return self.budget.is_private

    def guarantee(self, *, stamps: Sequence[str] = (), caveats: Sequence[str] = ()) -> Guarantee:
        """The guarantee of carrying out the plan."""
        return guarantee_for(
            self.events,
            budget=self.budget,
            accountant=self.accountant,
            stamps=stamps,
            caveats=caveats,
        )

    def shares(self) -> dict[str, float]:
        """The epsilon of each purpose alone; together they compose to less than the sum."""
        purposes = dict.fromkeys(event.purpose for event in self.events)
        return {
            purpose: self._price([event for event in self.events if event.purpose == purpose])
            for purpose in purposes
        }

    def _price(self, events: Sequence[Event]) -> float:
        return epsilon_of(
            events,
            delta=self.budget.delta,
            neighbours=self.budget.neighbours,
            accountant=self.accountant,
        )


#: A multiplier is found to this relative precision, from above.
PRECISION = 1e-4
_NOISE_RANGE = (math.log(1e-2), math.log(1e7))
_STEP_RANGE = (0.0, math.log(2.0**40))
_FIRST_STEPS = math.log(1000)
#: The shortest stride of a walk; it grows fourfold from trial to trial.
_LEAST_STRIDE = 1e-3
#: Rounds of the estimate at which a search begins.
_GUESSES = 4
#: After so many trials the secant gives way to halving, which cannot stall.
_PATIENCE = 12


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A setting on a log scale and the log of the ratio of its cost to the budget."""

    at: float
    excess: float


@dataclasses.dataclass(frozen=True)
class _Search:
    """Trials so far; ``uphill`` is the direction in which the cost grows."""

    trials: list[_Trial]
    uphill: float

    @property
    def within(self) -> _Trial | None:
        """The costliest trial that the budget allows."""
        allowed = [trial for trial in self.trials if trial.excess <= 0]
        return max(allowed, key=lambda trial: self.uphill * trial.at, default=None)

    @property
    def beyond(self) -> _Trial | None:
        """The cheapest trial that exceeds it."""
        refused = [trial for trial in self.trials if trial.excess > 0]
        return min(refused, key=lambda trial: self.uphill * trial.at, default=None)

    @property
    def ends(self) -> list[_Trial]:
        """The ends of the bracket that are known."""
        return [trial for trial in (self.within, self.beyond) if trial is not None]

    @property
    def width(self) -> float:
        """The length of the bracket; ``None`` if one end is unknown."""
        places = [trial.at for trial in self.ends]
        return max(places) - min(places)

    def extended(self, trial: _Trial) -> "_Search":
        """The search with one more trial."""
        return _Search([*self.trials, trial], self.uphill)

    def stride(self, last: _Trial) -> float:
        """The step of the bracket search, if the cost grows like a root."""
        length = min(max(2.1 * abs(last.excess), _LEAST_STRIDE * 4.0 ** len(self.trials)), 4.0)
        return math.copysign(length, -self.uphill * last.excess)

    def aim(self, margin: float) -> float:
        """The point inside the bracket where a secant meets the budget.

        The one through the two best trials is steep enough near the end; before that, the cost of
        the other events may flatten it, and the one through the bracket's ends is used.
        """
        low, high = sorted(trial.at for trial in self.ends)
        best = sorted(self.trials, key=lambda trial: abs(trial.excess))[:2]
        pairs = (best, self.ends) if len(self.trials) <= _PATIENCE else ()
        inside = [at for at in (_crossing(*pair) for pair in pairs) if low < at < high]
        if not inside:
            return (low + high) / 2
        return min(max(inside[0], low + margin), high - margin)


def _crossing(one: _Trial, two: _Trial) -> float:
    """Where the line through two trials meets the budget; ``None`` if flat or too steep."""
    slope = (two.excess - one.excess) / (two.at - one.at)
    return one.at - one.excess / slope if slope else math.nan


def calibrate_noise(
    budget: Budget,
    events_for: Callable[[float], Sequence[Event]],
    *,
    accountant: str = "pld",
) -> float:
    """The smallest noise multiplier whose events stay within the budget.

    Args:
        budget: The budget; an unlimited one needs no noise.
        events_for: The events of a run with a given noise multiplier; their cost must
            fall as it grows.
        accountant: The accountant's name.

    Guarantee:
        The cost at the returned multiplier is at most ``budget.epsilon``.

    Raises:
        BudgetError: If no amount of noise suffices, because other events cost too much.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> unit = Sensitivity.of_sum(1.0)
        >>> noise = calibrate_noise(
        ...     Budget(1.0, 1e-5), lambda z: [GaussianEvent(noise=z, sensitivity=unit)]
        ... )
        >>> round(noise, 2)
        3.73
    """
    if not budget.is_private:
        return 0.0

    def trial(logarithm: float) -> _Trial:
        return _priced(logarithm, events_for(math.exp(logarithm)), budget, accountant)

    first = trial(_near(budget, events_for))
    search = _bracket(_Search([first], uphill=-1.0), trial, _NOISE_RANGE)
    _allowed(search, _NO_NOISE_SUFFICES)
    while search.width > PRECISION:
        search = search.extended(trial(search.aim(margin=0.9 * PRECISION)))
    return math.exp(_allowed(search, _NO_NOISE_SUFFICES).at)


def _near(budget: Budget, events_for: Callable[[float], Sequence[Event]]) -> float:
    """An estimate of the log noise at which the search begins; the result does not depend on it."""
    wanted, at = strength(budget) ** 2, 0.0
    for _ in range(_GUESSES):
        rough = _rough_square(events_for(math.exp(at)), budget.neighbours)
        if not 0 < rough < math.inf:
            return 0.0
        at = min(max(at + math.log(rough / wanted) / 2, _NOISE_RANGE[0]), _NOISE_RANGE[1])
    return at


def _rough_square(events: Sequence[Event], neighbours: Neighbours) -> float:
    """About the squared mu of Gaussian releases; not finite for others, and no bound."""
    total = 0.0
    for event in events:
        if isinstance(event, GaussianEvent):
            each = (event.sensitivity.under(neighbours) / event.noise) ** 2
        elif isinstance(event, SampledGaussianEvent):
            # beyond the least noise that is searched, larger than any budget
            each = event.rate**2 * math.expm1(min(event.noise_multiplier**-2, 700.0))
        else:
            return math.inf
        total += event.count * each
    return total


def calibrate_steps(
    budget: Budget,
    events_for: Callable[[int], Sequence[Event]],
    *,
    accountant: str = "pld",
) -> int:
    """The largest number of steps whose events stay within the budget.

    Args:
        budget: The budget; must be finite.
        events_for: The events of a run of a given number of steps.
        accountant: The accountant's name.

    Guarantee:
        The cost of the returned number of steps is at most ``budget.epsilon``.

    Raises:
        BudgetError: If not even one step fits.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> unit = Sensitivity.of_sum(1.0)
        >>> calibrate_steps(
        ...     Budget(1.0, 1e-5),
        ...     lambda t: [GaussianEvent(noise=20.0, sensitivity=unit, count=t)],
        ...     accountant="gdp",
        ... )
        28
    """
    if not budget.is_private:
        raise InputError(
            "epsilon must be finite to compute the number of steps; give the number "
            "of steps instead"
        )

    def trial(logarithm: float) -> _Trial:
        steps = round(math.exp(logarithm))
        return _priced(math.log(steps), events_for(steps), budget, accountant)

    search = _bracket(_Search([trial(_FIRST_STEPS)], uphill=1.0), trial, _STEP_RANGE)
    _allowed(search, _NO_STEP_FITS)
    if search.beyond is None:
        raise InputError("epsilon allows any number of steps; give the number of steps instead")
    while (between := _between(search)) is not None:
        search = search.extended(trial(math.log(between)))
    return _steps(_allowed(search, _NO_STEP_FITS))


_NO_NOISE_SUFFICES = (
    "epsilon is too small for any noise_multiplier: the other releases alone exceed it; increase "
    "epsilon or remove some of them"
)
_NO_STEP_FITS = "epsilon does not allow a single step; increase epsilon or the noise_multiplier"


def _allowed(search: _Search, refusal: str) -> _Trial:
    if search.within is None:
        raise BudgetError(refusal)
    return search.within


def _between(search: _Search) -> int | None:
    """The number of steps to try next, strictly inside the bracket; ``None`` if it is closed."""
    low, high = sorted(_steps(trial) for trial in search.ends)
    if high - low <= 1:
        return None
    return min(max(round(math.exp(search.aim(margin=0.0))), low + 1), high - 1)


def _steps(trial: _Trial) -> int:
    return round(math.exp(trial.at))


def _priced(at: float, events: Sequence[Event], budget: Budget, accountant: str) -> _Trial:
    epsilon = _remembered_cost(tuple(events), budget, accountant)
    return _Trial(at, math.log(max(epsilon, 1e-12) / budget.epsilon))


@functools.lru_cache(maxsize=1024)
def _remembered_cost(events: tuple[Event, ...], budget: Budget, accountant: str) -> float:
    """What events cost; equal plans are calibrated once in a process."""
    return profile_of(events, budget.neighbours, accountant).epsilon(budget.delta)


def _bracket(
    search: _Search, trial: Callable[[float], _Trial], ends: tuple[float, float]
) -> _Search:
    """Extend the search until one trial is within the budget and one beyond, or the range ends."""
    while search.within is None or search.beyond is None:
        last = search.trials[-1]
        ahead = min(max(last.at + search.stride(last), ends[0]), ends[1])
        if ahead == last.at:
            return search
        search = search.extended(trial(ahead))
    return search


def strength(budget: Budget) -> float:
    """The mu of Gaussian differential privacy that a budget allows; infinite without privacy.

    It is that of a sum in which a row counts one: under ``replace-one`` half of the distance that
    two tables may have.

    Example:
        >>> round(strength(Budget(1.0, 1e-5)), 2)
        0.27
    """
    if not budget.is_private:
        return math.inf
    distance = Sensitivity.of_sum(1.0).under(budget.neighbours)
    return GaussianProfile.within(budget.epsilon, budget.delta).mu / distance


def noise_of_share(budget: Budget, sensitivity: Sensitivity, share: float = 1.0) -> float:
    """The noise of a Gaussian release that costs a share of the squared Gaussian budget.

    Zero without privacy.

    Example:
        >>> round(noise_of_share(Budget(1.0, 1e-5), Sensitivity.of_sum(1.0), share=0.25), 2)
        7.46
    """
    if not budget.is_private:
        return 0.0
    mu = GaussianProfile.within(budget.epsilon, budget.delta).mu
    return sensitivity.under(budget.neighbours) / (mu * math.sqrt(share))


@dataclasses.dataclass(frozen=True)
class View:
    """One way to account for a run: accountant, batch sampling and neighbour relation.

    Example:
        >>> View("gdp-clt", "uniform", "replace-one").kind
        'estimate'
    """

    accountant: str
    sampling: Sampling
    neighbours: Neighbours

    @property
    def kind(self) -> Kind:
        """``bound`` or ``estimate``."""
        return ACCOUNTANTS[self.accountant].kind

    @property
    def reading(self) -> str:
        """The meaning of its figures, in one line."""
        return ACCOUNTANTS[self.accountant].reading


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run whose number of steps is not fixed yet.

    Example:
        >>> run = Run(rows=24059, batch_size=100, noise_multiplier=2.1, delta=1.52e-5)
        >>> view = View("gdp-clt", "uniform", "replace-one")
        >>> run.steps(view, epsilon=1.0), round(run.epsilon(view, steps=12565), 2)
        (12565, 1.0)
    """

    rows: int
    batch_size: int
    noise_multiplier: float
    delta: float

    def events(self, sampling: Sampling, steps: int) -> list[SampledGaussianEvent]:
        """The events of ``steps`` steps."""
        step = SampledGaussianEvent(
            sampling=sampling,
            rows=self.rows,
            batch_size=self.batch_size,
            noise_multiplier=self.noise_multiplier,
            count=steps,
        )
        return [step]

    def epsilon(self, view: View, *, steps: int) -> float:
        """The epsilon of ``steps`` steps in this view."""
        return epsilon_of(
            self.events(view.sampling, steps),
            delta=self.delta,
            neighbours=view.neighbours,
            accountant=view.accountant,
        )

    def steps(self, view: View, *, epsilon: float) -> int:
        """The number of steps that ``epsilon`` allows in this view; ``None`` if not even one."""
        budget = Budget(epsilon, self.delta, view.neighbours)
        try:
            return calibrate_steps(
                budget, lambda t: self.events(view.sampling, t), accountant=view.accountant
            )
        except BudgetError:
            return 0

    def views(self, samplings: Sequence[Sampling] = SAMPLINGS) -> Iterator[View]:
        """All views that support this run, the default accountant first."""
        self.events("poisson", 1)
        for accountant in ACCOUNTANTS:
            for sampling in samplings:
                for neighbours in NEIGHBOURS:
                    view = View(accountant, sampling, neighbours)
                    if self._priced(view):
                        yield view

    def _priced(self, view: View) -> bool:
        accountant = ACCOUNTANTS[view.accountant]
        try:
            accountant.profile(self.events(view.sampling, 1), view.neighbours)
        except InputError:
            return False
        return True

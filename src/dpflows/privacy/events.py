"""Privacy events: descriptions of releases that an accountant can interpret; and releases.

An event states the noise that was added and the sensitivity of the released value under each
neighbour relation. It holds no private value, so a list of events may be published.
Accountants interpret events; events know no accountant. There are noisy values (Gaussian,
Laplace, geometric), mechanisms of which only a guarantee is known (bounded range, pure,
approximate, zCDP), noisy sums over random batches, the best of a random number of runs, and
noisy votes. Every event has a purpose, a count and a JSON description.

A mechanism returns a ``Release``: a value that may be published, and the event to charge.

Guarantee:
    Inside ``only_these``, a release whose event is not in the list fails before its value is
    returned, and so does one that is made twice.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError, UnplannedReleaseError


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of ``choices``, naming the parameter."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a positive finite number, naming the parameter."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number, got {value}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below ``least``, naming the parameter."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One release, or ``count`` identical ones made one after the other."""

    kind: ClassVar[str]
    purpose: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        check_at_least("count", self.count, 1)

    @property
    def distance(self) -> float:
        """Total variation distance between what the program draws and what is accounted for."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``event_from_dict`` reads it back."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


Neighbours = Literal["zero-out", "add-remove", "replace-one"]
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The largest change one person can cause, by neighbour relation.

    ``zero_out``: a row is replaced by a null row that contributes nothing, the
    number of rows is public. ``add_remove``: a row is added or removed.
    ``replace_one``: a row becomes any other row.

    Example:
        >>> Sensitivity.of_sum(1.0).under("replace-one")
        2.0
    """

    zero_out: float
    add_remove: float
    replace_one: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{field.name} must be finite and not negative, got {value}")

    @classmethod
    def uniformly(cls, bound: float) -> "Sensitivity":
        """The same bound under every neighbour relation.

        Example:
            >>> Sensitivity.uniformly(0.5).under("add-remove")
            0.5
        """
        return cls(bound, bound, bound)

    @classmethod
    def of_sum(cls, bound: float) -> "Sensitivity":
        """A sum over rows, each contributing at most ``bound`` in any direction."""
        return cls(bound, bound, 2 * bound)

    def under(self, neighbours: Neighbours) -> float:
        """The sensitivity that holds for one neighbour relation."""
        return float(getattr(self, neighbours.replace("-", "_")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianEvent(Event):
    """A vector plus independent Gaussian noise of standard deviation ``noise`` (L2)."""

    kind: ClassVar[str] = "gaussian"
    noise: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise", self.noise)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceEvent(Event):
    """A vector plus independent Laplace noise of the given ``scale`` (L1)."""

    kind: ClassVar[str] = "laplace"
    scale: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("scale", self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceEvent(Event):
    """Integers plus two-sided geometric noise, P(k) ~ exp(-|k|/scale) (L1, integer)."""

    kind: ClassVar[str] = "discrete-laplace"
    scale: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("scale", self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundedRangeEvent(Event):
    """An exponential mechanism: log probability ratios change by at most ``epsilon``.

    ``epsilon`` is given per neighbour relation, since utilities may be more
    sensitive to replacing a row than to removing it.
    """

    kind: ClassVar[str] = "bounded-range"
    epsilon: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class PureEvent(Event):
    """Any epsilon-DP mechanism of which no more is known (sparse vector)."""

    kind: ClassVar[str] = "pure"
    epsilon: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproximateEvent(Event):
    """Any (epsilon, delta)-DP mechanism of which no more is known."""

    kind: ClassVar[str] = "approximate"
    epsilon: Sensitivity
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.delta < 1:
            raise InputError(f"delta must be in [0, 1), got {self.delta}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZCDPEvent(Event):
    """Any rho-zCDP mechanism of which no more is known."""

    kind: ClassVar[str] = "zcdp"
    rho: Sensitivity


Sampling = Literal["poisson", "uniform"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

#: The noise of one step is within this total variation distance of true normals; proven for
#: ``RoundedGaussian``, by which every step's noise is drawn.
NOISE_DISTANCE = 2.0**-110

_UNPRICED = {
    "balls-in-bins": "has no useful proven bound (bins kept over epochs cost over ten times as "
    "much); use poisson, which costs no more and has one",
    "shuffle": "has no proven bound close to that of poisson, for which it is often mistaken; "
    "use poisson",
}


def check_sampling(sampling: str) -> None:
    """Refuse a batch sampling that is not supported, with the reason if it is a known one."""
    if sampling in _UNPRICED:
        raise InputError(f"sampling must be poisson or uniform: {sampling} {_UNPRICED[sampling]}")
    check_choice("sampling", sampling, SAMPLINGS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledGaussianEvent(Event):
    """``count`` noisy sums over random batches: the steps of DP-SGD.

    Each row contributes at most 1 in L2 norm (in units of the clipping norm), the
    noise has standard deviation ``noise_multiplier``. ``poisson``: every row joins
    independently with probability ``batch_size / rows``, and a draw of more than
    ``batch_cap`` rows keeps a uniform subset of that size. ``uniform``: exactly
    ``batch_size`` distinct rows.
    """

    kind: ClassVar[str] = "sampled-gaussian"
    sampling: Sampling
    rows: int
    batch_size: int
    noise_multiplier: float
    batch_cap: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampling(self.sampling)
        check_positive("noise_multiplier", self.noise_multiplier)
        check_at_least("batch_size", self.batch_size, 1)
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.batch_size > self.rows:
            raise InputError(
                f"batch_size must not exceed rows ({self.rows}), got {self.batch_size}"
            )
        if self.batch_cap is None:
            return
        if self.sampling == "uniform":
            raise InputError("batch_cap applies only to poisson sampling; remove it for uniform")
        check_at_least("batch_cap", self.batch_cap, 1)

    @property
    def distance(self) -> float:
        """The distance of the drawn noise from true normals, over all steps."""
        return self.count * NOISE_DISTANCE

    @functools.cached_property
    def rate(self) -> float:
        """The probability that a given row is in a given batch."""
        return self.batch_size / self.rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionEvent(Event):
    """The best of a random number of runs, each of which makes the events in ``run``.

    The number of runs has mean ``mean`` and a truncated negative binomial law of the given
    ``shape`` (1 geometric, 0 logarithmic); ``None`` stands for a Poisson law. Only the selected run
    is revealed. Where runs differ, each also makes the events of one of ``candidates``, drawn
    independently of the rows; the costliest one is accounted for.
    """

    kind: ClassVar[str] = "selection"
    run: tuple[Event, ...]
    mean: float
    shape: float | None = None
    candidates: tuple[tuple[Event, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("mean", self.mean)
        if self.shape is not None and not (math.isfinite(self.shape) and self.shape >= 0):
            raise InputError(f"shape must be None or not negative, got {self.shape}")

    @property
    def distance(self) -> float:
        """At most the expected distance of all runs that are made."""
        fits = [sum(event.distance for event in events) for events in self.candidates or ((),)]
        run = sum(event.distance for event in self.run) + max(fits)
        return self.count * self.mean * run

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description with the events of one run inside."""
        described = {**super().to_dict(), "run": [event.to_dict() for event in self.run]}
        options = [[event.to_dict() for event in events] for events in self.candidates]
        return described | {"candidates": options}


VoteLaw = Literal["exponential", "geometric"]
VOTE_LAWS: tuple[VoteLaw, ...] = get_args(VoteLaw)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteEvent(Event):
    """A yes-or-no answer by a noisy vote of ``voters`` models.

    With a margin m = votes - voters/2 and e = ``epsilon``, the answer is yes

    - ``exponential``: with chance 1/(1 + exp(-e m)), the exponential mechanism that
      scores each answer by its votes;
    - ``geometric``: if m plus two-sided geometric noise, P(j) ~ exp(-e |j|), is positive,
      and by a fair coin if it is zero.

    At equal epsilon the geometric law errs less at every margin. For an even number of voters it
    gives the wrong answer with chance exp(-e m)/2, the exponential law with chance exp(-e m)/(1 +
    exp(-e m)), which is larger for every m > 0 and equal at m = 0. For an odd number the first
    becomes exp(-e m)/(2 cosh(e/2)), smaller still. The exponential law changes the logit by e per
    vote where the geometric law may change it by nearly 2 e, so over many answers its cost grows
    more slowly.

    ``sensitivity`` counts votes: how many of them one row can change.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> once = Sensitivity.uniformly(1.0)
        >>> event = VoteEvent(voters=10, epsilon=1.0, law="geometric", sensitivity=once)
        >>> round(event.chance(7), 4)
        0.9323
    """

    kind: ClassVar[str] = "vote"
    voters: int
    epsilon: float
    law: VoteLaw
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("law", self.law, VOTE_LAWS)
        check_at_least("voters", self.voters, 1)
        check_positive("epsilon", self.epsilon)

    def chance(self, votes: int) -> float:
        """The probability that the answer is yes when ``votes`` models say yes."""
        return math.exp(self.log_chance(votes))

    def log_chance(self, votes: int) -> float:
        """The logarithm of ``chance``, exact where the probability itself would underflow.

        The probability of a no is that of a yes with ``voters - votes``, under both laws.
        """
        if not 0 <= votes <= self.voters:
            raise InputError("votes must be between 0 and voters")
        margin = votes - self.voters / 2
        if self.law == "exponential":
            return -_softplus(-self.epsilon * margin)
        return self._log_geometric(margin)

    def _log_geometric(self, margin: float) -> float:
        error = -self.epsilon * abs(margin) - self._log_half()
        return math.log1p(-math.exp(error)) if margin > 0 else error

    def _log_half(self) -> float:
        """Log of 2 if a tie is possible, else of 2 cosh(epsilon/2)."""
        if self.voters % 2 == 0:
            return math.log(2)
        return self.epsilon / 2 + _softplus(-self.epsilon)


def _softplus(value: float) -> float:
    return float(np.logaddexp(0.0, value))


_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        GaussianEvent,
        LaplaceEvent,
        DiscreteLaplaceEvent,
        BoundedRangeEvent,
        PureEvent,
        ApproximateEvent,
        ZCDPEvent,
        SampledGaussianEvent,
        SelectionEvent,
        VoteEvent,
    )
}


def unit(event: Event) -> Event:
    """The event made once, without its purpose, which does not affect its cost."""
    return dataclasses.replace(event, count=1, purpose="")


def total_distance(events: Sequence[Event]) -> float:
    """The distance of the programs that made the events from the mechanisms they describe.

    Example:
        >>> total_distance([GaussianEvent(noise=1.0, sensitivity=Sensitivity.of_sum(1.0))])
        0.0
    """
    return sum(event.distance for event in events)


def tally(events: Sequence[Event]) -> dict[Event, int]:
    """How often each distinct event was made."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[unit(event)] += event.count
    return dict(counts)


def event_from_dict(description: dict[str, Any]) -> Event:
    """Read back what ``Event.to_dict`` wrote.

    Example:
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> event_from_dict(event.to_dict()) == event
        True
    """
    try:
        return _read_event(dict(description))
    except (TypeError, KeyError, AttributeError, ValueError) as problem:
        reason = " ".join(str(problem).split())
        raise InputError(f"event description cannot be read: {reason}") from problem


def _read_event(fields: dict[str, Any]) -> Event:
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise InputError(f"kind must be one of {', '.join(_KINDS)}")
    for name in _by_relation(_KINDS[kind]) & fields.keys():
        fields[name] = Sensitivity(**fields[name])
    if kind == SelectionEvent.kind:
        fields["run"] = tuple(event_from_dict(event) for event in fields["run"])
        options = fields.get("candidates", ())
        fields["candidates"] = tuple(tuple(map(event_from_dict, events)) for events in options)
    for name in _whole(_KINDS[kind]) & fields.keys():
        if type(fields[name]) is not int:
            raise InputError(f"{name} must be a whole number")
    if type(fields.get("purpose", "")) is not str:
        raise InputError("purpose must be a text")
    return _KINDS[kind](**fields)


def _by_relation(kind: type[Event]) -> set[str]:
    """The names of the fields that hold one number per neighbour relation."""
    return {field.name for field in dataclasses.fields(kind) if field.type is Sensitivity}


def _whole(kind: type[Event]) -> set[str]:
    """The names of the fields that hold a whole number."""
    return {field.name for field in dataclasses.fields(kind) if field.type is int}


__all__ = [
    "ApproximateEvent",
    "BoundedRangeEvent",
    "DiscreteLaplaceEvent",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "NEIGHBOURS",
    "Neighbours",
    "PureEvent",
    "SAMPLINGS",
    "SampledGaussianEvent",
    "Sampling",
    "SelectionEvent",
    "Sensitivity",
    "VOTE_LAWS",
    "VoteEvent",
    "VoteLaw",
    "ZCDPEvent",
    "check_at_least",
    "check_choice",
    "check_positive",
    "check_sampling",
    "event_from_dict",
]


Column = Float64[np.ndarray, " rows"]


def check_edges(edges: Float64[np.ndarray, " edges"]) -> None:
    """Refuse bin edges that are not finite and strictly increasing."""
    if len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise InputError("edges must be at least two finite, strictly increasing numbers")


def check_fraction(name: str, value: float) -> None:
    """Refuse anything outside the open unit interval."""
    if not 0 < value < 1:
        raise InputError(f"{name} must be in (0, 1), got {value}")


Value = TypeVar("Value")

#: The events that are still to be released, and those that were.
_planned: contextvars.ContextVar[tuple[list[Event], list[Event]] | None] = contextvars.ContextVar(
    "planned", default=None
)


@dataclasses.dataclass(frozen=True)
class Release(Generic[Value]):
    """A published value and the event that must be charged for it.

    Attributes:
        value: The value, which may be published once ``event`` is charged.
        event: The event to charge, with its sensitivity under each neighbour relation.
        stamp: A warning that must accompany the value, or empty.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> Release(3, PureEvent(epsilon=Sensitivity.uniformly(0.1))).value
        3
    """

    value: Value
    event: Event
    stamp: str = ""

    def __post_init__(self) -> None:
        if (state := _planned.get()) is None:
            return
        planned, made = state
        # a release that is wrapped again holds the very event of the first
        if any(self.event is event for event in made):
            return
        if self.event not in planned:
            raise UnplannedReleaseError(
                f"a release for {self.event.purpose!r} is not among the planned events; nothing "
                "was returned. This is a bug in dpflows: please report it"
            )
        planned.remove(self.event)
        made.append(self.event)


@contextlib.contextmanager
def only_these(events: Sequence[Event]) -> Iterator[None]:
    """Within the block, mechanisms may release only these events, each of them once.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> with only_these(()):
        ...     Release(3, PureEvent(epsilon=Sensitivity.uniformly(0.1), purpose="count"))
        Traceback (most recent call last):
        dpflows.errors.UnplannedReleaseError: a release for 'count' is not among the planned ...
    """
    token = _planned.set((list(events), []))
    try:
        yield
    finally:
        _planned.reset(token)

"""What happened to the private rows, in words an accountant can price.

An event states the noise that was added and how far one person can move the
released value under each neighbour relation. It holds no private value, so a list
of events may be published. Accountants interpret events; events know no accountant.
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal, get_args

from dpflows.errors import InputError

Neighbours = Literal["zero-out", "add-remove", "replace-one"]
Sampling = Literal["poisson", "uniform"]
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

_UNPRICED = {
    "balls-in-bins": "has no proven bound at a useful price (bins kept over epochs cost over ten "
    "times as much); poisson costs no more and is proven",
    "shuffle": "has no proven bound near that of poisson, which it is often mistaken for",
}


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of ``choices``, naming the parameter."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_sampling(sampling: str) -> None:
    """Refuse a way of drawing batches that has no price, with the reason if it is a known one."""
    if sampling in _UNPRICED:
        raise InputError(f"sampling must be poisson or uniform: {sampling} {_UNPRICED[sampling]}")
    check_choice("sampling", sampling, SAMPLINGS)


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a positive finite number, naming the parameter."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number, got {value}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below ``least``, naming the parameter."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")


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
        """The same bound whatever the neighbour relation.

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
class Event:
    """One release, or ``count`` identical ones made one after the other."""

    kind: ClassVar[str]
    purpose: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        check_at_least("count", self.count, 1)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``event_from_dict`` reads it back."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


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
    """An exponential mechanism: the log odds of any two outcomes move by ``epsilon`` at most.

    ``epsilon`` is given per neighbour relation, since utilities may be more
    sensitive to replacing a row than to removing it.
    """

    kind: ClassVar[str] = "bounded-range"
    epsilon: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class PureEvent(Event):
    """Anything that is epsilon-DP and about which no more is known (sparse vector)."""

    kind: ClassVar[str] = "pure"
    epsilon: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproximateEvent(Event):
    """Anything that is (epsilon, delta)-DP and about which no more is known."""

    kind: ClassVar[str] = "approximate"
    epsilon: Sensitivity
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.delta < 1:
            raise InputError(f"delta must be in [0, 1), got {self.delta}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZCDPEvent(Event):
    """Anything that is rho-zCDP and about which no more is known."""

    kind: ClassVar[str] = "zcdp"
    rho: Sensitivity


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
            raise InputError("batch_cap applies to poisson sampling only; drop it for uniform")
        check_at_least("batch_cap", self.batch_cap, 1)

    @property
    def rate(self) -> float:
        """The chance that a given row is in a given batch."""
        return self.batch_size / self.rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionEvent(Event):
    """The best of a random number of runs, each of which makes the events in ``run``.

    The number of runs has mean ``mean`` and a truncated negative binomial law of the
    given ``shape`` (1 geometric, 0 logarithmic); ``None`` stands for a Poisson law.
    Only the selected run is revealed.
    """

    kind: ClassVar[str] = "selection"
    run: tuple[Event, ...]
    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("mean", self.mean)
        if self.shape is not None and not (math.isfinite(self.shape) and self.shape >= 0):
            raise InputError(f"shape must be None or not negative, got {self.shape}")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description with the events of one run inside."""
        return {**super().to_dict(), "run": [event.to_dict() for event in self.run]}


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
    )
}


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
    for name in {"sensitivity", "epsilon", "rho"} & fields.keys():
        fields[name] = Sensitivity(**fields[name])
    if kind == SelectionEvent.kind:
        fields["run"] = tuple(event_from_dict(event) for event in fields["run"])
    if type(fields.get("count", 1)) is not int or type(fields.get("purpose", "")) is not str:
        raise InputError("count must be a whole number and purpose a text")
    return _KINDS[kind](**fields)

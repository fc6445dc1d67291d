"""What happened to the private rows, in words an accountant can price.

An event states the noise that was added and how far one person can move the
released value under each neighbour relation. It holds no private value, so a list
of events may be published. Accountants interpret events; events know no accountant.
"""

import dataclasses
from typing import Any, ClassVar, Literal, get_args

from dpflows.errors import InputError

Neighbours = Literal["zero-out", "add-remove", "replace-one"]
Sampling = Literal["poisson", "uniform"]
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

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``event_from_dict`` reads it back."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianEvent(Event):
    """A vector plus independent Gaussian noise of standard deviation ``noise`` (L2)."""

    kind: ClassVar[str] = "gaussian"
    noise: float
    sensitivity: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceEvent(Event):
    """A vector plus independent Laplace noise of the given ``scale`` (L1)."""

    kind: ClassVar[str] = "laplace"
    scale: float
    sensitivity: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceEvent(Event):
    """Integers plus two-sided geometric noise, P(k) ~ exp(-|k|/scale) (L1, integer)."""

    kind: ClassVar[str] = "discrete-laplace"
    scale: float
    sensitivity: Sensitivity


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

    @property
    def rate(self) -> float:
        """The chance that a given row is in a given batch."""
        return self.batch_size / self.rows


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
    )
}


def event_from_dict(description: dict[str, Any]) -> Event:
    """Read back what ``Event.to_dict`` wrote.

    Example:
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> event_from_dict(event.to_dict()) == event
        True
    """
    fields = dict(description)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise InputError(f"unknown event kind; expected one of {', '.join(_KINDS)}")
    for name in ("sensitivity", "epsilon", "rho"):
        if isinstance(fields.get(name), dict):
            fields[name] = Sensitivity(**fields[name])
    return _KINDS[kind](**fields)

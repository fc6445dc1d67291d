"""Noisy sums over random batches, and how the batches are drawn."""

import dataclasses
from typing import ClassVar, Literal, get_args

from dpflows.errors import InputError
from dpflows.privacy.events.base import Event
from dpflows.privacy.events.checks import check_at_least, check_choice, check_positive

Sampling = Literal["poisson", "uniform"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

#: The noise of one step is within this total variation distance of true normals; proven for
#: ``RoundedGaussian``, by which every step's noise is drawn.
NOISE_DISTANCE = 2.0**-110

_UNPRICED = {
    "balls-in-bins": "has no proven bound at a useful price (bins kept over epochs cost over ten "
    "times as much); poisson costs no more and is proven",
    "shuffle": "has no proven bound near that of poisson, which it is often mistaken for",
}


def check_sampling(sampling: str) -> None:
    """Refuse a way of drawing batches that has no price, with the reason if it is a known one."""
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
            raise InputError("batch_cap applies to poisson sampling only; drop it for uniform")
        check_at_least("batch_cap", self.batch_cap, 1)

    @property
    def distance(self) -> float:
        """The distance of the drawn noise from true normals, over all steps."""
        return self.count * NOISE_DISTANCE

    @property
    def rate(self) -> float:
        """The chance that a given row is in a given batch."""
        return self.batch_size / self.rows

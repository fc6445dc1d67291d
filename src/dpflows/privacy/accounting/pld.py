"""Privacy loss distributions: the default accountant, tight and rigorous.

Each event becomes the discretised loss of a dominating pair, rounded against us, and
the losses are convolved. The relation is resolved before the library is asked, by the
sensitivity each event states, so that nothing is doubled twice.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.privacy_accountant import NeighboringRelation

from dpflows.errors import InputError
from dpflows.privacy.accounting import dominating, rdp
from dpflows.privacy.accounting.base import Accountant, Profile, tally, unpriced
from dpflows.privacy.accounting.spread import grid_for, merge_gaussians
from dpflows.privacy.events import (
    ApproximateEvent,
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Neighbours,
    PureEvent,
    SampledGaussianEvent,
    SelectionEvent,
    ZCDPEvent,
)

#: Below this the rounding errors of the convolution are no longer negligible.
SMALLEST_DELTA = 1e-11

_LIBRARY_RELATION = {
    "zero-out": NeighboringRelation.REPLACE_SPECIAL,
    "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": NeighboringRelation.REPLACE_ONE,
}


@final
@dataclasses.dataclass(frozen=True)
class _LossProfile(Profile):
    loss: Any

    def epsilon(self, delta: float) -> float:
        if delta < SMALLEST_DELTA:
            raise InputError(
                f"delta must be at least {SMALLEST_DELTA} for accountant 'pld', got {delta}; "
                "use accountant 'rdp' below that"
            )
        # The library's answer solves for delta exactly; one ulp of slack keeps it a bound.
        return float(self.loss.get_epsilon_for_delta(delta))

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(self.loss.get_delta_for_epsilon(epsilon)))


@final
class PLDAccountant(Accountant):
    """Composition of privacy loss distributions.

    Guarantee:
        A bound: pairs dominate, rounding is pessimistic, truncated mass is charged.
        Numerical error of the convolution stays below ``SMALLEST_DELTA``.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> round(PLDAccountant().profile([event], "zero-out").epsilon(1e-5), 2)
        1.99
    """

    name = "pld"
    kind = "bound"
    reading = "tight numerical bound; the figure to report"

    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """The convolution of all losses on one grid."""
        tallied = merge_gaussians(tally(events), neighbours)
        return _LossProfile(_compose(tuple(tallied.items()), neighbours))


@functools.lru_cache(maxsize=64)
def _compose(tallied: tuple[tuple[Event, int], ...], neighbours: Neighbours) -> Any:
    grid = grid_for(dict(tallied), neighbours)
    total = library.identity(grid)
    for event, count in tallied:
        total = total.compose(_unit_loss(event, neighbours, grid).self_compose(count))
    return total


@functools.lru_cache(maxsize=64)
def _unit_loss(event: Event, neighbours: Neighbours, grid: float) -> Any:
    return _loss(event, neighbours, grid)


@functools.singledispatch
def _loss(event: Event, neighbours: Neighbours, grid: float) -> Any:
    raise unpriced(event, "pld", neighbours, "use accountant 'rdp'")


@_loss.register(GaussianEvent)
def _(event: GaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    sensitivity = event.sensitivity.under(neighbours)
    if sensitivity == 0:
        return library.identity(grid)
    deviation = event.noise / sensitivity
    return library.from_gaussian_mechanism(deviation, value_discretization_interval=grid)


@_loss.register(LaplaceEvent)
def _(event: LaplaceEvent, neighbours: Neighbours, grid: float) -> Any:
    sensitivity = event.sensitivity.under(neighbours)
    if sensitivity == 0:
        return library.identity(grid)
    scale = event.scale / sensitivity
    return library.from_laplace_mechanism(scale, value_discretization_interval=grid)


@_loss.register(DiscreteLaplaceEvent)
def _(event: DiscreteLaplaceEvent, neighbours: Neighbours, grid: float) -> Any:
    sensitivity = math.ceil(event.sensitivity.under(neighbours))
    if sensitivity == 0:
        return library.identity(grid)
    return library.from_discrete_laplace_mechanism(
        1 / event.scale, sensitivity=sensitivity, value_discretization_interval=grid
    )


@_loss.register(PureEvent)
def _(event: PureEvent, neighbours: Neighbours, grid: float) -> Any:
    return _from_parameters(event.epsilon.under(neighbours), 0.0, grid)


@_loss.register(ApproximateEvent)
def _(event: ApproximateEvent, neighbours: Neighbours, grid: float) -> Any:
    return _from_parameters(event.epsilon.under(neighbours), event.delta, grid)


@_loss.register(BoundedRangeEvent)
def _(event: BoundedRangeEvent, neighbours: Neighbours, grid: float) -> Any:
    width = event.epsilon.under(neighbours)
    if width == 0:
        return library.identity(grid)
    return _from_profile(dominating.bounded_range(width), width, grid)


@_loss.register(ZCDPEvent)
@_loss.register(SelectionEvent)
def _(event: ZCDPEvent | SelectionEvent, neighbours: Neighbours, grid: float) -> Any:
    curve = rdp.curve_of(event, neighbours)
    reach = curve.epsilon(math.exp(-50))
    if not math.isfinite(reach):
        raise unpriced(event, "pld", neighbours, "its Rényi cost is not finite")
    return _from_bound(curve, reach, grid)


@_loss.register(SampledGaussianEvent)
def _(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    if event.sampling == "uniform":
        return _uniform(event, neighbours, grid)
    if event.batch_cap is not None:
        return _capped(event, neighbours, grid)
    return library.from_gaussian_mechanism(
        event.noise_multiplier,
        value_discretization_interval=grid,
        sampling_prob=event.rate,
        neighboring_relation=_LIBRARY_RELATION[neighbours],
    )


def _capped(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    return library.from_truncated_subsampled_gaussian_mechanism(
        event.rows,
        event.rate,
        event.batch_cap,
        event.noise_multiplier,
        value_discretization_interval=grid,
        neighboring_relation=_LIBRARY_RELATION[neighbours],
    )


def _uniform(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    if neighbours == "add-remove":
        raise unpriced(event, "pld", neighbours, _NO_ADD_REMOVE)
    # Also for zero-out: a batch without the row holds some other row in its place, so
    # the two batches differ by two clipped rows even where one table row is null.
    mu = 2 / event.noise_multiplier
    profile = dominating.without_replacement(event.rate, mu)
    reach = math.log1p(event.rate * math.expm1(min(mu * mu / 2 + 10 * mu, 700)))
    return _from_profile(profile, reach, grid)


_NO_ADD_REMOVE = (
    "batches of fixed size change their rate when a row is added; use neighbours "
    "'replace-one' or sampling 'poisson'"
)


def _from_parameters(epsilon: float, delta: float, grid: float) -> Any:
    parameters = common.DifferentialPrivacyParameters(epsilon, delta)
    return library.from_privacy_parameters(parameters, value_discretization_interval=grid)


def _from_profile(profile: dominating.HockeyStick, reach: float, grid: float) -> Any:
    steps = math.ceil(reach / grid)
    delta = profile(np.arange(-steps, steps + 1) * grid)
    return _connect_the_dots(np.clip(delta, 0.0, 1.0), steps, grid)


def _from_bound(curve: rdp.Curve, reach: float, grid: float) -> Any:
    steps = math.ceil(reach / grid)
    half = np.array([curve.delta(step * grid) for step in range(steps + 1)])
    positive = np.arange(steps + 1) * grid
    both = dominating.symmetrised(lambda epsilon: np.interp(epsilon, positive, half))
    epsilon = np.arange(-steps, steps + 1) * grid
    delta = dominating.convex_in_odds(epsilon, np.minimum.accumulate(both(epsilon)))
    return _connect_the_dots(np.clip(delta, 0.0, 1.0), steps, grid)


def _connect_the_dots(delta: dominating.Losses, steps: int, grid: float) -> Any:
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -steps, steps, delta)
    return library.PrivacyLossDistribution(pmf)

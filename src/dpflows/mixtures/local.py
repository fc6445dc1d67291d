"""EM in local frames with noise-aware gains and splitting, released by Gaussian mechanisms.

One Gaussian zooms in on the rows; its frame then whitens them, and components double by
splitting. Every release is one noisy sum over all rows (see ``frames``); everything else
works on released numbers.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtri
from threadpoolctl import threadpool_limits

from dpflows.errors import InputError
from dpflows.mixtures.frames import (
    Background,
    Components,
    Statistic,
    inside_cube,
    local_sums,
    statistic_for,
)
from dpflows.mixtures.gains import Channel, State, limited, updated
from dpflows.mixtures.mixture import Mixture, Rows
from dpflows.mixtures.noise import noisy
from dpflows.mixtures.schedule import MixturePlan
from dpflows.mixtures.splitting import split, with_scout, without_idle_scout
from dpflows.privacy.randomness import Entropy

#: The first Gaussian's deviation, half the cube's half-width.
_START = 0.5
#: How far one zoom step may shrink or stretch a variance.
_ZOOM_LIMITS = (1 / 25, 6.0)
#: No direction is narrower than this part of the cube's half-width.
_NARROWEST = 1e-5
#: Means stay within so many deviations of all rows, in every direction.
_FARTHEST = 1e5
#: The prior variances of the first Gaussian: unknown, then nearly standardised.
_UNKNOWN, _ROUGH = 1.0, 0.1


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The public affine map from whitened coordinates to the cube: x = matrix z + origin."""

    matrix: Float64[np.ndarray, "d d"]
    origin: Float64[np.ndarray, " d"]

    @staticmethod
    def of(gaussian: Components) -> "_Frame":
        """The principal axes of a Gaussian, longest first, scaled to unit deviation."""
        values, vectors = np.linalg.eigh(gaussian.factors[0] @ gaussian.factors[0].T)
        lengths = np.sqrt(np.maximum(values[::-1], _NARROWEST**2))
        return _Frame(vectors[:, ::-1] * lengths, gaussian.means[0])

    def whitened(self, rows: Rows) -> Rows:
        """Rows of the cube in this frame."""
        return np.linalg.solve(self.matrix, (rows - self.origin).T).T

    def wide(self, block: int) -> Components:
        """A Gaussian over the whole cube, seen from this frame."""
        factor = _START * np.linalg.inv(self.matrix)
        covariance = factor @ factor.T
        if block < len(self.origin):
            covariance = np.diag(np.diag(covariance))
        mean = -np.linalg.solve(self.matrix, self.origin)
        return Components(np.ones(1), mean[None], np.linalg.cholesky(covariance)[None])

    def background(self, weight: float) -> Background:
        """The uniform density on the cube, seen from this frame."""
        stretch = float(np.linalg.slogdet(self.matrix)[1])
        return Background(weight, stretch - len(self.origin) * math.log(2))


def fit_local(rows: Rows, plan: MixturePlan, *, entropy: Entropy) -> Mixture:
    """Fit a mixture to rows inside the cube [-1, 1]^d as planned.

    Args:
        rows: One row per person; a row with a NaN contributes nothing, and what lies
            outside the cube is brought to its surface.
        plan: What to release.
        entropy: Where the noise comes from.

    Guarantee:
        The mixture is a function of ``plan.events`` and public numbers: each event is
        one Gaussian release of ``local_sums``, which a row moves by at most one.

    Example:
        >>> from dpflows.mixtures.schedule import plan_mixture
        >>> from dpflows.privacy.guarantee import Budget
        >>> plan = plan_mixture(Budget(1.0, 1e-5), rows=2000, columns=1)
        >>> rows = np.random.default_rng().normal(0.3, 0.05, size=(2000, 1))
        >>> mixture = fit_local(rows, plan, entropy=Entropy.from_os())
        >>> bool(abs(mixture.weights @ mixture.means[:, 0] - 0.3) < 0.1)
        True
    """
    _check_columns(rows, plan)
    inside = inside_cube(rows)
    # small products gain nothing from threads and lose much on a busy machine
    with threadpool_limits(1, user_api="blas"):
        frame = _Frame.of(_zoomed(inside, plan, entropy).components)
        state = _grown(frame.whitened(inside), frame, plan, entropy)
    return _finished(state, frame)


def _check_columns(rows: Rows, plan: MixturePlan) -> None:
    if rows.shape[1] != plan.columns:
        raise InputError(f"rows must have the plan's {plan.columns} columns, got {rows.shape[1]}")


def _statistic(plan: MixturePlan, block: int) -> Statistic:
    recipe = plan.recipe
    return statistic_for(
        columns=plan.columns,
        block=block,
        offset=recipe.clip_offset,
        count_share=recipe.count_share,
    )


def _released(
    rows: Rows,
    state: State,
    channel: Channel,
    background: Background,
    *,
    entropy: Entropy,
    release: int,
) -> State:
    """One release and what follows from it."""
    sums = local_sums(rows, state.components, channel.statistic, background)
    noised = noisy(sums, channel.noise, entropy=entropy, purpose=f"mixture {release}")
    return updated(state, noised, channel)


def _zoomed(rows: Rows, plan: MixturePlan, entropy: Entropy) -> State:
    """The first Gaussian, found from the cube alone."""
    start = Components(np.ones(1), np.zeros((1, plan.columns)), _START * np.eye(plan.columns)[None])
    cube = _Frame(np.eye(plan.columns), np.zeros(plan.columns))
    background = cube.background(plan.recipe.early_background)
    state = State.fresh(start, plan.recipe)
    steps = plan.recipe.zoom_steps
    for release in range(steps):
        last = release == steps - 1
        channel = _zoom_channel(plan, release, last)
        prior = np.full(1, _ROUGH if last else _UNKNOWN)
        state = State(state.components, prior, np.full(1, _UNKNOWN), prior)
        state = _released(rows, state, channel, background, entropy=entropy, release=release)
    return state


def _zoom_channel(plan: MixturePlan, release: int, last: bool) -> Channel:
    """Many columns are first looked at one by one, since products drown in noise."""
    block = plan.columns if last or plan.shape == "full" else 1
    statistic, noise = _statistic(plan, block), plan.noise_of(release)
    channel = Channel(statistic, noise, _shared(plan), plan.recipe)
    blur = noise / (statistic.second * channel.response.shape * plan.rows)
    low = min(max(_ZOOM_LIMITS[0], 6 * blur * math.sqrt(block)), 0.5)
    return dataclasses.replace(channel, limits=(low, _ZOOM_LIMITS[1]))


def _shared(plan: MixturePlan) -> float:
    return plan.rows * (1 - plan.recipe.background)


def _grown(rows: Rows, frame: _Frame, plan: MixturePlan, entropy: Entropy) -> State:
    """Components in the whitened frame, doubled until there are enough."""
    recipe = plan.recipe
    statistic = _statistic(plan, plan.block)
    state = State.fresh(_first(plan, entropy), recipe)
    for release in range(recipe.zoom_steps, len(plan.rounds)):
        count = plan.rounds[release][0]
        channel = Channel(statistic, plan.noise_of(release), _shared(plan), recipe)
        if count != plan.rounds[release - 1][0]:
            state = _next_level(state, frame, plan, count, channel.least / channel.rows)
        growing = count < plan.components
        background = frame.background(recipe.early_background if growing else recipe.background)
        state = _released(rows, state, channel, background, entropy=entropy, release=release)
        state = dataclasses.replace(state, components=_kept(state.components, recipe.floor))
    return state


def _next_level(state: State, frame: _Frame, plan: MixturePlan, count: int, least: float) -> State:
    """More components: halves of the heaviest, and a scout while there is time to use it."""
    recipe = plan.recipe
    if not recipe.scouting:
        return split(state, count, recipe, plan.block)
    state = without_idle_scout(state, recipe.scout_keep * least)
    if count == plan.components:
        return split(state, count, recipe, plan.block)
    state = split(state, count - 1, recipe, plan.block)
    return with_scout(state, frame.wide(plan.block), recipe.scout_weight)


def _first(plan: MixturePlan, entropy: Entropy) -> Components:
    """One standard Gaussian, or all components at random places of it."""
    k, d = (1 if plan.recipe.splitting else plan.components), plan.columns
    if k == 1:
        return Components(np.ones(1), np.zeros((1, d)), np.eye(d)[None])
    drawn = entropy.uniforms("initialisation", step=0, count=k * d).reshape(k, d)
    factors = np.tile(k ** (-1 / d) * np.eye(d), (k, 1, 1))
    return Components(np.full(k, 1 / k), ndtri(drawn + 2.0**-54), factors)


def _kept(components: Components, floor: float) -> Components:
    """Components that neither collapse nor run away."""
    covariances = components.factors @ np.swapaxes(components.factors, 1, 2)
    factors = np.linalg.cholesky(limited(covariances, floor**2, _FARTHEST**2))
    return Components(components.weights, np.clip(components.means, -_FARTHEST, _FARTHEST), factors)


def _finished(state: State, frame: _Frame) -> Mixture:
    """The mixture in the cube, each component widened by what its mean may be off."""
    parts = state.components
    factors = (frame.matrix @ parts.factors) * np.sqrt(1 + state.mean)[:, None, None]
    covariances = factors @ np.swapaxes(factors, 1, 2)
    means = parts.means @ frame.matrix.T + frame.origin
    return Mixture(parts.weights, means, np.linalg.cholesky(covariances))

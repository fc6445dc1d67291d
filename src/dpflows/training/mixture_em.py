"""Private Gaussian mixtures by EM in local frames, released by Gaussian mechanisms.

``plan_mixture`` decides how many components, releases and how much noise. ``fit_local`` first
locates the rows with one Gaussian, whose frame then whitens them; components double by
splitting. Every release is one noisy sum over all rows (see ``local_frames``), with exact
noise on a fine lattice; everything else is computed from released numbers.

Guarantee:
    A plan follows only from the budget and the numbers of rows and columns, and
    ``MixturePlan.events`` is exactly what running it releases.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtri
from threadpoolctl import threadpool_limits

from dpflows.errors import InputError
from dpflows.models.density import Mixture, Rows
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, GaussianEvent, check_at_least
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy, sampler_for
from dpflows.training.local_frames import (
    DEFAULT,
    UNIT,
    Background,
    Channel,
    Components,
    Recipe,
    State,
    Statistic,
    inside_cube,
    limited,
    local_sums,
    split,
    statistic_for,
    updated,
    with_scout,
    without_idle_scout,
)

#: Sums are rounded to 2^-30 before noise; over a million of them move by less than 1e-6.
_LATTICE = -30


def noisy(
    sums: Float64[np.ndarray, "k p"], noise: float, *, entropy: Entropy, purpose: str
) -> Float64[np.ndarray, "k p"]:
    """The sums with independent Gaussian noise on each; unchanged if there is none.

    Guarantee:
        With the operating system's entropy each sum is rounded to a lattice and receives
        discrete Gaussian noise sampled exactly by OpenDP.

    Example:
        >>> noisy(np.zeros((1, 2)), 1.0, entropy=Entropy.from_os(), purpose="x").shape
        (1, 2)
    """
    if not noise:
        return sums
    flat = [float(value) for value in sums.ravel()]
    if entropy.stamp:
        drawn = sampler_for(entropy, purpose).gaussian(flat, noise)
    else:
        drawn = _measurement(len(flat), noise)(flat)
    return np.array(drawn).reshape(sums.shape)


@functools.lru_cache(maxsize=64)
def _measurement(size: int, noise: float) -> Any:
    # Imported on first use, as it takes a second. A lattice of known size is four times
    # as fast as the exact one over all floats.
    import opendp.prelude as library

    library.enable_features("contrib")
    domain = library.vector_domain(library.atom_domain(T="f64", nan=False), size=size)
    distance = library.l2_distance(T="f64")
    return library.m.make_gaussian(domain, distance, scale=noise, k=_LATTICE)


Shape = Literal["full", "low-rank", "diagonal"]
Round = tuple[int, float]

PURPOSE = "mixture"
#: Up to so many columns covariances are always full.
_FULL_COLUMNS = 16
#: Beyond, the covariance is cut down until the budget allows so many components.
_WANTED = 8


@dataclasses.dataclass(frozen=True)
class MixturePlan:
    """The plan of a mixture fit.

    Attributes:
        components: The final number of components.
        rounds: For each release the number of components and its share of squared mu; the shares
        sum to one.
        noise: One over the mu of all releases together; zero without privacy.
        rows: The public number of rows.
        columns: The number of columns.
        block: Covariances are full among so many leading directions, diagonal elsewhere.
        recipe: The constants of the fit.

    Example:
        >>> plan = plan_mixture(Budget(1.0, 1e-5), rows=20_000, columns=3)
        >>> plan.shape, len(plan.events) == len(plan.rounds)
        ('full', True)
        >>> MixturePlan.from_dict(plan.to_dict()) == plan
        True
    """

    components: int
    rounds: tuple[Round, ...]
    noise: float
    rows: int
    columns: int
    block: int
    recipe: Recipe = DEFAULT

    @property
    def shape(self) -> Shape:
        """The form of the covariances."""
        if self.block == self.columns:
            return "full"
        return "low-rank" if self.block > 1 else "diagonal"

    def noise_of(self, release: int) -> float:
        """The standard deviation of the noise on each sum of one release."""
        return self.noise / math.sqrt(self.rounds[release][1])

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """One event per release.

        Guarantee:
            The responsibilities of a row sum to at most one and its moments have unit norm, so a
            row that is added, removed or zeroed out changes the stacked sums by at most one;
            replacing it changes them by at most two.
        """
        if not self.noise:
            return ()
        purpose = PURPOSE if self.components > 1 else "Gaussian"
        return tuple(
            GaussianEvent(noise=self.noise_of(j), sensitivity=UNIT, purpose=purpose)
            for j in range(len(self.rounds))
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return dataclasses.asdict(self) | {"rounds": [list(pair) for pair in self.rounds]}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "MixturePlan":
        """Read back what ``to_dict`` wrote; anything else is refused."""
        try:
            fields = dict(description)
            fields["rounds"] = tuple((int(k), float(share)) for k, share in fields["rounds"])
            fields["recipe"] = Recipe(**fields["recipe"])
            return cls(**fields)
        except (TypeError, KeyError, ValueError) as problem:
            raise InputError("mixture plan cannot be read; write it with to_dict") from problem


def plan_mixture(
    budget: Budget,
    *,
    rows: int,
    columns: int,
    accountant: str = "pld",
    components: int | None = None,
    before: Sequence[Event] = (),
    share: float = 1.0,
    recipe: Recipe = DEFAULT,
) -> MixturePlan:
    """The plan that spends the rest of a budget after ``before``, or a share of it.

    Args:
        budget: The total budget.
        rows: The public number of rows.
        columns: The number of columns.
        accountant: The accountant's name.
        components: Number of components; by default as many as the budget supports.
        before: Other releases within the budget.
        share: The part of squared mu that the mixture may use; the caller spends the rest.
        recipe: The constants of the fit.

    Guarantee:
        ``before`` and the plan's events together cost at most the budget.

    Example:
        >>> plan_mixture(Budget(float("inf"), 1e-5), rows=5000, columns=2).noise
        0.0
    """
    _check(rows, columns, components, share)
    whole = calibrate_noise(
        budget,
        lambda noise: [*before, GaussianEvent(noise=noise, sensitivity=UNIT, purpose=PURPOSE)],
        accountant=accountant,
    )
    noise = whole / math.sqrt(share)
    block = _block(rows, columns, noise, recipe)
    k = components or _affordable(rows, columns, block, noise, recipe)
    rounds = _rounds(k, columns, block, recipe)
    return MixturePlan(k, rounds, noise, rows, columns, block, recipe)


def _check(rows: int, columns: int, components: int | None, share: float) -> None:
    check_at_least("rows", rows, 1)
    check_at_least("columns", columns, 1)
    check_at_least("components", 1 if components is None else components, 1)
    if not 0 < share <= 1:
        raise InputError(f"share must be in (0, 1], got {share}; give the part of squared mu")


def _numbers(columns: int, block: int) -> float:
    """Number of parameters of one component."""
    return 1 + 2 * columns + block * (block - 1) / 2


def _affordable(rows: int, columns: int, block: int, noise: float, recipe: Recipe) -> int:
    """The number of components whose parameters exceed the noise."""
    per_noise, per_rows = recipe.noise_per_component * noise, recipe.rows_per_component
    numbers = max(per_noise, per_rows) * _numbers(columns, block)
    return max(1, min(int(rows / numbers), recipe.most_per_column * columns))


def _block(rows: int, columns: int, noise: float, recipe: Recipe) -> int:
    """The largest block that still allows several components."""
    if columns <= _FULL_COLUMNS:
        return columns
    for block in range(columns, 1, -1):
        if _affordable(rows, columns, block, noise, recipe) >= _WANTED:
            return block
    return 1


def _rounds(k: int, columns: int, block: int, recipe: Recipe) -> tuple[Round, ...]:
    """First one component, then the rest shared in proportion to the components."""
    if k == 1:
        first = [(1, recipe.zoom_first)] * (recipe.zoom_steps - 1)
        return (*first, (1, 1 - recipe.zoom_first * len(first)))
    levels = _levels(k, recipe)
    whole = _numbers(columns, columns)
    zoom = max(recipe.zoom_share, whole / (whole + k * _numbers(columns, block)))
    each = recipe.zoom_share / recipe.zoom_steps
    first = [(1, each)] * (recipe.zoom_steps - 1)
    last = zoom - each * len(first)
    return (*first, (1, last), *((level, (1 - zoom) * level / sum(levels)) for level in levels))


def _levels(k: int, recipe: Recipe) -> list[int]:
    """The number of components at each release after the first Gaussian."""
    doublings = math.ceil(math.log2(k))
    if not recipe.splitting:
        return [k] * (recipe.level_steps * (doublings - 1) + recipe.last_steps)
    scout = 1 if recipe.scouting else 0
    growing = [2**level + scout for level in range(1, doublings) for _ in range(recipe.level_steps)]
    return growing + [k] * recipe.last_steps


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
        """A Gaussian over the whole cube, in this frame."""
        factor = _START * np.linalg.inv(self.matrix)
        covariance = factor @ factor.T
        if block < len(self.origin):
            covariance = np.diag(np.diag(covariance))
        mean = -np.linalg.solve(self.matrix, self.origin)
        return Components(np.ones(1), mean[None], np.linalg.cholesky(covariance)[None])

    def background(self, weight: float) -> Background:
        """The uniform density on the cube, in this frame."""
        stretch = float(np.linalg.slogdet(self.matrix)[1])
        return Background(weight, stretch - len(self.origin) * math.log(2))


def fit_local(rows: Rows, plan: MixturePlan, *, entropy: Entropy) -> Mixture:
    """Fit a mixture to rows inside the cube [-1, 1]^d as planned.

    Args:
        rows: One row per person; a row with a NaN contributes nothing, and rows outside the cube
        are clipped to it.
        plan: The releases to make.
        entropy: Source of randomness.

    Guarantee:
        The mixture is a function of ``plan.events`` and public numbers: each event is
        one Gaussian release of ``local_sums``, which a row changes by at most one.

    Example:
        >>> from dpflows.training.mixture_em import plan_mixture
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
    """One release and the update that follows."""
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
    """With many columns, first only squares are released, since products are lost in noise."""
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
    """More components: halves of the heaviest, and a scout if releases remain to use it."""
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
    """Components kept from collapsing or diverging."""
    covariances = components.factors @ np.swapaxes(components.factors, 1, 2)
    factors = np.linalg.cholesky(limited(covariances, floor**2, _FARTHEST**2))
    return Components(components.weights, np.clip(components.means, -_FARTHEST, _FARTHEST), factors)


def _finished(state: State, frame: _Frame) -> Mixture:
    """The mixture in the cube, each component widened by the uncertainty of its mean."""
    parts = state.components
    factors = (frame.matrix @ parts.factors) * np.sqrt(1 + state.mean)[:, None, None]
    covariances = factors @ np.swapaxes(factors, 1, 2)
    means = parts.means @ frame.matrix.T + frame.origin
    return Mixture(parts.weights, means, np.linalg.cholesky(covariances))

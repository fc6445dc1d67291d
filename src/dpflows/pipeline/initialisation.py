"""What precedes the training of a flow: normaliser, prior, and initial values of ActNorm layers.

A normaliser brings columns to comparable units: ``bounds`` maps the declared box and costs nothing;
``moments`` releases the mean and the standard deviation of every column; ``histograms`` releases
every column's distribution and transforms it to a Gaussian. A new method is one class and one line
in ``NORMALISATIONS``.

The prior of a flow is a Gaussian mixture, fitted with a share of the budget or given; its mean and
standard deviation then normalise the columns at no further cost.

The ActNorm layers may be initialised from the data (DP-NF-INIT of Waites and Cummings). The paper
adds Laplace noise to the mean and to the standard deviation of each layer's inputs, with
sensitivities of the order of one over the number of rows. That is right for a mean, but a
standard deviation can change by one over the square root of the number of rows, and all columns
of a layer change together. Here noise is added to clipped sums, from which the standard
deviation is computed. The paper's formula is kept for comparison as ``paper-not-private``.
"""

import abc
import dataclasses
import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dpflows.errors import InputError
from dpflows.models.architectures import Architecture
from dpflows.models.bijections import with_act_norms
from dpflows.models.density import Defended, Mixture, gaussian_mixture, uniform_box
from dpflows.models.normalisers import Curves, Normaliser, Scaling, gaussian_curve, normaliser_from
from dpflows.pipeline.plan import Stage, Work, needed
from dpflows.privacy.accounting import noise_of_share, strength
from dpflows.privacy.events import Event, GaussianEvent, Sensitivity, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import (
    BINS,
    RANK_ERROR,
    Moments,
    clipped_moments,
    moments_sensitivity,
    noisy_distributions,
    trees_sensitivity,
)
from dpflows.privacy.randomness import Entropy
from dpflows.training.checkpoints import Before
from dpflows.training.mixture_em import MixturePlan, fit_local

#: Declared bounds are mapped to this many units on either side of zero.
REACH = 3.0
#: The part of the squared Gaussian budget that normalisation may spend.
NORMALISER_SHARE = 0.05
#: What an unlimited budget adds to each sum, in rows: nothing that could be seen.
FAINT = 1e-3
#: The paper's way, for comparison, and what it must be marked with.
UNPAID = "paper-not-private"
UNPAID_STAMP = (
    "NOT PRIVATE: columns were standardised by their own moments, without noise or budget"
)
_ZOOMS = 3
_ZOOM_REACH = 4.0
_MOST_QUANTILES, _FEWEST_QUANTILES = 32, 4

Rows = Float[np.ndarray, "rows columns"]
Vector = Float[np.ndarray, " columns"]


@dataclasses.dataclass(frozen=True)
class Normalisation(Stage):
    """A planned normalisation of the columns.

    Attributes:
        rows: Public number of rows.
        columns: Number of columns.
        noise: Noise on each released sum or count, in rows.

    Guarantee:
        ``find`` releases exactly ``events``; they are known before a row is read.
    """

    rows: int
    columns: int
    noise: float

    is_kept = True

    def run(self, work: Work) -> Work:
        """Find the normaliser."""
        return work.after(normaliser=self.find(needed(work.rows), *work.box, entropy=work.entropy))

    def keep(self, work: Work) -> Before:
        """The normaliser, with the scaling of a prior."""
        return {}, needed(work.normaliser).arrays()

    def resume(self, work: Work, kept: Before) -> Work:
        """The normaliser that was found before."""
        return work.after(normaliser=normaliser_from(kept[1]))

    @property
    def is_worthwhile(self) -> bool:
        """Whether the statistics exceed the noise."""
        return True

    @staticmethod
    @abc.abstractmethod
    def sensitivity(columns: int) -> Sensitivity | None:
        """Sensitivity of all releases, stacked; None if there are none."""

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """The events."""

    @abc.abstractmethod
    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Normaliser:
        """The normaliser for rows inside the public box."""


class Unpriced(Normalisation):
    """A normalisation without events: it reads only public values, or is not private."""

    @staticmethod
    def sensitivity(columns: int) -> None:
        """None: nothing is released."""

    @property
    def events(self) -> tuple[Event, ...]:
        """None."""
        return ()


@final
class FromBounds(Unpriced):
    """Map the declared box to [-3, 3] in every column.

    Guarantee:
        Reads only the public bounds, so it costs nothing.

    Example:
        >>> rows, low, high = np.ones((5, 1)), np.array([0.0]), np.array([6.0])
        >>> FromBounds(5, 1, 0.0).find(rows, low, high, entropy=Entropy.from_os()).shift.tolist()
        [3.0]
    """

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """The box's middle and half-width."""
        return Scaling((low + high) / 2, (high - low) / (2 * REACH))


@final
class FromMoments(Normalisation):
    """Shift and scale by noisy means and deviations, in frames that shrink towards the data.

    The noise is proportional to the frame, so each round clips to a frame that the last round found
    to be wide enough.

    Guarantee:
        Three Gaussian releases of clipped moments; the frames follow from them.

    Example:
        >>> rows = np.random.default_rng().normal(0.5, 0.1, size=(5000, 1))
        >>> plan = FromMoments(5000, 1, noise=5.0)
        >>> found = plan.find(rows, np.zeros(1), np.ones(1), entropy=Entropy.from_os())
        >>> bool(abs(found.shift[0] - 0.5) < 0.05), len(plan.events)
        (True, 3)
    """

    @staticmethod
    def sensitivity(columns: int) -> Sensitivity:
        """Sensitivity of the sums of one round."""
        return moments_sensitivity(columns)

    @property
    def events(self) -> tuple[Event, ...]:
        """One release per round, each with a part of the share."""
        unit = self.sensitivity(self.columns)
        return tuple(
            GaussianEvent(noise=self._round_noise, sensitivity=unit, purpose=_round_name(i))
            for i in range(_ZOOMS)
        )

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """Shrink the frame, round by round."""
        left, right = low, high
        for i in range(_ZOOMS):
            moments = self._measure(rows, left, right, entropy, _round_name(i))
            spread = self._cautious(moments, left, right)
            left = np.maximum(low, moments.mean - _ZOOM_REACH * spread)
            right = np.minimum(high, moments.mean + _ZOOM_REACH * spread)
        return Scaling(moments.mean, np.clip(moments.deviation, spread / 4, None))

    @property
    def _round_noise(self) -> float:
        return self.noise * math.sqrt(_ZOOMS)

    def _measure(
        self, rows: Rows, left: Vector, right: Vector, entropy: Entropy, purpose: str
    ) -> Moments:
        return clipped_moments(
            rows, left, right, noise=self._round_noise, entropy=entropy, purpose=purpose
        ).value

    def _cautious(self, moments: Moments, left: Vector, right: Vector) -> Vector:
        """The deviation, bounded from below by the noise."""
        half, doubt = (right - left) / 2, self._round_noise / moments.count
        return np.maximum(np.sqrt(moments.deviation**2 + doubt * half**2), 1e-9 * half)


@final
class FromHistograms(Normalisation):
    """Transform every column to a Gaussian by its noisy distribution.

    Knots are noisy quantiles, as many as the noise allows; beyond the outermost ones the
    tails are assumed to decay exponentially, at the rate observed just inside. Columns with
    spikes, skew or gaps become smooth ones, which a flow learns with far fewer steps.

    Guarantee:
        One Gaussian release of nested counts; the curves follow from it.

    Example:
        >>> rows = np.random.default_rng().exponential(size=(5000, 1))
        >>> plan = FromHistograms(5000, 1, noise=5.0)
        >>> curves = plan.find(rows, np.zeros(1), np.full(1, 50.0), entropy=Entropy.from_os())
        >>> bool(abs(curves.apply(rows).std() - 1) < 0.2)
        True
    """

    @staticmethod
    def sensitivity(columns: int) -> Sensitivity:
        """Sensitivity of the counts of all columns."""
        return trees_sensitivity(columns)

    @property
    def events(self) -> tuple[Event, ...]:
        """One release."""
        unit = self.sensitivity(self.columns)
        return (GaussianEvent(noise=self.noise, sensitivity=unit, purpose="normalisation"),)

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Curves:
        """A curve through the noisy quantiles of each column."""
        below = noisy_distributions(
            rows, low, high, noise=self.noise, entropy=entropy, purpose="normalisation"
        ).value
        edges = np.linspace(low, high, BINS + 1, axis=1)
        columns = zip(edges, self._trusted(below), strict=True)
        return Curves([gaussian_curve(x, counts, parts=self.quantiles) for x, counts in columns])

    @property
    def quantiles(self) -> int:
        """The number of parts of equal mass that exceed the noise."""
        doubt = 4 * RANK_ERROR * self.noise / self.rows
        return int(min(1 / max(doubt, 1e-9), _MOST_QUANTILES))

    @property
    def is_worthwhile(self) -> bool:
        """Whether a few quantiles exceed the noise."""
        return self.quantiles >= _FEWEST_QUANTILES

    def _trusted(self, below: Float[np.ndarray, "columns edges"]) -> np.ndarray:
        """The counts, or uniform ones where the column is lost in noise."""
        even = np.broadcast_to(np.linspace(0, 1, below.shape[1]), below.shape)
        return np.where(below[:, -1:] < self.rows / 2, even, below)


@final
class FromRows(Unpriced):
    """Standardise by the rows' own moments, as the paper does. NOT PRIVATE.

    Guarantee:
        None: the moments are released without noise. Results must carry ``UNPAID_STAMP``.

    Example:
        >>> rows, low, high = np.array([[1.0], [3.0]]), np.zeros(1), np.full(1, 9.0)
        >>> FromRows(2, 1, 0.0).find(rows, low, high, entropy=Entropy.from_os()).shift.tolist()
        [2.0]
    """

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """The rows' mean and deviation."""
        return Scaling(rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9 * (high - low)))


def _round_name(index: int) -> str:
    return f"normalisation {index + 1}"


NORMALISATIONS: dict[str, type[Normalisation]] = {
    "bounds": FromBounds,
    "histograms": FromHistograms,
    "moments": FromMoments,
    UNPAID: FromRows,
}


def plan_normalisation(
    name: str, budget: Budget, *, rows: int, columns: int, share: float = NORMALISER_SHARE
) -> Normalisation:
    """Choose the noise of a normalisation by its share of the budget.

    Args:
        name: A key of ``NORMALISATIONS``.
        budget: The total.
        rows: Public number of rows.
        columns: Number of columns.
        share: The share of the squared Gaussian budget it may spend. If the statistics would be
        lost in noise, the declared bounds are used instead, at no cost.

    Example:
        >>> plan_normalisation("histograms", Budget(1.0, 1e-5), rows=9000, columns=2).quantiles
        11
        >>> len(plan_normalisation("histograms", Budget(1.0, 1e-5), rows=90, columns=2).events)
        0
    """
    check_choice("normalisation", name, tuple(NORMALISATIONS))
    way = NORMALISATIONS[name]
    unit = way.sensitivity(columns)
    if unit is None:
        return way(rows, columns, 0.0)
    planned = way(rows, columns, max(noise_of_share(budget, unit, share), FAINT))
    return planned if planned.is_worthwhile else FromBounds(rows, columns, 0.0)


#: Up to so many columns a mixture needs no flow.
FEW_COLUMNS = 3
#: The part of the squared Gaussian budget for a single Gaussian that a flow starts from: so much
#: per moment and unit of mu times the number of rows, within limits.
_SHARE_PER_MOMENT, _LEAST_SHARE, _MOST_SHARE = 0.3, 0.05, 0.1
_MARK = "prior-"
#: Normalised columns are cut here before a mixture is fitted: no density is beyond.
_REACH = 8.0

Arrays = dict[str, np.ndarray]


class Prior(Stage):
    """A stage that gives the flow its prior, a mixture."""

    is_kept = True

    def keep(self, work: Work) -> Before:
        """The prior; the normaliser that it extends is stored with the normaliser's stage."""
        return {}, prior_arrays(work.prior)

    def resume(self, work: Work, kept: Before) -> Work:
        """The prior that was released before."""
        return work.after(prior=prior_from(kept[1]))


@final
@dataclasses.dataclass(frozen=True)
class FitPrior(Prior):
    """A mixture fitted with a share of the budget.

    Guarantee:
        Releases what the mixture's plan lists, and nothing else.
    """

    plan: MixturePlan

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of the mixture."""
        return self.plan.events

    def run(self, work: Work) -> Work:
        """Fit the mixture in a cube of normalised columns, then standardise by it."""
        before, rows = needed(work.normaliser), needed(work.rows)
        left, right = np.clip(before.apply(np.stack(work.box)), -_REACH, _REACH)
        cube = Scaling((left + right) / 2, (right - left) / 2)
        normalised = np.clip(before.apply(rows), left, right)
        mixture = fit_local(cube.apply(normalised), self.plan, entropy=work.entropy)
        scaling, prior = standardised(mixture.scaled(cube.scale, cube.shift))
        return work.after(normaliser=before.then(scaling), prior=prior)


@final
@dataclasses.dataclass(frozen=True)
class GivenPrior(Prior):
    """A mixture that was fitted before, in the units of the rows.

    Attributes:
        mixture: The prior.
        spent: The events of its fit to the same people.
    """

    mixture: Mixture
    spent: tuple[Event, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of its fit."""
        return self.spent

    def run(self, work: Work) -> Work:
        """Standardise the columns by the given mixture."""
        if self.mixture.means.shape[1] != len(work.box[0]):
            raise InputError(f"prior must have {len(work.box[0])} columns, as the rows do")
        scaling, prior = standardised(self.mixture)
        return work.after(normaliser=scaling, prior=prior)

    def keep(self, work: Work) -> Before:
        """The prior and its scaling."""
        return {}, prior_arrays(work.prior) | needed(work.normaliser).arrays()

    def resume(self, work: Work, kept: Before) -> Work:
        """A given prior is not released again."""
        return self.run(work)


def prior_arrays(prior: Mixture | None) -> Arrays:
    """The arrays of a prior by name, as in a file."""
    parts = {} if prior is None else dataclasses.asdict(prior)
    return {_MARK + name: array for name, array in parts.items()}


def prior_from(arrays: Arrays) -> Mixture | None:
    """Restore a prior from ``prior_arrays``, whose content may be hostile.

    Example:
        >>> prior_from(prior_arrays(None)) is None
        True
    """
    parts = {n.removeprefix(_MARK): a for n, a in arrays.items() if n.startswith(_MARK)}
    return Mixture(**parts) if parts else None


def prior_share(budget: Budget, *, columns: int) -> float:
    """The public rule: the share of the squared Gaussian budget for a prior.

    All of it for few columns or without noise; otherwise none, and the flow starts from a single
    Gaussian.

    Example:
        >>> prior_share(Budget(1.0, 1e-5), columns=2)
        1.0
        >>> prior_share(Budget(1.0, 1e-5), columns=6)
        0.0
    """
    return 1.0 if columns <= FEW_COLUMNS or not budget.is_private else 0.0


def gaussian_share(budget: Budget, *, rows: int, columns: int) -> float:
    """The public rule: the share of the squared Gaussian budget for an initial Gaussian.

    More if it has many moments for the number of rows, since noise would prevent a flow from
    correcting them.

    Example:
        >>> gaussian_share(Budget(1.0, 1e-5), rows=24_000, columns=10)
        0.05
        >>> gaussian_share(Budget(1.0, 1e-5), rows=1_000, columns=20)
        0.1
    """
    moments = columns * (columns + 3) / 2
    wanted = _SHARE_PER_MOMENT * moments / (strength(budget) * rows)
    return min(max(wanted, _LEAST_SHARE), _MOST_SHARE)


def standardised(mixture: Mixture) -> tuple[Scaling, Mixture]:
    """The scaling by a mixture's mean and standard deviation, and the scaled mixture.

    Example:
        >>> mixture = Mixture(np.ones(1), np.full((1, 1), 5.0), np.full((1, 1, 1), 2.0))
        >>> scaling, moved = standardised(mixture)
        >>> scaling.shift.tolist(), moved.means.tolist()
        ([5.0], [[0.0]])
    """
    kept = mixture.weights > 0
    weights = mixture.weights[kept] / mixture.weights[kept].sum()
    means, factors = mixture.means[kept], mixture.factors[kept]
    centre = weights @ means
    within = np.einsum("kij,kij->ki", factors, factors)
    spread = np.sqrt(weights @ (within + (means - centre) ** 2))
    moved = Mixture(weights, means, factors).scaled(1 / spread, -centre / spread)
    return Scaling(centre, spread), moved


PAPER_FORMULA = "paper-not-private"
INITIALISATIONS = ("identity", "private", PAPER_FORMULA)
PAPER_STAMP = (
    "NOT PRIVATE: ActNorm was initialised by the paper's formula, whose noise is too small"
)
#: The part of the squared Gaussian budget that initialisation may spend.
START_SHARE = 0.05
#: Inputs of a layer are clipped to this on either side, in normalised units.
CLIP = 6.0
_LEAST_SCALE = 0.05


@final
@dataclasses.dataclass(frozen=True)
class Initialisation:
    """A planned initialisation of the ActNorm layers.

    Args:
        name: One of ``INITIALISATIONS``.
        layers: Number of ActNorm layers.
        columns: Number of columns.
        noise: Standard deviation on each clipped sum of a layer, in rows.
        budget: The total budget, used only by the paper's formula.

    Guarantee:
        ``start`` releases exactly ``events``, one Gaussian release per layer. With
        ``paper-not-private`` it releases more than any event covers, and the result must carry
        ``PAPER_STAMP``.

    Example:
        >>> plan = plan_initialisation("private", Budget(1.0, 1e-5), layers=5, columns=2)
        >>> len(plan.events)
        5
    """

    name: str
    layers: int
    columns: int
    noise: float
    budget: Budget

    @property
    def events(self) -> tuple[Event, ...]:
        """One release per layer."""
        if self.name != "private":
            return ()
        unit = moments_sensitivity(self.columns)
        return tuple(
            GaussianEvent(noise=self.noise, sensitivity=unit, purpose=_purpose(layer))
            for layer in range(self.layers)
        )

    def start(self, flow: Any, rows: Rows, *, entropy: Entropy) -> Any:
        """The flow with its ActNorm layers set."""
        if self.name == "identity":
            return flow
        measure = self._private if self.name == "private" else self._as_in_the_paper
        return with_act_norms(flow, rows, lambda x, layer: measure(x, layer, entropy))

    def _private(self, rows: Rows, layer: int, entropy: Entropy) -> tuple[np.ndarray, np.ndarray]:
        found = clipped_moments(
            rows,
            np.full(self.columns, -CLIP),
            np.full(self.columns, CLIP),
            noise=self.noise,
            entropy=entropy,
            purpose=_purpose(layer),
        ).value
        return found.mean, np.maximum(found.deviation, self._hidden(found.count))

    def _hidden(self, count: float) -> float:
        """The deviation that noise could hide; a smaller divisor would blow up the layer."""
        doubt = self.noise / max(count, 1.0)
        return max(_LEAST_SCALE, min(1.0, CLIP * math.sqrt(doubt) / 2))

    def _as_in_the_paper(
        self, rows: Rows, layer: int, entropy: Entropy
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation plus Laplace noise of scale 2 sqrt(4K ln(1/delta)) D / epsilon."""
        clipped = np.clip(rows, -CLIP, CLIP)
        spread = 2 * math.sqrt(4 * self.layers * math.log(1 / self.budget.delta))
        scale = spread * (2 * CLIP / len(rows)) / self.budget.epsilon
        uniform = entropy.uniforms("mechanisms", step=layer, count=2 * self.columns) - 0.5
        noise = -scale * np.sign(uniform) * np.log1p(-2 * np.abs(uniform))
        mean, deviation = np.split(noise, 2)
        return (
            clipped.mean(axis=0) + mean,
            np.maximum(clipped.std(axis=0) + deviation, _LEAST_SCALE),
        )


def plan_initialisation(
    name: str, budget: Budget, *, layers: int, columns: int, share: float = START_SHARE
) -> Initialisation:
    """Choose the noise of an initialisation by its share of the budget.

    Args:
        name: One of ``INITIALISATIONS``.
        budget: The total.
        layers: Number of ActNorm layers.
        columns: Number of columns.
        share: The share of the squared Gaussian budget it may spend.
    """
    check_choice("initialisation", name, INITIALISATIONS)
    unit = moments_sensitivity(columns)
    noise = max(noise_of_share(budget, unit, share / max(layers, 1)), FAINT)
    return Initialisation(name, layers, columns, noise, budget)


@final
@dataclasses.dataclass(frozen=True)
class BuildFlow(Stage):
    """Build a flow with a uniform background over the box, and initialise it.

    Attributes:
        architecture: The flow; ``None`` if the prior itself is the model.
        initialisation: The initialisation of its ActNorm layers.
        trainable_prior: Whether the prior is trained.

    Guarantee:
        Releases what the initialisation lists.
    """

    architecture: Architecture | None
    initialisation: Initialisation
    trainable_prior: bool = False

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of the initialisation."""
        return () if self.architecture is None else self.initialisation.events

    def run(self, work: Work) -> Work:
        """Build and initialise; a run that resumes from saved steps is not initialised again."""
        normaliser = needed(work.normaliser)
        points = normaliser.apply(needed(work.rows))
        key = work.entropy.key("initialisation")
        model = untrained_flow(
            self.architecture, normaliser, work.prior, work.box, key, self.trainable_prior
        )
        has_steps = work.journal is not None and work.journal.has_state
        if self.architecture is not None and not has_steps:
            start = self.initialisation.start(model.flow, points, entropy=work.entropy)
            model = Defended(start, model.background)
        return work.after(points=points, model=model)


def untrained_flow(
    architecture: Architecture | None,
    normaliser: Normaliser,
    prior: Mixture | None,
    box: tuple[np.ndarray, np.ndarray],
    key_words: np.ndarray,
    trainable_prior: bool,
) -> Defended:
    """An untrained flow over a box, or the prior itself, with the background on that box."""
    base = None
    if prior is not None:
        base = gaussian_mixture(
            prior.weights, prior.means, prior.factors, trainable=trainable_prior
        )
    if architecture is not None:
        key = jax.random.wrap_key_data(jnp.asarray(key_words))
        base = architecture.build(len(box[0]), key=key, base=base)
    if base is None:
        raise InputError("a model without training needs a prior")
    corners = (normaliser.apply(corner[None])[0] for corner in box)
    return Defended(base, uniform_box(*(corner.tolist() for corner in corners)))


def _purpose(layer: int) -> str:
    return f"initialisation of layer {layer + 1}"

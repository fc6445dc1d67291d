"""Initialisation of a flow: its mixture prior, and data-dependent ActNorm layers.

The prior of a flow is a Gaussian mixture, fitted with a share of the budget or given; its mean
and standard deviation then normalise the columns at no further cost.

The ActNorm layers may be initialised from the data (DP-NF-INIT of the paper). The paper adds
Laplace noise to the mean and to the standard deviation of each layer's inputs, with
sensitivities of the order of one over the number of rows. That is right for a mean, but a
standard deviation can change by one over the square root of the number of rows, and all columns
of a layer change together. Here noise is added to clipped sums, from which the standard
deviation is computed. The paper's formula is kept for comparison as ``paper-not-private``.
"""

import dataclasses
import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dpflows.errors import InputError
from dpflows.files import keep_compiled_programs
from dpflows.models.architectures import Architecture
from dpflows.models.bijections import with_act_norms
from dpflows.models.density import Defended
from dpflows.models.distributions import Mixture, gaussian_mixture, uniform_box
from dpflows.models.normalisers import Normaliser, Scaling
from dpflows.pipeline.stage import Stage, Work, needed
from dpflows.privacy.accounting import calibrate_noise, strength
from dpflows.privacy.events import Event, GaussianEvent, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import clipped_moments, moments_sensitivity
from dpflows.privacy.randomness import Entropy
from dpflows.training.checkpoints import Before
from dpflows.training.mixture_em import MixturePlan, fit_local

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
SHARE = 0.05
#: Inputs of a layer are clipped to this on either side, in normalised units.
CLIP = 6.0
_LEAST_SCALE = 0.05

Rows = Float[np.ndarray, "rows columns"]


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
    name: str, budget: Budget, *, layers: int, columns: int, share: float = SHARE
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
    whole = calibrate_noise(
        budget, lambda noise: [GaussianEvent(noise=noise, sensitivity=unit)], accountant="gdp"
    )
    noise = max(whole * math.sqrt(max(layers, 1) / share), 1e-3)
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
        keep_compiled_programs()
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

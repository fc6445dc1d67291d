"""What happens between the rows and the flow: a normaliser, or a prior that brings its own.

A prior is a mixture of Gaussians that the flow starts from and refines. It is fitted with
a share of the budget, or given. Its own location and spread then normalise the columns,
which costs nothing more.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.charging import for_good, kept_schemas, require_same
from dpflows.estimators.intake import Declarations, Intake
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.flows.base import gaussian_mixture
from dpflows.flows.normalisers import Normaliser, Scaling, normaliser_from
from dpflows.mixtures.local import fit_local
from dpflows.mixtures.mixture import Mixture
from dpflows.mixtures.schedule import MixturePlan, plan_mixture
from dpflows.privacy.events import Event, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Table
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.defaults import strength
from dpflows.training.normalising import (
    NORMALISATIONS,
    UNPAID,
    UNPAID_STAMP,
    FromBounds,
    Normalisation,
    plan_normalisation,
)

#: Up to so many columns a mixture needs no flow.
FEW_COLUMNS = 3
#: From so many rows per column on, each counted as much as mu, histograms are worth their share
#: before a flow that is trained by natural gradient.
ENOUGH_ROWS = 3600
#: The part of the squared Gaussian budget for a single Gaussian that a flow starts from: so much
#: per moment and unit of mu times the number of rows, within limits.
_SHARE_PER_MOMENT, _LEAST_SHARE, _MOST_SHARE = 0.3, 0.05, 0.1
#: The learning rate of a flow that refines a mixture by a first-order method.
REFINING_RATE = 1e-3
PUBLIC_PRIOR = (
    "the flow starts from a mixture that the curator declared to be fitted to public rows of other "
    "people (prior_is_public). What that fit cost is not counted here; if it read the same people, "
    "its cost must be added."
)
_MARK = "prior-"
#: Normalised columns are cut here before a mixture is fitted: no density is beyond.
_REACH = 8.0

Rows = Float[np.ndarray, "rows columns"]
Vector = Float[np.ndarray, " columns"]


@final
@dataclasses.dataclass(frozen=True)
class Prepared:
    """What the flow is built on.

    Attributes:
        normaliser: From the rows' units to the flow's.
        prior: The flow's base in normalised units; a standard Gaussian if None.

    Example:
        >>> prepared = Prepared(Scaling.identity(2), None)
        >>> Prepared.from_arrays(prepared.arrays()).base() is None
        True
    """

    normaliser: Normaliser
    prior: Mixture | None

    def base(self, *, trainable: bool = False) -> AbstractDistribution | None:
        """The prior as the base of a flow."""
        if self.prior is None:
            return None
        mixture = self.prior
        return gaussian_mixture(
            mixture.weights, mixture.means, mixture.factors, trainable=trainable
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """What ``from_arrays`` needs."""
        parts = {} if self.prior is None else dataclasses.asdict(self.prior)
        return self.normaliser.arrays() | {_MARK + name: a for name, a in parts.items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Prepared":
        """Build again what ``arrays`` described; the content may be hostile."""
        parts = {n.removeprefix(_MARK): a for n, a in arrays.items() if n.startswith(_MARK)}
        return cls(normaliser_from(arrays), Mixture(**parts) if parts else None)


class Preparation(abc.ABC):
    """A planned way to prepare.

    Guarantee:
        ``find`` releases exactly ``events``; they are known before a row is read.
    """

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """What it costs."""

    @abc.abstractmethod
    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Prepared:
        """Prepare for rows inside the public box."""


@final
@dataclasses.dataclass(frozen=True)
class WithoutPrior(Preparation):
    """A normaliser alone."""

    way: Normalisation

    @property
    def events(self) -> tuple[Event, ...]:
        """What the normaliser costs."""
        return self.way.events

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Prepared:
        """Find the normaliser."""
        return Prepared(self.way.find(rows, low, high, entropy=entropy), None)


@final
@dataclasses.dataclass(frozen=True)
class PrivatePrior(Preparation):
    """A mixture fitted with a share of the budget.

    Guarantee:
        The mixture's releases and nothing else.
    """

    plan: MixturePlan
    way: Normalisation

    @property
    def events(self) -> tuple[Event, ...]:
        """What the normaliser and the mixture cost."""
        return (*self.way.events, *self.plan.events)

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Prepared:
        """Fit the mixture in a cube of normalised columns, then standardise by it."""
        normaliser = self.way.find(rows, low, high, entropy=entropy)
        left, right = np.clip(normaliser.apply(np.stack([low, high])), -_REACH, _REACH)
        cube = Scaling((left + right) / 2, (right - left) / 2)
        normalised = np.clip(normaliser.apply(rows), left, right)
        mixture = fit_local(cube.apply(normalised), self.plan, entropy=entropy)
        return seen_through(mixture.scaled(cube.scale, cube.shift), before=normaliser)


@final
@dataclasses.dataclass(frozen=True)
class GivenPrior(Preparation):
    """A mixture that is there already, in the rows' units.

    Attributes:
        mixture: The prior.
        spent: What fitting it cost the same people.
    """

    mixture: Mixture
    spent: tuple[Event, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """What it cost already."""
        return self.spent

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Prepared:
        """Look at the columns through the given mixture."""
        if self.mixture.means.shape[1] != len(low):
            raise InputError(f"prior must have {len(low)} columns, as the rows do")
        return seen_through(self.mixture)


def prior_share(budget: Budget, *, columns: int) -> float:
    """The public rule: the part of the squared Gaussian budget that a prior should get.

    All of it where columns are few or there is no noise; none elsewhere, where the flow starts from
    a single Gaussian.

    Example:
        >>> prior_share(Budget(1.0, 1e-5), columns=2)
        1.0
        >>> prior_share(Budget(1.0, 1e-5), columns=6)
        0.0
    """
    return 1.0 if columns <= FEW_COLUMNS or not budget.is_private else 0.0


def gaussian_share(budget: Budget, *, rows: int, columns: int) -> float:
    """The public rule: the part of the squared Gaussian budget for a Gaussian to start from.

    More where its moments are many for the rows, and noise would keep a flow from mending it.

    Example:
        >>> gaussian_share(Budget(1.0, 1e-5), rows=24_000, columns=10)
        0.05
        >>> gaussian_share(Budget(1.0, 1e-5), rows=1_000, columns=20)
        0.1
    """
    moments = columns * (columns + 3) / 2
    wanted = _SHARE_PER_MOMENT * moments / (strength(budget) * rows)
    return min(max(wanted, _LEAST_SHARE), _MOST_SHARE)


def seen_through(mixture: Mixture, *, before: Normaliser | None = None) -> Prepared:
    """Standardise columns by a mixture's own mean and deviation.

    Args:
        mixture: In the units that ``before`` gives.
        before: What brought the columns to these units; nothing if None.

    Example:
        >>> mixture = Mixture(np.ones(1), np.full((1, 1), 5.0), np.full((1, 1, 1), 2.0))
        >>> prepared = seen_through(mixture)
        >>> prepared.normaliser.arrays()["shift"].tolist(), prepared.prior.means.tolist()
        ([5.0], [[0.0]])
    """
    kept = mixture.weights > 0
    weights = mixture.weights[kept] / mixture.weights[kept].sum()
    means, factors = mixture.means[kept], mixture.factors[kept]
    centre = weights @ means
    within = np.einsum("kij,kij->ki", factors, factors)
    spread = np.sqrt(weights @ (within + (means - centre) ** 2))
    moved = Mixture(weights, means, factors).scaled(1 / spread, -centre / spread)
    scaling = Scaling(centre, spread)
    normaliser = scaling if before is None else before.then(scaling)
    return Prepared(normaliser, moved)


@final
@dataclasses.dataclass(frozen=True)
class Beginning:
    """What a caller said about prior and normaliser.

    Attributes:
        prior: ``None``, ``"auto"``, ``"mixture"`` or a fitted ``DPGaussianMixture``.
        prior_share: The part of the squared Gaussian budget for a ``"mixture"``.
        is_public: Whether a given prior was fitted to public rows.
        normalisation: The way to normalise columns, or ``auto``.
        is_natural: Whether the flow is trained by natural gradient, which starts from a
            Gaussian with a bought covariance where there is no mixture.
    """

    prior: str | DPGaussianMixture | None
    prior_share: float
    is_public: bool
    normalisation: str
    is_natural: bool = False

    def share(self, budget: Budget, *, columns: int) -> float:
        """The part of the squared Gaussian budget that fits a prior."""
        if self.prior is None or isinstance(self.prior, DPGaussianMixture):
            return 0.0
        check_choice("prior", str(self.prior), ("auto", "mixture"))
        if self.prior == "auto":
            return prior_share(budget, columns=columns)
        if not 0 < self.prior_share <= 1:
            raise InputError(f"prior_share must be in (0, 1], got {self.prior_share}")
        return self.prior_share

    def preparation(
        self, budget: Budget, *, rows: int, columns: int, accountant: str, before: Sequence[Event]
    ) -> Preparation:
        """The prior, or the normaliser where there is none."""
        check_choice("normalisation", self.normalisation, ("auto", *NORMALISATIONS))
        if isinstance(self.prior, DPGaussianMixture):
            return self._given(self.prior)
        share = self.share(budget, columns=columns)
        name = self._normalisation(share, strength(budget) * rows / columns)
        way = plan_normalisation(name, budget, rows=rows, columns=columns)
        if share == 0 and not self.is_natural:
            return WithoutPrior(way)
        way = way if self.is_natural else FromBounds(rows, columns, 0.0)
        plan = plan_mixture(
            budget,
            rows=rows,
            columns=columns,
            accountant=accountant,
            components=None if share > 0 else 1,
            before=(*before, *way.events),
            share=share or gaussian_share(budget, rows=rows, columns=columns),
        )
        return PrivatePrior(plan, way)

    def rate_after(self, share: float, given: float | None) -> float | None:
        """The given learning rate, or the small one of a flow that starts where it should end."""
        if share == 0 or given is not None or self.is_natural:
            return given
        return REFINING_RATE

    def _normalisation(self, share: float, rows_per_column: float) -> str:
        """The given way, or the public rule, where rows are counted as much as mu.

        Histograms, but for natural gradient where they would be noisy or no flow follows.
        """
        if self.normalisation != "auto":
            return self.normalisation
        is_enough = 0 < share < 1 or (share == 0 and rows_per_column >= ENOUGH_ROWS)
        return "histograms" if is_enough or not self.is_natural else "bounds"

    @property
    def stamps(self) -> tuple[str, ...]:
        """What a given prior carries, unless its rows are public; or an unpaid normaliser."""
        if isinstance(self.prior, DPGaussianMixture):
            return () if self.is_public else self.prior.guarantee_.stamps
        return (UNPAID_STAMP,) if self.normalisation == UNPAID else ()

    @property
    def caveats(self) -> tuple[str, ...]:
        """That a given prior was called public, which no calculation can check."""
        is_told = isinstance(self.prior, DPGaussianMixture) and self.is_public
        return (PUBLIC_PRIOR,) if is_told else ()

    def _given(self, fitted: DPGaussianMixture) -> GivenPrior:
        check_is_fitted(fitted, "density_")
        cube, parts = fitted.density_.normaliser.arrays(), fitted.parameters_
        weights = parts["weights"] / parts["weights"].sum()
        mixture = Mixture(weights, parts["means"], parts["factors"])
        spent = () if self.is_public else fitted.guarantee_.events
        return GivenPrior(mixture.scaled(cube["scale"], cube["shift"]), spent)


def prepare(
    preparation: Preparation,
    told: Declarations,
    table: Table,
    budget: Budget,
    checkpoints: Checkpoints | None,
    entropy: Entropy,
) -> tuple[Intake, Prepared]:
    """Bounds, normaliser and prior: bought now, or taken from an earlier start of this run."""
    kept = None if checkpoints is None else checkpoints.before()
    found = None if kept is None else Schema.from_dict(kept[0]["schema"])
    require_same(kept, table.schema)
    with for_good(checkpoints):
        intake = told.take_in(table, budget, entropy, found=found)
    box = (intake.encoding.low, intake.encoding.high)
    if kept is None:
        prepared = preparation.find(intake.rows, *box, entropy=entropy)
    else:
        prepared = Prepared.from_arrays(kept[1])
    if checkpoints is not None and kept is None:
        checkpoints.remember(kept_schemas(table.schema, intake.encoding.schema), prepared.arrays())
    return intake, prepared

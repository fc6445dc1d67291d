"""A Gaussian-mixture prior that a flow starts from, fitted with a share of the budget or given.

The prior's own location and spread then normalise the columns, which costs nothing more.
"""

import dataclasses
from typing import final

import numpy as np

from dpflows.errors import InputError
from dpflows.flows.normalisers import Scaling
from dpflows.mixtures.local import fit_local
from dpflows.mixtures.mixture import Mixture
from dpflows.mixtures.schedule import MixturePlan
from dpflows.pipeline.stage import Stage, Work, needed
from dpflows.privacy.accounting import strength
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.training.checkpoints import Before

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
    """A stage that gives the flow a mixture to start from."""

    is_kept = True

    def keep(self, work: Work) -> Before:
        """The prior; the normaliser that it added to is kept with the normaliser's stage."""
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
        """What the mixture costs."""
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
    """A mixture that is there already, in the units of the rows.

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
        """What is given needs not be released again."""
        return self.run(work)


def prior_arrays(prior: Mixture | None) -> Arrays:
    """A prior by the names it has in a file."""
    parts = {} if prior is None else dataclasses.asdict(prior)
    return {_MARK + name: array for name, array in parts.items()}


def prior_from(arrays: Arrays) -> Mixture | None:
    """The prior that ``prior_arrays`` described; the content may be hostile.

    Example:
        >>> prior_from(prior_arrays(None)) is None
        True
    """
    parts = {n.removeprefix(_MARK): a for n, a in arrays.items() if n.startswith(_MARK)}
    return Mixture(**parts) if parts else None


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


def standardised(mixture: Mixture) -> tuple[Scaling, Mixture]:
    """The scaling by a mixture's own mean and deviation, and the mixture in its units.

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

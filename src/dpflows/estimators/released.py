"""What estimators share that release statistics of the rows once and compute the rest."""

import abc
from typing import Any, TypeVar

import numpy as np
from flowjax.distributions import AbstractDistribution

from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.boxes import describe_density, read_density
from dpflows.estimators.charging import Job
from dpflows.estimators.intake import Intake
from dpflows.estimators.plans import ReleasePlan
from dpflows.flows.base import uniform_box
from dpflows.flows.density import Defended
from dpflows.flows.normalisers import Normaliser, normaliser_from
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.table.encoding import Encoding
from dpflows.table.schema import Schema

Self = TypeVar("Self", bound="ReleasedEstimator")
Arrays = dict[str, np.ndarray]


class ReleasedEstimator(DensityEstimator):
    """A density that is a function of a few noisy statistics.

    Attributes:
        parameters_: What was released, by name, in the normaliser's units.

    Guarantee:
        ``_estimate`` is the only method that sees rows; it makes the plan's releases and
        nothing else.
    """

    parameters_: Arrays

    def _learn(self, job: Job) -> None:
        """Make the plan's releases and assemble the model from them."""
        plan, entropy = job.plan, job.entropy
        intake = self._declarations().take_in(job.table, self._budget(), entropy)
        normaliser, self.parameters_ = self._estimate(intake, plan, entropy)
        model = _defended(self._assemble(self.parameters_), normaliser, intake.encoding)
        self._release(intake, plan, model, normaliser, entropy)

    @abc.abstractmethod
    def plan(self, rows: int, columns: int | None = None) -> ReleasePlan:
        """What ``fit`` would do with a table of this shape; reads no row."""

    @abc.abstractmethod
    def _estimate(
        self, intake: Intake, plan: ReleasePlan, entropy: Entropy
    ) -> tuple[Normaliser, Arrays]:
        """Make the plan's releases; a normaliser and the model's arrays in its units."""

    @staticmethod
    @abc.abstractmethod
    def _assemble(arrays: Arrays) -> AbstractDistribution:
        """The model those arrays describe; they may come from a hostile file."""

    def _describe_model(self) -> tuple[dict[str, Any], Arrays]:
        header, arrays = describe_density(self.density_)
        return header | {"plan": self.plan_.to_dict()}, arrays | self.parameters_

    @classmethod
    def _rebuild(
        cls: type[Self],
        header: dict[str, Any],
        arrays: Arrays,
        guarantee: Guarantee,
        schema: Schema,
    ) -> Self:
        budget = Budget(guarantee.epsilon, guarantee.delta, guarantee.neighbours)
        estimator = cls(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            schema=schema,
            neighbours=guarantee.neighbours,
            accountant=guarantee.accountant,
        )
        estimator.plan_ = ReleasePlan.from_dict(header["plan"], budget)
        encoding, normaliser = Encoding(schema), normaliser_from(arrays)
        estimator.parameters_ = {
            name: array for name, array in arrays.items() if name not in normaliser.arrays()
        }
        model = _defended(cls._assemble(estimator.parameters_), normaliser, encoding)
        estimator.density_ = read_density(header, normaliser, model, encoding)
        estimator.encoding_ = encoding
        return estimator


def _defended(model: AbstractDistribution, normaliser: Normaliser, encoding: Encoding) -> Defended:
    """The model over the uniform background on the declared box."""
    corners = (normaliser.apply(corner[None])[0] for corner in (encoding.low, encoding.high))
    return Defended(model, uniform_box(*corners))

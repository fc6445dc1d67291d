"""The base class of estimators that release a few statistics and compute the density from them.

It also reads and writes the density over a box of numeric columns in a model file.
"""

import abc
import dataclasses
from typing import Any, TypeVar

import numpy as np
from flowjax.distributions import AbstractDistribution

from dpflows.estimators.base import DensityEstimator
from dpflows.models.density import Defended, Density
from dpflows.models.distributions import uniform_box
from dpflows.models.normalisers import Normaliser, normaliser_from
from dpflows.pipeline.plan import Plan
from dpflows.pipeline.stage import Work, jax_key, needed
from dpflows.privacy.guarantee import Guarantee
from dpflows.table.encoding import Encoding
from dpflows.table.schema import Schema


def released_density(model: Defended, work: Work) -> Density:
    """A released model over the box; its mass inside is computed from the model only."""
    density = Density(needed(work.normaliser), model, *work.box)
    return density.with_inside_mass(jax_key(work.entropy, "sampling", step=1))


def describe_density(density: Density) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The parts of a density in a file, besides its model."""
    header = {"log_inside": density.log_inside, "background_weight": density.model.weight}
    return header, density.normaliser.arrays()


def read_density(
    header: dict[str, Any], normaliser: Normaliser, model: Defended, encoding: Encoding
) -> Density:
    """Restore a density from ``describe_density``, whose content may be hostile."""
    weighted = Defended(model.flow, model.background, float(header["background_weight"]))
    inside = float(header["log_inside"])
    return Density(normaliser, weighted, encoding.low, encoding.high, inside)


Self = TypeVar("Self", bound="ReleasedEstimator")
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ReleasedEstimator(DensityEstimator):
    """An estimator whose density is a function of a few noisy statistics.

    Attributes:
        parameters_: The released statistics by name, in the normaliser's units.

    Guarantee:
        Only the stages of the plan read rows.
    """

    parameters_: Arrays = dataclasses.field(init=False)

    def _assemble(self, plan: Plan, work: Work) -> Density:
        self.parameters_ = needed(work.parameters)
        model = _defended(self._model(self.parameters_), needed(work.normaliser), work.numeric)
        return released_density(model, work)

    @staticmethod
    @abc.abstractmethod
    def _model(arrays: Arrays) -> AbstractDistribution:
        """The model of those arrays, which may come from a hostile file."""

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
        estimator = cls(**cls._settings_of(guarantee, schema))
        estimator.plan_ = Plan.from_dict(header["plan"], guarantee.budget)
        encoding, normaliser = Encoding(schema), normaliser_from(arrays)
        estimator.parameters_ = {
            name: array for name, array in arrays.items() if name not in normaliser.arrays()
        }
        model = _defended(cls._model(estimator.parameters_), normaliser, encoding)
        estimator.density_ = read_density(header, normaliser, model, encoding)
        estimator.encoding_ = encoding
        return estimator


def _defended(model: AbstractDistribution, normaliser: Normaliser, encoding: Encoding) -> Defended:
    """The model over the uniform background on the declared box."""
    corners = (normaliser.apply(corner[None])[0] for corner in (encoding.low, encoding.high))
    return Defended(model, uniform_box(*corners))

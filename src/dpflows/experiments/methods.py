"""The methods that the experiments compare, by name; a new one is one class and one line.

``ours`` charges everything that it computes from the rows. The paper's own protocol does not:
columns are standardised by their own moments, rows scaled by their largest norm. Methods
that follow it are marked NOT PRIVATE, and so are their models.
"""

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.density import DPDensity
from dpflows.estimators.flow import DPFlow
from dpflows.estimators.gaussian import DPGaussian
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.experiments.data import RealTable, TableRows, Vector
from dpflows.experiments.paper_recipe import COMPONENTS, published, recipe_models
from dpflows.models.architectures import Architecture
from dpflows.models.density import Mixture


class Setting(NamedTuple):
    """The claim of a fit: an epsilon and its accountant."""

    accountant: str
    epsilon: float


#: A setting, its model, and what the fit took in seconds.
Fit = tuple[Setting, DensityEstimator, float]


class Method(abc.ABC):
    """A way to a density of a data set."""

    accountants: tuple[str, ...] = ("pld",)
    is_private: bool = True

    def settings(self, dataset: str, epsilons: Sequence[float]) -> list[Setting]:
        """What can be claimed at these budgets."""
        return [Setting(name, epsilon) for name in self.accountants for epsilon in epsilons]

    @abc.abstractmethod
    def fit(
        self, dataset: str, table: RealTable, fold: int, settings: Sequence[Setting]
    ) -> Iterator[Fit]:
        """Fit to the training rows of one fold."""

    def log_density(self, model: Any, rows: TableRows) -> np.ndarray:
        """Of test rows, in the table's units."""
        return model.score_samples(rows)


class OneByOne(Method):
    """A method that fits every setting anew."""

    def fit(
        self, dataset: str, table: RealTable, fold: int, settings: Sequence[Setting]
    ) -> Iterator[Fit]:
        """One fit per setting."""
        rows = table.split(fold)[0]
        for setting in settings:
            began = time.monotonic()
            model: Any = self.estimator(dataset, table, rows, setting)
            yield setting, model.fit(rows), time.monotonic() - began

    @abc.abstractmethod
    def estimator(
        self, dataset: str, table: RealTable, rows: TableRows, setting: Setting
    ) -> DensityEstimator:
        """The estimator; a private method uses only the table's declarations."""


@final
@dataclasses.dataclass(frozen=True)
class Ours(OneByOne):
    """A private estimator of this library; everything computed from the rows is charged.

    Attributes:
        make: From epsilon, delta and bounds to an unfitted estimator.
        settings_of_estimator: What is not left to its defaults.
        settings_for: The same, where something public is known about a data set.
    """

    make: Callable[..., DensityEstimator] = DPDensity
    settings_of_estimator: tuple[tuple[str, Any], ...] = ()
    settings_for: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def estimator(
        self, dataset: str, table: RealTable, rows: TableRows, setting: Setting
    ) -> DensityEstimator:
        """Built from public declarations alone."""
        bounds = (table.low, table.high)
        given = dict(self.settings_of_estimator) | dict(self.settings_for.get(dataset, {}))
        given = {"allow_large_delta": True} | given
        return self.make(setting.epsilon, table.delta, bounds=bounds, **given)


@final
@dataclasses.dataclass(frozen=True)
class WithoutPrivacy(OneByOne):
    """The same estimator with an unlimited budget. NOT PRIVATE."""

    is_private = False
    make: Callable[..., DensityEstimator] = DPFlow
    settings_of_estimator: tuple[tuple[str, Any], ...] = ()
    as_many_components: bool = False

    def settings(self, dataset: str, epsilons: Sequence[float]) -> list[Setting]:
        """One, whatever the budgets."""
        return [Setting("none", math.inf)]

    def estimator(
        self, dataset: str, table: RealTable, rows: TableRows, setting: Setting
    ) -> DensityEstimator:
        """With an infinite epsilon."""
        given = dict(self.settings_of_estimator)
        if self.as_many_components:
            given["components"] = COMPONENTS[dataset]
        return self.make(math.inf, table.delta, bounds=(table.low, table.high), **given)


@final
class PaperRecipe(Method):
    """DP-NF with the released code's settings: one run serves all budgets.

    The learning rate is constant and the noise fixed, so a shorter run is the beginning of a longer
    one; each budget's model is the best on the test rows up to the end by its accountant, as in the
    released code. Life Science stays in the unit ball, in whose units the paper prints; other
    columns are standardised.
    """

    accountants = ("gdp-clt", "ma")

    def settings(self, dataset: str, epsilons: Sequence[float]) -> list[Setting]:
        """Where the paper left an accountant's entry out, its run had ended before."""
        every = super().settings(dataset, epsilons)
        return [s for s in every if published(dataset, "paper-recipe", *s) is not None] or every

    def fit(
        self, dataset: str, table: RealTable, fold: int, settings: Sequence[Setting]
    ) -> Iterator[Fit]:
        """All settings from one trajectory."""
        rows, test = table.split(fold)
        for (accountant, epsilon), model, seconds in recipe_models(
            rows,
            test,
            paper_box(table, rows),
            table.delta,
            settings,
            standardised=not table.in_unit_ball,
        ):
            yield Setting(accountant, epsilon), model, seconds


@final
@dataclasses.dataclass(frozen=True)
class DPMoG(OneByOne):
    """DP-EM as released by its authors. NOT PRIVATE."""

    accountants: tuple[str, ...] = ("ma", "zcdp")
    components: int | None = None

    def estimator(
        self, dataset: str, table: RealTable, rows: TableRows, setting: Setting
    ) -> DensityEstimator:
        """In the ball that holds all rows, as the original scales them."""
        return DPGaussianMixture(
            setting.epsilon,
            table.delta,
            bounds=paper_box(table, rows),
            components=self.components or COMPONENTS[dataset],
            variant="faithful",
            composition={"ma": "moments", "zcdp": "zcdp-slip"}[setting.accountant],
            radius=1.0,
            allow_large_delta=True,
        )

    def log_density(self, model: Any, rows: TableRows) -> np.ndarray:
        """Without the background, which the original does not have."""
        normaliser = model.density_.normaliser
        volume = np.log(normaliser.scale).sum()
        return Mixture(**model.parameters_).log_prob(normaliser.apply(rows)) - volume


@final
class PublicPrior(OneByOne):
    """A flow with a prior fitted without privacy and treated as public, as in the paper."""

    def estimator(
        self, dataset: str, table: RealTable, rows: TableRows, setting: Setting
    ) -> DensityEstimator:
        """The prior sees the rows. NOT PRIVATE."""
        box = (table.low, table.high)
        prior = DPGaussianMixture(
            math.inf, table.delta, bounds=box, components=COMPONENTS[dataset]
        ).fit(rows)
        return DPFlow(setting.epsilon, table.delta, bounds=box, prior=prior, allow_large_delta=True)


def paper_box(table: RealTable, rows: TableRows) -> tuple[Vector, Vector]:
    """The cube around the ball that the paper scales rows into. NOT PRIVATE: read from the rows.

    Life Science comes in such a ball; elsewhere columns are standardised first.
    """
    if table.in_unit_ball:
        return table.low, table.high
    middle, spread = rows.mean(axis=0), rows.std(axis=0)
    reach = 1.001 * float(np.linalg.norm((rows - middle) / spread, axis=1).max())
    return middle - reach * spread, middle + reach * spread


# Two columns without spikes, a few deviations wide: moments say all that curves would, and
# knots belong where the rows are. Chosen on rows of these sets.
def _smooth_plane(width: int, knots: int, learning_rate: float, blocks: int = 3) -> dict[str, Any]:
    shape = Architecture("nsf", width, 2, blocks, knots=knots, transformer="spline", interval=2.5)
    return {
        "normalisation": "moments",
        "architecture": shape,
        "learning_rate": learning_rate,
    }


METHODS: dict[str, Method] = {
    "ours": Ours(),
    "ours-flow": Ours(
        DPFlow,
        settings_for={
            "half-moons": _smooth_plane(32, 8, 5e-3),
            # many narrow blocks are better here than few wide ones, and runs differ less
            "gaussians": _smooth_plane(16, 8, 4e-3, blocks=8) | {"clipping": "automatic"},
            "pinwheel": _smooth_plane(48, 10, 4e-3),
        },
    ),
    "ours-mixture": Ours(DPGaussianMixture),
    "ours-gaussian": Ours(DPGaussian),
    "paper-recipe": PaperRecipe(),
    "private-prior": Ours(DPFlow, settings_of_estimator=(("prior", "mixture"),)),
    "public-prior": PublicPrior(),
    "dp-mog": DPMoG(),
    "dp-mog-10": DPMoG(accountants=("ma",), components=10),
    "flow-without-privacy": WithoutPrivacy(),
    "mixture-without-privacy": WithoutPrivacy(DPGaussianMixture, as_many_components=True),
}

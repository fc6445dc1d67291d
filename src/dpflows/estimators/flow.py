"""DP-NF: a normalizing flow fitted under differential privacy."""

import dataclasses
import os
from pathlib import Path
from typing import Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.persistence import fill
from dpflows.estimators.tables import Columns, read_bounds, read_rows
from dpflows.flows.architectures import Architecture
from dpflows.flows.base import uniform_box
from dpflows.flows.density import Defended, Density, Normaliser
from dpflows.privacy.events import NEIGHBOURS, Neighbours, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.fitting import fit_model
from dpflows.training.loop import Callbacks
from dpflows.training.normalising import from_bounds
from dpflows.training.plan import Plan, Settings, make_plan
from dpflows.training.taps import take_apart

NON_PRIVATE_STAMP = "NOT PRIVATE: fitted without privacy (epsilon is infinite)"


@final
class DPFlow(DensityEstimator):
    """A differentially private normalizing flow.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        bounds: Public ``(low, high)`` of the columns, numbers or one per column. Rows
            beyond them are moved to the nearest bound.
        neighbours: Which change of one person's data is hidden.
        architecture: A family by name, an ``Architecture``, or ``None`` for the rule.
        accountant: Who prices the run.
        sampling: ``poisson`` or ``uniform``.
        batch_size: Expected rows per step.
        steps: Number of steps.
        noise_multiplier: Noise per step in units of the clipping norm; without
            ``steps`` the run lasts as long as the budget does.
        learning_rate: Step size of the optimizer.
        optimizer: ``adam`` or ``sgd``.
        schedule: ``cosine`` or ``constant`` learning rate.
        averaging: Decay of an average of the parameters to release, or ``None``.
        clipping: ``fixed`` or ``automatic``.
        clipping_norm: The most a row's gradient may weigh.
        insecure_test_seed: Makes everything reproducible and NOT PRIVATE; for tests.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> flow = DPFlow(epsilon=1.0, delta=1e-4, bounds=(-4, 4), steps=3).fit(rows)
        >>> flow.sample(5).shape, flow.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        neighbours: str = "zero-out",
        architecture: str | Architecture | None = None,
        accountant: str = "pld",
        sampling: str = "poisson",
        batch_size: int | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        learning_rate: float | None = None,
        optimizer: str = "adam",
        schedule: str = "cosine",
        averaging: float | None = None,
        clipping: str = "fixed",
        clipping_norm: float = 1.0,
        insecure_test_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.neighbours = neighbours
        self.architecture = architecture
        self.accountant = accountant
        self.sampling = sampling
        self.batch_size = batch_size
        self.steps = steps
        self.noise_multiplier = noise_multiplier
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.schedule = schedule
        self.averaging = averaging
        self.clipping = clipping
        self.clipping_norm = clipping_norm
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int) -> Plan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        settings = Settings(
            architecture=self._architecture(),
            sampling=self.sampling,
            batch_size=self.batch_size,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            schedule=self.schedule,
            averaging=self.averaging,
            clipping=self.clipping,
            clipping_norm=self.clipping_norm,
            accountant=self.accountant,
        )
        return make_plan(self._budget(), rows=rows, columns=columns, settings=settings)

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        callbacks: Callbacks | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> "DPFlow":
        """Fit the flow to the rows of ``X`` within the budget.

        Args:
            X: A numeric table without missing values.
            y: Ignored.
            callbacks: Progress and stop hooks.
            checkpoint: A file that keeps the run while it lasts; a run that was
                interrupted goes on from it, at no further cost.
        """
        rows, columns = read_rows(X)
        low, high = read_bounds(self.bounds, columns.count)
        plan = self.plan(len(rows), columns.count)
        entropy = self._entropy()
        checkpoints = None if checkpoint is None else Checkpoints(Path(checkpoint), plan)
        normaliser = from_bounds(low, high)
        model = fit_model(
            fresh_model(plan.architecture, normaliser, low, high, entropy.key("initialisation")),
            normaliser.apply(np.clip(rows, low, high)),
            plan,
            entropy=entropy,
            callbacks=callbacks,
            checkpoints=checkpoints,
            known_to_taps=True,
        )
        density = Density(normaliser, model, low, high)
        mass_key = jax.random.wrap_key_data(jnp.asarray(entropy.key("sampling", step=1)))
        self.density_ = density.with_inside_mass(mass_key)
        self.plan_ = plan
        self.guarantee_ = plan.guarantee(stamps=self._stamps())
        self.columns_ = columns
        self.n_features_in_ = columns.count
        if checkpoints is not None:
            checkpoints.remove()
        return self

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Released parameters, public settings and the guarantee."""
        check_is_fitted(self, "density_")
        density = self.density_
        header = {
            "columns": dataclasses.asdict(self.columns_),
            "log_inside": density.log_inside,
            "background_weight": density.model.weight,
            "plan": self.plan_.to_dict(),
            "guarantee": self.guarantee_.to_dict(),
        }
        low, high = read_bounds((density.low, density.high), density.dim)
        frame = {
            "low": low,
            "high": high,
            "shift": density.normaliser.shift,
            "scale": density.normaliser.scale,
        }
        return header, frame | parameter_arrays(density.model)

    @classmethod
    def from_file(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "DPFlow":
        """Rebuild the flow and put the released parameters into it."""
        guarantee = Guarantee.from_dict(header["guarantee"])
        columns = Columns.from_dict(header["columns"])
        if arrays["low"].shape != (columns.count,):
            raise InputError("the bounds in the file do not fit its columns")
        low, high = read_bounds((arrays["low"], arrays["high"]), columns.count)
        normaliser = Normaliser(arrays["shift"], arrays["scale"])
        budget = Budget(guarantee.epsilon, guarantee.delta, guarantee.neighbours)
        plan = Plan.from_dict(header["plan"], budget)
        require_room(plan.architecture, arrays)
        template = fresh_model(plan.architecture, normaliser, low, high, np.zeros(2, np.uint32))
        model = with_parameters(template, arrays)
        weighted = Defended(model.flow, model.background, float(header["background_weight"]))
        estimator = cls(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            bounds=(low, high),
            neighbours=guarantee.neighbours,
            architecture=plan.architecture,
            accountant=guarantee.accountant,
        )
        estimator.plan_ = plan
        estimator.density_ = Density(normaliser, weighted, low, high, float(header["log_inside"]))
        estimator.guarantee_ = guarantee
        estimator.columns_ = columns
        estimator.n_features_in_ = columns.count
        return estimator

    def _budget(self) -> Budget:
        check_choice("neighbours", self.neighbours, NEIGHBOURS)
        return Budget(self.epsilon, self.delta, cast(Neighbours, self.neighbours))

    def _architecture(self) -> Architecture | None:
        chosen = self.architecture
        if chosen is None or isinstance(chosen, Architecture):
            return chosen
        if not isinstance(chosen, str):
            raise InputError("architecture must be a name, an Architecture or None")
        return Architecture(chosen)

    def _stamps(self) -> list[str]:
        stamps = [self._entropy().stamp, "" if self._budget().is_private else NON_PRIVATE_STAMP]
        return [stamp for stamp in stamps if stamp]


def fresh_model(
    architecture: Architecture,
    normaliser: Normaliser,
    low: np.ndarray,
    high: np.ndarray,
    key_words: np.ndarray,
) -> Defended:
    """An untrained flow over a box, defended by the uniform background on that box."""
    key = jax.random.wrap_key_data(jnp.asarray(key_words))
    flow = architecture.build(len(low), key=key)
    corners = (normaliser.apply(corner[None])[0] for corner in (low, high))
    return Defended(flow, uniform_box(*(corner.tolist() for corner in corners)))


def require_room(architecture: Architecture, arrays: dict[str, np.ndarray]) -> None:
    """Refuse a file that names a flow far larger than what it holds, before building it."""
    # Masks count in the size but are not stored: at most one for each number that is.
    if architecture.size(len(arrays["low"])) > 2 * sum(a.size for a in arrays.values()) + 1000:
        raise InputError("the file's parameters do not fit its architecture")


def parameter_arrays(model: Defended) -> dict[str, np.ndarray]:
    """A model's trained arrays by name; weights that a mask hides are zero."""
    parameters, blueprint = take_apart(model)
    dense = tuple(
        layer._replace(weight=layer.weight if mask is None else jnp.where(mask, layer.weight, 0))
        for layer, mask in zip(parameters.dense, blueprint.masks, strict=True)
    )
    leaves = jax.tree.leaves(parameters._replace(dense=dense))
    return {f"parameter-{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def with_parameters(template: Defended, arrays: dict[str, np.ndarray]) -> Defended:
    """The template with the arrays that ``parameter_arrays`` gave."""
    parameters, blueprint = take_apart(template)
    values = fill(parameter_arrays(template), arrays)
    leaves = [jnp.asarray(value) for value in values]
    return blueprint.assemble(jax.tree.unflatten(jax.tree.structure(parameters), leaves))

"""What estimators share that train a model by noisy gradients."""

import dataclasses
from typing import Any

from dpflows.estimators.base import DensityEstimator
from dpflows.pipeline.training import Settings
from dpflows.training.optimizers import Descent


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class TrainedEstimator(DensityEstimator):
    """A density whose model is trained on batches of rows.

    Args:
        sampling: ``poisson`` or ``uniform`` batches.
        batch_size: Expected rows per step.
        steps: Number of steps.
        noise_multiplier: Noise per step in units of the clipping norm; without
            ``steps`` the run lasts as long as the budget does.
        learning_rate: Step size of ``adam`` and ``sgd``; ``natural`` finds its own.
        optimizer: ``natural``, ``adam`` or ``sgd``, or a ``NaturalGradient`` or ``Optimizer``;
            ``auto`` follows a public rule.
        schedule: ``cosine`` or ``constant`` learning rate.
        averaging: Decay of an average of the parameters to release, or ``None``; not for
            ``natural``, whose progress checks choose between the last parameters and an average.
        clipping: ``fixed`` or ``automatic``.
        clipping_norm: The largest norm of a row's gradient.
    """

    sampling: str = "poisson"
    batch_size: int | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    learning_rate: float | None = None
    optimizer: str | Descent = "auto"
    schedule: str = "cosine"
    averaging: float | None = None
    clipping: str = "fixed"
    clipping_norm: float = 1.0

    def _settings(self, **fixed: Any) -> Settings:
        """What the caller fixed about training, with some of it fixed otherwise."""
        names = [field.name for field in dataclasses.fields(Settings)]
        given = {name: getattr(self, name) for name in names if name not in fixed}
        return Settings(**given | fixed)

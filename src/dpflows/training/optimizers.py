"""Optimizers: the update from a noisy gradient, which is post-processing and costs no privacy."""

from dataclasses import dataclass
from typing import Any

import optax

from dpflows.errors import InputError


@dataclass(frozen=True)
class Optimizer:
    """DP-SGD or DP-Adam with a public schedule.

    ``averaging`` is the decay of an exponential average of the parameters, released
    in their place; ``None`` releases the last ones.

    Example:
        >>> Optimizer(name="sgd", learning_rate=0.1).transformation(steps=10) is not None
        True
    """

    name: str = "adam"
    learning_rate: float = 5e-3
    schedule: str = "cosine"
    averaging: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ("adam", "sgd"):
            raise InputError(f"optimizer must be 'adam' or 'sgd', got {self.name!r}")
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"schedule must be 'cosine' or 'constant', got {self.schedule!r}")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.averaging is not None and not 0 <= self.averaging < 1:
            raise InputError(f"averaging must be in [0, 1) or None, got {self.averaging}")

    def transformation(self, *, steps: int) -> optax.GradientTransformation:
        """The Optax update rule for a run of ``steps`` steps."""
        rate: float | optax.Schedule = self.learning_rate
        if self.schedule == "cosine":
            rate = optax.cosine_decay_schedule(self.learning_rate, max(steps, 1))
        if self.name == "adam":
            return optax.adam(rate, b1=0.9, b2=0.999)
        return optax.sgd(rate)


#: Steps that were not as predicted raise the damping to at most so many times what noise asks for.
_MOST_RAISED = 16.0
#: How the Fisher information is approximated.
METRICS = ("block", "kronecker", "full", "diagonal", "identity")


@dataclass(frozen=True)
class NaturalGradient:
    r"""Natural-gradient steps from noisy whitened gradients. All of it is post-processing.

    A step is a fraction of the gradient, the gain; a smaller fraction in damped directions, where
    noise moves the weights far. Progress checks (``progress_checks``) shorten steps that are
    dominated by noise. In the last part of the run gains decrease like those of an averaging Kalman
    filter, :math:`1 / (1 / k + t)`.

    Attributes:
        clip: The clipping norm in units of the root of the effective number of parameters, which is
        the length of a typical whitened gradient.
        damping: Added to second moments, in units of the noise variance that a step would have if
            all of the budget were spent on it. Directions whose signal would be lost in the noise
            are thereby left unchanged.
        least_damping: The smallest damping.
        samples: How many samples of the model the metric is computed from.
        gain: The fraction of a gradient that a step takes, unless a check shortens it.
        annealing: The fraction of the steps after which gains decrease.
        trust: The longest step, as a length in the metric.
        checks: Number of progress checks, which are charged to the budget. With none, steps are
        never shortened.
        metric: ``block``: exact for each small network, Kronecker factors for large layers. For
            comparison ``kronecker`` for all layers, ``full`` for one exact block of all weights,
            ``diagonal``, which ignores correlations, or ``identity``, which weights all parameters
            equally.

    Example:
        >>> NaturalGradient().name
        'natural'
    """

    clip: float = 0.5
    damping: float = 700.0
    least_damping: float = 0.015
    samples: int = 2048
    gain: float = 0.3
    annealing: float = 0.8
    trust: float = 1.5
    checks: int = 10
    metric: str = "block"
    name: str = "natural"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")
        for field in ("clip", "damping", "least_damping", "samples", "gain", "trust"):
            if not getattr(self, field) > 0:
                raise InputError(f"{field} must be positive, got {getattr(self, field)}")
        if self.checks < 0:
            raise InputError(f"checks must not be negative, got {self.checks}")

    def damping_for(self, noise: float, steps: int) -> float:
        """The damping for a run of ``steps`` steps, each with noise of this variance.

        Example:
            >>> NaturalGradient(damping=500.0).damping_for(0.01, 100)
            0.05
        """
        return max(self.least_damping, self.damping * noise / steps)

    def damping_after(self, damping: float, wanted: float, *, is_linear: bool) -> float:
        """The damping of the next step (Levenberg-Marquardt).

        Args:
            damping: Of this step.
            wanted: The damping that suits the noise.
            is_linear: Whether this step's divergence was as its length predicted.

        Example:
            >>> NaturalGradient().damping_after(0.1, 0.02, is_linear=False)
            0.2
        """
        next_one = damping / 2 if is_linear else damping * 2
        return min(max(wanted, next_one), _MOST_RAISED * wanted)

    def gain_at(self, gain_factor: float, step: int, steps: int) -> float:
        """The gain of a step.

        Args:
            gain_factor: The remaining factor on the gain after progress checks.
            step: Which step this is, from zero.
            steps: How many there are.

        Example:
            >>> NaturalGradient(gain=0.5, annealing=0.8).gain_at(1.0, 9, 10)
            0.3333333333333333
        """
        late = max(step - self.annealing * steps, 0.0)
        return 1 / (1 / (self.gain * gain_factor) + late)

    @staticmethod
    def hidden_gain(damping: float) -> float:
        """The fraction of the gain that is used in damped directions.

        Example:
            >>> NaturalGradient.hidden_gain(1.0)
            0.5
        """
        return 1 / (1 + damping)


#: What may be done with a noisy gradient.
Descent = Optimizer | NaturalGradient
#: The names of all of them.
OPTIMIZERS = ("adam", "sgd", "natural")


def name_of(optimizer: str | Descent) -> str:
    """The name of an optimizer, given by name or as an object."""
    return optimizer if isinstance(optimizer, str) else optimizer.name


def optimizer_from(description: dict[str, Any]) -> Descent:
    """Read back the result of ``dataclasses.asdict``.

    Example:
        >>> optimizer_from({"name": "natural"}) == NaturalGradient()
        True
    """
    is_natural = description.get("name") == NaturalGradient.name
    return (NaturalGradient if is_natural else Optimizer)(**description)

"""What is done with a noisy gradient: post-processing, so it costs no privacy."""

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


#: How the Fisher information is approximated.
METRICS = ("kronecker", "diagonal", "identity")


@dataclass(frozen=True)
class NaturalGradient:
    r"""How a noisy whitened gradient becomes a step. All of it is post-processing.

    The whitened gradient is taken for a state that a Kalman filter follows: directions have
    variance :math:`v` at first, gain ``drift`` over all steps until ``annealing``, and are seen
    through noise and sampling; the gain follows from both.

    Attributes:
        clip: The clipping norm in units of the root of the effective number of parameters, which
            is what a typical whitened gradient measures.
        damping: Added to each second moment before its root is taken. Directions in which the
            density hardly changes are thereby left alone.
        samples: How many samples of the model the metric is computed from.
        variance: Of the whitened gradient in each direction, before the first step.
        drift: What the variance would gain over all steps, in units of the first, because the
            target moves as the metric does.
        annealing: The part of the steps after which nothing is gained.
        most_gain: The largest gain.
        trust: The longest step, as a length in the metric.
        averaging: Decay of an average of the parameters to release, or ``None``.
        metric: ``kronecker``; for comparison ``diagonal``, which leaves out what is correlated, or
            ``identity``, which weighs all parameters alike.

    Example:
        >>> NaturalGradient().name
        'natural'
    """

    clip: float = 0.5
    damping: float = 0.1
    samples: int = 2048
    variance: float = 5e-3
    drift: float = 2.4
    annealing: float = 0.6
    most_gain: float = 0.6
    trust: float = 1.5
    averaging: float | None = None
    metric: str = "kronecker"
    name: str = "natural"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")
        for field in ("clip", "damping", "samples", "variance", "most_gain", "trust"):
            if not getattr(self, field) > 0:
                raise InputError(f"{field} must be positive, got {getattr(self, field)}")
        if self.averaging is not None and not 0 <= self.averaging < 1:
            raise InputError(f"averaging must be in [0, 1) or None, got {self.averaging}")

    def gain(self, variance: float, noise: float) -> float:
        """The gain for a gradient of this variance that is seen through this noise.

        Example:
            >>> NaturalGradient().gain(1.0, 1.0)
            0.5
        """
        return min(self.most_gain, variance / (variance + noise))

    def variance_after(self, variance: float, gain: float, step: int, steps: int) -> float:
        """The variance that a step leaves.

        Args:
            variance: Of each direction before the step.
            gain: The part of the gradient by which the parameters moved.
            step: Which step this is, from zero.
            steps: How many there are.

        Example:
            >>> NaturalGradient(drift=0.0).variance_after(1.0, 0.5, 0, 10)
            0.5
        """
        gained = self.drift * self.variance / steps if step < self.annealing * steps else 0.0
        return variance * (1 - gain) + gained


#: What may be done with a noisy gradient.
Descent = Optimizer | NaturalGradient
#: The names of all of them.
OPTIMIZERS = ("adam", "sgd", "natural")


def name_of(optimizer: str | Descent) -> str:
    """The name of an optimizer that is given by name or as it is."""
    return optimizer if isinstance(optimizer, str) else optimizer.name


def optimizer_from(description: dict[str, Any]) -> Descent:
    """Read back what ``dataclasses.asdict`` gave.

    Example:
        >>> optimizer_from({"name": "natural"}) == NaturalGradient()
        True
    """
    is_natural = description.get("name") == NaturalGradient.name
    return (NaturalGradient if is_natural else Optimizer)(**description)

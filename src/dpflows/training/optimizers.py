"""What is done with a noisy gradient: post-processing, so it costs no privacy."""

from dataclasses import dataclass

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

"""A frame for every column, found by closing in from the declared bounds."""

import dataclasses
import math
from typing import final

import numpy as np
from jaxtyping import Float

from dpflows.flows.normalisers import Scaling
from dpflows.pipeline.plan import FAINT
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import Moments, clipped_moments, moments_sensitivity
from dpflows.privacy.randomness import Entropy

#: Enough to come from bounds a thousand times too wide to the data.
ROUNDS = 6
#: The part of the squared Gaussian budget that all rounds may spend.
SHARE = 0.15
_REACH = 4.0

Rows = Float[np.ndarray, "rows columns"]
Vector = Float[np.ndarray, " columns"]


@final
@dataclasses.dataclass(frozen=True)
class Frames:
    """Location and spread of every column, in rounds that each clip to what the last showed.

    The noise is proportional to the frame, so a round leaves about four times the root of
    noise over rows of the frame it was given.

    Attributes:
        columns: Number of columns.
        noise: On each sum of each round, in rows.

    Guarantee:
        ``find`` releases exactly ``events``; they are known before a row is read.

    Example:
        >>> rows = np.random.default_rng().normal(0.5, 0.1, size=(5000, 1))
        >>> frames = Frames.planned(Budget(1.0, 1e-5), columns=1)
        >>> box = (np.full(1, -100.0), np.full(1, 100.0))
        >>> bool(abs(frames.find(rows, *box, entropy=Entropy.from_os()).shift[0] - 0.5) < 1)
        True
    """

    columns: int
    noise: float

    @classmethod
    def planned(cls, budget: Budget, *, columns: int) -> "Frames":
        """The noise that its share of the budget allows."""
        unit = moments_sensitivity(columns)
        whole = calibrate_noise(
            budget, lambda noise: [GaussianEvent(noise=noise, sensitivity=unit)], accountant="gdp"
        )
        return cls(columns, max(whole * math.sqrt(ROUNDS / SHARE), FAINT))

    @property
    def events(self) -> tuple[Event, ...]:
        """One release per round."""
        unit = moments_sensitivity(self.columns)
        return tuple(
            GaussianEvent(noise=self.noise, sensitivity=unit, purpose=_purpose(i))
            for i in range(ROUNDS)
        )

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """Close in, round by round."""
        left, right = low, high
        for i in range(ROUNDS):
            moments = clipped_moments(
                rows, left, right, noise=self.noise, entropy=entropy, purpose=_purpose(i)
            ).value
            spread = self._cautious(moments, left, right)
            left = np.maximum(low, moments.mean - _REACH * spread)
            right = np.minimum(high, moments.mean + _REACH * spread)
        return Scaling(moments.mean, np.maximum(moments.deviation, spread / _REACH))

    def _cautious(self, moments: Moments, left: Vector, right: Vector) -> Vector:
        """The deviation, and no less than the noise could hide."""
        half, doubt = (right - left) / 2, self.noise / moments.count
        return np.maximum(np.sqrt(moments.deviation**2 + doubt * half**2), 1e-9 * half)


def _purpose(index: int) -> str:
    return f"frame {index + 1}"

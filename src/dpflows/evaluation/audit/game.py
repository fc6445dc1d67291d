"""The game of the coins: which canaries are in, and how many coins the scores reveal."""

import dataclasses
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float

from dpflows.errors import InputError
from dpflows.evaluation.audit.bounds import lower_bound, planned_guesses
from dpflows.evaluation.audit.findings import Finding
from dpflows.privacy.guarantee import Guarantee
from dpflows.privacy.randomness import Entropy


@final
@dataclasses.dataclass(frozen=True)
class Game:
    """How an audit in one run is played; all of it is fixed before a coin is thrown.

    Args:
        canaries: Coins to throw.
        confidence: Of the bound.
        guesses: Coins to guess, half of them as included; ``None`` plans the number.

    Example:
        >>> Game(canaries=100, guesses=20).rules(1.0, 1e-5).guesses
        20
    """

    canaries: int
    confidence: float = 0.95
    guesses: int | None = None

    def __post_init__(self) -> None:
        if self.canaries < 2:
            raise InputError(f"canaries must be at least 2, got {self.canaries}")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence must be in (0, 1), got {self.confidence}")
        if self.guesses is not None and not 2 <= self.guesses <= self.canaries:
            raise InputError(
                f"guesses must lie between 2 and the {self.canaries} canaries, got {self.guesses}"
            )

    def rules(self, epsilon: float, delta: float) -> "Game":
        """The game with its number of guesses settled by public numbers."""
        if self.guesses is not None:
            return self
        planned = planned_guesses(
            self.canaries, epsilon=epsilon, delta=delta, confidence=self.confidence
        )
        return dataclasses.replace(self, guesses=planned)

    def coins(self, entropy: Entropy) -> Bool[np.ndarray, " canaries"]:
        """Who is in: one fair coin per canary."""
        return entropy.uniforms("sampling", step=0, count=self.canaries) < 0.5

    def correct(
        self, scores: Float[np.ndarray, " canaries"], coins: Bool[np.ndarray, " canaries"]
    ) -> int:
        """Right guesses if the highest scores are taken for members, the lowest for strangers."""
        order = np.argsort(scores, kind="stable")
        members = (self.guesses or 0) // 2
        strangers = (self.guesses or 0) - members
        right_members = coins[order[len(order) - members :]].sum()
        return int(right_members + (~coins[order[:strangers]]).sum())

    def finding(
        self, way: str, claim: Guarantee, correct: int, details: dict[str, Any], *, internal: bool
    ) -> Finding:
        """What so many right guesses prove, beside the claim."""
        return Finding(
            way=way,
            claimed=claim.epsilon,
            delta=claim.delta,
            bound=self._bound(correct, claim.delta),
            confidence=self.confidence,
            largest=self._bound(self.guesses or 0, claim.delta),
            trials=self.canaries,
            details={"guesses": self.guesses, "correct": correct} | details,
            internal=internal,
        )

    def _bound(self, correct: int, delta: float) -> float:
        return lower_bound(
            correct,
            guesses=self.guesses or 0,
            canaries=self.canaries,
            delta=delta,
            confidence=self.confidence,
        )

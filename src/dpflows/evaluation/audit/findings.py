"""What an audit found, beside what was claimed and what could have been found."""

import dataclasses
from typing import Any, final

#: What a reader must know before quoting the figure.
MEANING = (
    "A bound above the claim refutes the claim, up to the stated confidence. A bound below it "
    "proves nothing: a better attack may exist, and only the code that was run was attacked."
)
INTERNAL_STAMP = (
    "INTERNAL: this audit read the given table, and no guarantee covers what it found. Keep it "
    "where the rows are kept."
)


@final
@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of an audit.

    Attributes:
        way: What was attacked: ``gradients``, ``rows`` or ``step``.
        claimed: The epsilon that the accountant states for the attacked run.
        delta: At this delta; so is every epsilon here.
        bound: The empirical lower bound on epsilon.
        confidence: The chance that a correct program's bound stays below the truth.
        largest: The bound that a perfect attack of this size would have given.
        trials: Canaries, or repetitions of a step.
        details: Public settings and counts, ready for JSON.
        internal: Whether a given table was read.

    Guarantee:
        None. A finding can refute a promise and can never make one.

    Example:
        >>> found = Finding("step", 1.0, 1e-5, 1.4, 0.95, 9.0, 1000)
        >>> found.is_flagged, found.to_dict()["flagged"]
        (True, True)
    """

    way: str
    claimed: float
    delta: float
    bound: float
    confidence: float
    largest: float
    trials: int
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    internal: bool = False

    @property
    def is_flagged(self) -> bool:
        """Whether the claim is refuted."""
        return self.bound > self.claimed

    @property
    def verdict(self) -> str:
        """One line: refuted, or not refuted; never confirmed."""
        if self.is_flagged:
            return "FLAGGED: the claim is refuted; do not release anything made by this code"
        if self.largest <= self.claimed:
            return "not refuted, and too small an audit to refute this claim: use more canaries"
        return "not refuted"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description with its verdict and meaning."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return facts | {"flagged": self.is_flagged, "verdict": self.verdict, "meaning": MEANING}

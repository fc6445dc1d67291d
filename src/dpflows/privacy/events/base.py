"""What every event has: a purpose, a count and a description."""

import dataclasses
from typing import Any, ClassVar

from dpflows.privacy.events.checks import check_at_least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One release, or ``count`` identical ones made one after the other."""

    kind: ClassVar[str]
    purpose: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        check_at_least("count", self.count, 1)

    @property
    def distance(self) -> float:
        """How far what the program draws may be from what is accounted, in total variation."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``event_from_dict`` reads it back."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

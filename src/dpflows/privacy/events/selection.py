"""The best of a random number of runs."""

import dataclasses
import math
from typing import Any, ClassVar

from dpflows.errors import InputError
from dpflows.privacy.events.base import Event
from dpflows.privacy.events.checks import check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionEvent(Event):
    """The best of a random number of runs, each of which makes the events in ``run``.

    The number of runs has mean ``mean`` and a truncated negative binomial law of the
    given ``shape`` (1 geometric, 0 logarithmic); ``None`` stands for a Poisson law.
    Only the selected run is revealed. Where runs differ, each makes the events of one of
    ``candidates`` besides, drawn without looking at the rows; the dearest one is priced.
    """

    kind: ClassVar[str] = "selection"
    run: tuple[Event, ...]
    mean: float
    shape: float | None = None
    candidates: tuple[tuple[Event, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("mean", self.mean)
        if self.shape is not None and not (math.isfinite(self.shape) and self.shape >= 0):
            raise InputError(f"shape must be None or not negative, got {self.shape}")

    @property
    def distance(self) -> float:
        """At most that of all runs that are made, on average over their number."""
        fits = [sum(event.distance for event in events) for events in self.candidates or ((),)]
        run = sum(event.distance for event in self.run) + max(fits)
        return self.count * self.mean * run

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description with the events of one run inside."""
        described = {**super().to_dict(), "run": [event.to_dict() for event in self.run]}
        options = [[event.to_dict() for event in events] for events in self.candidates]
        return described | {"candidates": options}

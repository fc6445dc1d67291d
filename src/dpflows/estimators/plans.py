"""What an estimator that releases its statistics directly will do, before it reads a row."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

from dpflows.errors import InputError
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, check_at_least, event_from_dict
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.spending import Spending

#: The noise of an unlimited budget, in rows: nothing that could be seen.
FAINT = 1e-3


@final
@dataclasses.dataclass(frozen=True)
class ReleasePlan(Spending):
    """The releases an estimator will make, and the public choices behind them.

    Attributes:
        budget: What may be spent.
        accountant: Who prices the releases.
        rows: Public number of rows.
        columns: Number of columns.
        releases: Every release, in order; none where no privacy is asked for.
        details: Public choices by name, ready for JSON.
        seconds: About how long the fit takes on two cores.
        megabytes: About how much memory the fit needs beyond the rows.

    Guarantee:
        ``releases`` is all that is computed from the rows.

    Example:
        >>> plan = ReleasePlan(Budget(1.0, 1e-5), "pld", 100, 2, (), {"bins": 8}, 1.0, 1.0)
        >>> ReleasePlan.from_dict(plan.to_dict(), plan.budget) == plan
        True
    """

    budget: Budget
    accountant: str
    rows: int
    columns: int
    releases: tuple[Event, ...]
    details: dict[str, Any]
    seconds: float
    megabytes: float

    def __post_init__(self) -> None:
        check_at_least("columns", self.columns, 1)
        if self.rows < 2:
            raise InputError(
                f"rows must be at least 2, got {self.rows}; nobody can hide in a table of one"
            )

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release, in order."""
        return self.releases

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        names = ("accountant", "rows", "columns", "seconds", "megabytes")
        return {name: getattr(self, name) for name in names} | {
            "releases": [event.to_dict() for event in self.releases],
            "details": dict(self.details),
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any], budget: Budget) -> "ReleasePlan":
        """Read back what ``to_dict`` wrote."""
        return cls(
            budget=budget,
            accountant=str(description["accountant"]),
            rows=int(description["rows"]),
            columns=int(description["columns"]),
            releases=tuple(event_from_dict(event) for event in description["releases"]),
            details=dict(description["details"]),
            seconds=float(description["seconds"]),
            megabytes=float(description["megabytes"]),
        )


def affordable_noise(
    budget: Budget,
    event_for: Callable[[float], Event],
    *,
    before: Sequence[Event],
    accountant: str,
) -> tuple[float, tuple[Event, ...]]:
    """The noise of a last release within the budget, and all releases with it.

    Args:
        budget: The total.
        event_for: The last release with a given noise.
        before: What is spent before it.
        accountant: Who prices them.

    Guarantee:
        All releases together cost at most the budget. Without privacy there is nothing to
        charge, and the noise is too faint to be seen.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> unit = Sensitivity.of_sum(1.0)
        >>> noise, releases = affordable_noise(
        ...     Budget(1.0, 1e-5),
        ...     lambda noise: GaussianEvent(noise=noise, sensitivity=unit),
        ...     before=(),
        ...     accountant="pld",
        ... )
        >>> round(noise, 2), len(releases)
        (3.73, 1)
    """
    if not budget.is_private:
        return FAINT, ()
    noise = calibrate_noise(
        budget, lambda level: [*before, event_for(level)], accountant=accountant
    )
    return noise, (*before, event_for(noise))

"""The plan: everything a private run will do, fixed before a row is read.

Guarantee:
    A plan is computed from public numbers alone: the budget, the number of rows and
    columns, and the caller's settings. Nothing else chooses a noise multiplier, and
    ``Plan.events`` is exactly what running the plan releases.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from dpflows.errors import InputError
from dpflows.flows.architectures import Architecture
from dpflows.flows.cells import NAME, CellShape
from dpflows.privacy.accounting import calibrate_noise, calibrate_steps
from dpflows.privacy.events import Event, check_positive, event_from_dict
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.spending import Spending
from dpflows.training.batches import Batches, make_batches
from dpflows.training.checks import Checks, plan_checks
from dpflows.training.clipping import Clipping
from dpflows.training.defaults import (
    Defaults,
    Shape,
    expected_megabytes,
    expected_seconds,
    natural_megabytes,
    natural_samples,
    natural_seconds,
    rule_for,
)
from dpflows.training.optimizers import (
    Descent,
    NaturalGradient,
    Optimizer,
    name_of,
    optimizer_from,
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the caller fixed; ``None`` leaves a choice to the public rule.

    Giving ``noise_multiplier`` without ``steps`` runs as long as the budget lasts, as
    in the paper; giving ``steps`` alone buys the least noise that keeps the budget.

    Example:
        >>> Settings(steps=100).steps
        100
    """

    architecture: Shape | None = None
    sampling: str = "poisson"
    batch_size: int | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    learning_rate: float | None = None
    optimizer: str | Descent = "adam"
    schedule: str = "cosine"
    averaging: float | None = None
    clipping_norm: float = 1.0
    clipping: str = "fixed"
    accountant: str = "pld"


@dataclasses.dataclass(frozen=True)
class Plan(Spending):
    """What a run will do and what it will cost.

    Example:
        >>> plan = make_plan(Budget(1.0, 1e-5), rows=1000, columns=2, settings=Settings(steps=10))
        >>> plan.steps, plan.noise_multiplier > 0
        (10, True)
    """

    budget: Budget
    rows: int
    columns: int
    architecture: Shape
    batches: Batches
    steps: int
    noise_multiplier: float
    clipping: Clipping
    optimizer: Descent
    accountant: str
    before: tuple[Event, ...] = ()
    checks: Checks | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release the plan makes: what was paid before training, then training."""
        return self.events_by(self.steps)

    def events_by(self, steps: int) -> tuple[Event, ...]:
        """Every release up to the end of a step, the check after it included."""
        if not self.is_private or steps == 0:
            return self.before
        training = self.batches.event(steps=steps, noise_multiplier=self.noise_multiplier)
        return (*self.before, training, *self._checks_by(steps))

    def _checks_by(self, steps: int) -> list[Event]:
        if self.checks is None:
            return []
        made = self.checks.done_by(steps, steps=self.steps)
        return [self.checks.event(made)] if made else []

    @property
    def seconds(self) -> float:
        """About how long the run takes on two cores, compilation included."""
        if isinstance(self.optimizer, NaturalGradient) and isinstance(
            self.architecture, Architecture
        ):
            return natural_seconds(
                self.architecture,
                columns=self.columns,
                slots=self.batches.slots,
                samples=self.optimizer.samples,
                steps=self.steps,
            )
        return expected_seconds(
            self.architecture, columns=self.columns, slots=self.batches.slots, steps=self.steps
        )

    @property
    def megabytes(self) -> float:
        """About how much memory the run needs beyond the rows."""
        if isinstance(self.optimizer, NaturalGradient) and isinstance(
            self.architecture, Architecture
        ):
            return natural_megabytes(
                self.architecture, columns=self.columns, samples=self.optimizer.samples
            )
        return expected_megabytes(self.architecture, columns=self.columns, slots=self.batches.slots)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "architecture": dataclasses.asdict(self.architecture),
            "sampling": self.batches.sampling,
            "batch_size": self.batches.batch_size,
            "batch_cap": self.batches.slots,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "clipping": dataclasses.asdict(self.clipping),
            "optimizer": dataclasses.asdict(self.optimizer),
            "accountant": self.accountant,
            "before": [event.to_dict() for event in self.before],
            "checks": None if self.checks is None else self.checks.to_dict(),
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any], budget: Budget) -> "Plan":
        """Read back what ``to_dict`` wrote."""
        shape = {name: int(description[name]) for name in ("rows", "batch_size")}
        before = tuple(event_from_dict(event) for event in description["before"])
        sampling, checks = description["sampling"], description.get("checks")
        return cls(
            budget=budget,
            rows=shape["rows"],
            columns=int(description["columns"]),
            architecture=_shape(description["architecture"]),
            batches=make_batches(sampling, **shape),
            steps=int(description["steps"]),
            noise_multiplier=float(description["noise_multiplier"]),
            clipping=Clipping(**description["clipping"]),
            optimizer=optimizer_from(description["optimizer"]),
            accountant=str(description["accountant"]),
            before=before,
            checks=checks and Checks.from_dict(checks, sampling=sampling, rows=shape["rows"]),
        )


def make_plan(
    budget: Budget,
    *,
    rows: int,
    columns: int,
    settings: Settings | None = None,
    before: Sequence[Event] = (),
    train: bool = True,
) -> Plan:
    """Turn a budget and a table's shape into a frozen plan.

    Args:
        budget: What may be spent in total.
        rows: Public number of rows.
        columns: Number of columns.
        settings: What the caller fixed.
        before: What is spent before training, inside the same budget.
        train: Whether to train at all, where ``before`` may have spent everything.
    """
    _require_shape(rows, columns)
    settings = settings or Settings()
    rule = rule_for(name_of(settings.optimizer))(budget, rows=rows, columns=columns)
    batches = make_batches(
        settings.sampling, rows=rows, batch_size=_given(settings.batch_size, rule.batch_size)
    )
    optimizer = _optimizer(settings, rule, batches)
    checks = _checks(budget, settings, optimizer, rows) if train else None
    steps, noise = (
        _steps_and_noise(budget, settings, rule, batches, checks, tuple(before))
        if train
        else (0, 0.0)
    )
    return Plan(
        budget=budget,
        rows=rows,
        columns=columns,
        architecture=settings.architecture or rule.architecture,
        batches=batches,
        steps=steps,
        noise_multiplier=noise,
        clipping=Clipping(settings.clipping_norm, settings.clipping),
        optimizer=optimizer,
        accountant=settings.accountant,
        before=tuple(before),
        checks=checks and dataclasses.replace(checks, count=min(checks.count, steps)),
    )


def _checks(budget: Budget, settings: Settings, optimizer: Descent, rows: int) -> Checks | None:
    """The progress checks of an optimizer that has any."""
    count = optimizer.checks if isinstance(optimizer, NaturalGradient) else 0
    if count == 0:
        return None
    return plan_checks(budget, sampling=settings.sampling, rows=rows, count=count)


def _optimizer(settings: Settings, rule: Defaults, batches: Batches) -> Descent:
    if not isinstance(settings.optimizer, str):
        return settings.optimizer
    rate = _given(settings.learning_rate, rule.learning_rate)
    if settings.optimizer != NaturalGradient.name:
        return Optimizer(settings.optimizer, rate or 0.0, settings.schedule, settings.averaging)
    if rate is not None:
        raise InputError(
            "learning_rate must be None with optimizer='natural', which finds the size of its "
            "steps itself; choose optimizer='adam' or 'sgd' to set it"
        )
    if settings.averaging is not None:
        raise InputError(
            "averaging must be None with optimizer='natural', whose progress checks choose between "
            "the last parameters and an average; choose optimizer='adam' or 'sgd' to set it"
        )
    return NaturalGradient(samples=natural_samples(batches.batch_size))


def _steps_and_noise(
    budget: Budget,
    settings: Settings,
    rule: Defaults,
    batches: Batches,
    checks: Checks | None,
    before: tuple[Event, ...],
) -> tuple[int, float]:
    """Whatever the caller did not fix, the budget decides."""
    if checks is not None and budget.is_private:
        before = (*before, checks.event(checks.count))

    def events(steps: int, noise: float) -> tuple[Event, ...]:
        return (*before, batches.event(steps=steps, noise_multiplier=noise))

    check_positive("steps", _given(settings.steps, 1))
    if not budget.is_private:
        return _given(settings.steps, rule.steps), 0.0
    if settings.noise_multiplier is None:
        steps = _given(settings.steps, rule.steps)
        return steps, calibrate_noise(
            budget, lambda noise: events(steps, noise), accountant=settings.accountant
        )
    noise = settings.noise_multiplier
    check_positive("noise_multiplier", noise)
    most = calibrate_steps(
        budget, lambda steps: events(steps, noise), accountant=settings.accountant
    )
    return min(most, _given(settings.steps, most)), noise


def _shape(description: dict[str, Any]) -> Shape:
    return (CellShape if description.get("name") == NAME else Architecture)(**description)


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _require_shape(rows: int, columns: int) -> None:
    if rows < 2:
        raise InputError(f"rows must be at least 2, got {rows}; nobody can hide in a table of one")
    if columns < 1:
        raise InputError(f"columns must be at least 1, got {columns}")

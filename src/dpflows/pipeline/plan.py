"""The plan of a fit: its stages, fixed before a row is read.

Guarantee:
    A plan is computed only from public numbers: the budget, the number of rows and columns, the
    declared schema and the caller's settings. ``Plan.events`` is what its stages list, in order,
    and ``Plan.run`` runs exactly those stages: what is charged is what runs.

``Odometer`` bounds the epsilon spent after each step, cheaply enough for a progress bar.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, final

from dpflows.errors import InputError
from dpflows.pipeline.defaults import Shape
from dpflows.pipeline.stage import Recorded, Stage, Work
from dpflows.pipeline.training import Settings, TrainModel, plan_training
from dpflows.privacy.accounting import calibrate_noise, epsilon_of
from dpflows.privacy.accounting.registry import PrivacyPlan
from dpflows.privacy.events import Event, event_from_dict, only_these
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.table.schema import Schema
from dpflows.training.batches import Batches
from dpflows.training.checkpoints import Before
from dpflows.training.optimizers import Descent
from dpflows.training.progress_checks import Checks

#: The noise of an unlimited budget, in rows: nothing that could be seen.
FAINT = 1e-3


@final
@dataclasses.dataclass(frozen=True)
class Plan(PrivacyPlan):
    """The stages of a fit, with its budget and cost.

    Attributes:
        budget: The total budget.
        accountant: The accountant's name.
        rows: Public number of rows.
        columns: Number of columns.
        stages: The stages, in order.
        details: Public choices by name, ready for JSON.
        cost: Estimated seconds on two cores, and megabytes beyond the rows, of a fit without
        training.
        stamps: Warnings that void the guarantee of a fit with this plan.
        caveats: Further statements of its certificate.

    Example:
        >>> plan = make_plan(Budget(1.0, 1e-5), rows=1000, columns=2, settings=Settings(steps=10))
        >>> plan.steps, plan.noise_multiplier > 0
        (10, True)
    """

    budget: Budget
    accountant: str
    rows: int
    columns: int
    stages: tuple[Stage, ...]
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    cost: tuple[float, float] = (0.0, 0.0)
    stamps: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 2:
            raise InputError(
                f"rows must be at least 2, got {self.rows}; a table of one row cannot be protected"
            )
        if self.columns < 1:
            raise InputError(f"columns must be at least 1, got {self.columns}")

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release of the plan, in order; none if the budget is unlimited."""
        return self.events_by(self.steps)

    def events_by(self, steps: int) -> tuple[Event, ...]:
        """Every release up to the end of a training step."""
        if not self.is_private:
            return ()
        made = (
            stage.events_by(steps) if isinstance(stage, TrainModel) else stage.events
            for stage in self.stages
        )
        return tuple(event for events in made for event in events)

    def run(self, work: Work) -> Work:
        """Run the stages in order; stages that an earlier start finished are resumed.

        Guarantee:
            While a stage runs, mechanisms release the events that the stage lists, each once, and
            nothing else.
        """
        first = [stage for stage in self.stages if stage.is_kept]
        kept = None if work.journal is None else work.journal.before()
        if kept is None:
            work = self._released(first, work)
        else:
            require_same(kept, work.table.schema)
            for stage in first:
                work = stage.resume(work, kept)
        for stage in self.stages[len(first) :]:
            work = self.carry_out(stage, work)
        return work

    def _released(self, stages: Sequence[Stage], work: Work) -> Work:
        """The work after stages whose releases are saved with the run."""
        journal, declared = work.journal, work.table.schema
        if journal is None:
            for stage in stages:
                work = self.carry_out(stage, work)
            return work
        with journal.failing_for_good():
            for stage in stages:
                work = self.carry_out(stage, work)
        header: dict[str, Any] = {"declared": declared.to_dict()}
        arrays: dict[str, Any] = {}
        for stage in stages:
            more = stage.keep(work)
            header, arrays = header | more[0], arrays | more[1]
        journal.remember(header, arrays)
        return work

    def carry_out(self, stage: Stage, work: Work) -> Work:
        """Run one stage; its mechanisms can release the stage's events and nothing else."""
        if not self.is_private:
            return stage.run(work)
        with only_these(stage.events):
            return stage.run(work)

    def guarantee(self, *, stamps: Sequence[str] = (), caveats: Sequence[str] = ()) -> Guarantee:
        """The guarantee of carrying out the plan."""
        return super().guarantee(stamps=(*self.stamps, *stamps), caveats=(*self.caveats, *caveats))

    def with_training(self, **changes: Any) -> "Plan":
        """The plan with other training settings, which must cost no more."""
        stages = (
            dataclasses.replace(stage, **changes) if isinstance(stage, TrainModel) else stage
            for stage in self.stages
        )
        return dataclasses.replace(self, stages=tuple(stages))

    @property
    def training(self) -> TrainModel | None:
        """The stage that trains a model, if there is one."""
        found = [stage for stage in self.stages if isinstance(stage, TrainModel)]
        return found[0] if found else None

    @property
    def trained(self) -> TrainModel:
        """The stage that trains a model; refused if there is none."""
        if self.training is None:
            raise InputError("the plan has no training stage: it releases statistics of the rows")
        return self.training

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return 0 if self.training is None else self.training.steps

    @property
    def architecture(self) -> Shape:
        """The shape of the model that is trained."""
        return self.trained.architecture

    @property
    def batches(self) -> Batches:
        """The batch sampling of training."""
        return self.trained.batches

    @property
    def noise_multiplier(self) -> float:
        """The noise of a training step over its clipping norm."""
        return self.trained.noise_multiplier

    @property
    def optimizer(self) -> Descent:
        """The optimizer of training."""
        return self.trained.optimizer

    @property
    def checks(self) -> Checks | None:
        """The progress checks of training."""
        return self.trained.checks

    @property
    def before(self) -> tuple[Event, ...]:
        """The events before training."""
        return self.events_by(0)

    @property
    def seconds(self) -> float:
        """Estimated seconds of the fit on two cores, including compilation."""
        return self.cost[0] if self.training is None else self.training.seconds

    @property
    def megabytes(self) -> float:
        """Estimated megabytes of the fit, beyond the rows."""
        return self.cost[1] if self.training is None else self.training.megabytes

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        shape = {"accountant": self.accountant, "rows": self.rows, "columns": self.columns}
        if self.training is not None:
            before = [event.to_dict() for event in self.before]
            return shape | self.training.to_dict() | {"before": before}
        return shape | {
            "seconds": self.seconds,
            "megabytes": self.megabytes,
            "releases": [event.to_dict() for event in self.events],
            "details": dict(self.details),
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any], budget: Budget) -> "Plan":
        """Read back what ``to_dict`` wrote; stages before training are only recorded."""
        rows, columns = int(description["rows"]), int(description["columns"])
        is_trained = "steps" in description
        released = description["before" if is_trained else "releases"]
        events = tuple(event_from_dict(event) for event in released)
        stages: list[Stage] = [Recorded(events)] if events else []
        if is_trained:
            stages.append(TrainModel.from_dict(description, rows=rows, columns=columns))
        return cls(
            budget=budget,
            accountant=str(description["accountant"]),
            rows=rows,
            columns=columns,
            stages=tuple(stages),
            details={} if is_trained else dict(description["details"]),
            cost=(0.0, 0.0)
            if is_trained
            else (float(description["seconds"]), float(description["megabytes"])),
        )


def make_plan(
    budget: Budget,
    *,
    rows: int,
    columns: int,
    settings: Settings | None = None,
    before: Sequence[Stage] = (),
    after: Sequence[Stage] = (),
    train: bool = True,
) -> Plan:
    """A plan that trains a model with the budget left by the stages before.

    Args:
        budget: The total budget.
        rows: Public number of rows.
        columns: Number of columns.
        settings: The training settings that the caller fixed.
        before: Stages before training, inside the same budget.
        after: Stages after training, which release nothing.
        train: Whether to train at all; ``before`` may spend everything.
    """
    settings = settings or Settings()
    planned = Plan(budget, settings.accountant, rows, columns, tuple(before))
    training = plan_training(
        budget,
        rows=rows,
        columns=columns,
        settings=settings,
        before=planned.events,
        train=train,
    )
    return dataclasses.replace(planned, stages=(*before, training, *after))


def affordable_noise(
    budget: Budget,
    event_for: Callable[[float], Event],
    *,
    before: Sequence[Event],
    accountant: str,
) -> float:
    """The noise of a final release that exhausts the budget.

    Args:
        budget: The total.
        event_for: The last release with a given noise.
        before: The events before it.
        accountant: The accountant's name.

    Guarantee:
        All releases together cost at most the budget. Without privacy the noise is negligible.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> unit = Sensitivity.of_sum(1.0)
        >>> noise = affordable_noise(
        ...     Budget(1.0, 1e-5),
        ...     lambda noise: GaussianEvent(noise=noise, sensitivity=unit),
        ...     before=(),
        ...     accountant="pld",
        ... )
        >>> round(noise, 2)
        3.73
    """
    if not budget.is_private:
        return FAINT
    return calibrate_noise(budget, lambda level: [*before, event_for(level)], accountant=accountant)


def require_same(kept: Before | None, declared: Schema) -> None:
    """Refuse to resume a run with another schema.

    Example:
        >>> require_same(None, Schema.from_bounds([0], [1]))
    """
    if kept is not None and kept[0].get("declared") != declared.to_dict():
        raise InputError(
            "the checkpoint belongs to a run with another schema or other bounds: use the same "
            "schema, or remove the checkpoint"
        )


#: The accountant is asked at this many points of a run; in between, the next one is shown.
KNOTS = 12


class Odometer:
    """An upper bound on the epsilon spent after each step of a plan.

    Guarantee:
        Never less than the accountant's value: a step's epsilon is that of the next of a few knots.
        Reads only the plan.

    Example:
        >>> from dpflows.privacy.guarantee import Budget
        >>> from dpflows.pipeline.plan import make_plan
        >>> from dpflows.pipeline.training import Settings
        >>> plan = make_plan(Budget(1.0, 1e-5), rows=900, columns=2, settings=Settings(steps=9))
        >>> 0 < Odometer(plan)(1) <= Odometer(plan)(9) <= 1.0
        True
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stride = max(math.ceil(plan.steps / KNOTS), 1)
        self._at_knot = functools.lru_cache(maxsize=None)(self._price)

    def __call__(self, step: int) -> float:
        """The epsilon spent after ``step`` steps, rounded up to the next knot."""
        return self._at_knot(min(math.ceil(step / self._stride) * self._stride, self._plan.steps))

    def _price(self, steps: int) -> float:
        plan = self._plan
        if not plan.is_private:
            return math.inf
        return epsilon_of(
            plan.events_by(steps),
            delta=plan.budget.delta,
            neighbours=plan.budget.neighbours,
            accountant=plan.accountant,
        )

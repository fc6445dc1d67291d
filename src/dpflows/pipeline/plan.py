"""Stages and plans: what a fit releases, fixed before a row is read.

A fit is a sequence of stages. Each takes the work of the stages before it, makes its releases from
the private rows, and passes on the result. A plan is an ordered tuple of stages with a budget.

Guarantee:
    ``Stage.run`` releases what ``Stage.events`` lists and nothing else. A plan is computed from
    public numbers alone: the budget, the number of rows and columns, the declared schema and the
    caller's settings. ``Plan.events`` is what its stages list, in order, and ``Plan.run`` runs
    exactly those stages: what is charged is what runs. While a stage runs, a mechanism that
    releases something else fails before its value is returned (``only_these``).

``Odometer`` bounds the epsilon spent after each step, cheaply enough for a progress bar.
"""

import abc
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from dpflows.errors import InputError
from dpflows.models.density import Mixture
from dpflows.models.normalisers import Normaliser
from dpflows.pipeline.defaults import Shape
from dpflows.privacy.accounting import calibrate_noise, epsilon_of
from dpflows.privacy.accounting.registry import PrivacyPlan
from dpflows.privacy.events import Event, only_these
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy, Stream
from dpflows.table.reading import Encoding, MixedEncoding, Table
from dpflows.table.schema import Schema
from dpflows.training.batches import Batches
from dpflows.training.checkpoints import Before, Checkpoints
from dpflows.training.dp_sgd import Callbacks, Optimizer
from dpflows.training.ghost_clipping import Clipping
from dpflows.training.natural_gradient import NaturalGradient
from dpflows.training.progress_checks import Checks

#: The noise of an unlimited budget, in rows: nothing that could be seen.
FAINT = 1e-3

T = TypeVar("T")
#: What may be done with a noisy gradient.
Descent = Optimizer | NaturalGradient


@final
@dataclasses.dataclass(frozen=True)
class Work:
    """The intermediate results of a run, passed from stage to stage.

    Attributes:
        table: The private table, as it was read.
        entropy: Source of randomness of noise, batches and initial values.
        journal: The run's checkpoints, if any.
        callbacks: Progress and stop hooks of training.
        encoding: The encoding of rows as points. Set by the first stage.
        rows: The private rows as points of the encoding. Set by the first stage.
        normaliser: The map from the points' units to the model's. Released.
        prior: The prior of a flow, in the model's units. Released.
        bins: The merged bins of every column of a mixed table. Released.
        counts: Noisy marginals of those bins. Released.
        points: The private rows in the model's units.
        model: The model. Released, or drawn from public randomness.
        parameters: Statistics by name. Released.
        density: The fitted estimator, for stages after the fit. Released.
        threshold: The threshold of a detector. Released.
        score: How well the density fits the rows. Released.
    """

    table: Table
    entropy: Entropy
    journal: Checkpoints | None = None
    callbacks: Callbacks | None = None
    encoding: Encoding | MixedEncoding | None = None
    rows: np.ndarray | None = None
    normaliser: Normaliser | None = None
    prior: Mixture | None = None
    bins: tuple[Any, ...] | None = None
    counts: Any = None
    points: np.ndarray | None = None
    model: Any = None
    parameters: dict[str, np.ndarray] | None = None
    density: Any = None
    threshold: Any = None
    score: float | None = None

    def after(self, **made: Any) -> "Work":
        """The work with the results of a stage."""
        return dataclasses.replace(self, **made)

    @property
    def box(self) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " columns"]]:
        """The public bounds of the points."""
        return self.numeric.low, self.numeric.high

    @property
    def numeric(self) -> Encoding:
        """The encoding of a table of numbers."""
        if not isinstance(self.encoding, Encoding):
            raise TypeError("rows must be encoded as points of a box")
        return self.encoding

    @property
    def mixed(self) -> MixedEncoding:
        """The encoding of a table of mixed kinds."""
        if not isinstance(self.encoding, MixedEncoding):
            raise TypeError("rows must be encoded as columns of mixed kinds")
        return self.encoding


def needed(value: T | None) -> T:
    """The result of an earlier stage, which must exist.

    Example:
        >>> needed(3)
        3
    """
    if value is None:
        raise InputError("the plan lacks a stage that a later one needs; make the plan with plan()")
    return value


def jax_key(entropy: Entropy, stream: Stream, *, step: int = 0) -> PRNGKeyArray:
    """A JAX key of a stream."""
    return jax.random.wrap_key_data(jnp.asarray(entropy.key(stream, step=step)))


class Stage(abc.ABC):
    """A part of a fit: its events, and the computation that releases them.

    A stage holds everything it needs except the work of the stages before it, so that later changes
    to settings or files do not change what is released.
    """

    #: Whether what the stage released is kept with the run, so that it is released once.
    is_kept = False

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """The events of the stage."""

    def events_by(self, steps: int) -> tuple[Event, ...]:
        """The events up to the end of a training step; all of them for other stages."""
        return self.events

    @abc.abstractmethod
    def run(self, work: Work) -> Work:
        """Make the stage's releases."""

    def keep(self, work: Work) -> Before:
        """The stage's results for the checkpoint: a JSON-ready header, and arrays."""
        return {}, {}

    def resume(self, work: Work, kept: Before) -> Work:
        """As ``run``, with the releases of an earlier start of the run."""
        raise InputError("this stage cannot be resumed; remove the checkpoint and start again")


@dataclasses.dataclass(frozen=True)
class TrainingStage(Stage):
    """A stage that trains a model in steps.

    Attributes:
        rows: Public number of rows.
        columns: Number of columns.
        architecture: The shape of the model.
        batches: The batch sampling.
        steps: Number of steps.
        noise_multiplier: The noise of a step over its clipping norm; zero without privacy.
        clipping: The clipping rule, for first-order methods.
        optimizer: The optimizer of noisy gradients.
        checks: The progress checks of natural-gradient training.
    """

    rows: int
    columns: int
    architecture: Shape
    batches: Batches
    steps: int
    noise_multiplier: float
    clipping: Clipping
    optimizer: Descent
    checks: Checks | None = None

    @property
    def is_private(self) -> bool:
        """Whether steps are noisy."""
        return self.noise_multiplier > 0

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """Estimated seconds on two cores, including compilation."""

    @property
    @abc.abstractmethod
    def megabytes(self) -> float:
        """Estimated megabytes beyond the rows."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""


@final
@dataclasses.dataclass(frozen=True)
class Recorded(Stage):
    """A stage of a plan read from a file, of which only the events are known."""

    released: tuple[Event, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """The released events."""
        return self.released

    def run(self, work: Work) -> Work:
        """Refused: a file does not describe how to release its events again."""
        raise InputError(
            "a plan that was read from a file cannot be run; make a new plan by fitting again"
        )


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
        >>> from dpflows.pipeline.training import Settings, make_plan
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
        return tuple(event for stage in self.stages for event in stage.events_by(steps))

    def run(self, work: Work) -> Work:
        """Run the stages in order; stages that an earlier start finished are resumed.

        Guarantee:
            While a stage runs, mechanisms release the events that the stage lists, each once, and
            nothing else.
        """
        keep_compiled_programs()
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
            dataclasses.replace(stage, **changes) if isinstance(stage, TrainingStage) else stage
            for stage in self.stages
        )
        return dataclasses.replace(self, stages=tuple(stages))

    @property
    def training(self) -> TrainingStage | None:
        """The stage that trains a model, if there is one."""
        found = [stage for stage in self.stages if isinstance(stage, TrainingStage)]
        return found[0] if found else None

    @property
    def trained(self) -> TrainingStage:
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
        >>> from dpflows.pipeline.training import make_plan
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


#: Names the folder where it should not be the usual one.
CACHE_VARIABLE = "DPFLOWS_CACHE"


def cache_folder() -> Path:
    """``DPFLOWS_CACHE``, or ``dpflows`` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "dpflows"


def keep_compiled_programs() -> None:
    """Let JAX reuse compiled programs, also those of other processes.

    Does nothing where a folder is set already, or where this one cannot be written.

    Guarantee:
        Programs get rows as arguments and never hold them, so none is in the folder.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

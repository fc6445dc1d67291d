"""Training as a stage: DP-SGD, DP-Adam or natural gradient, on batches of private rows.

Guarantee:
    The trained model is a function of the stage's released events, public settings
    and randomness. Rows are passed to compiled code as arguments, never closed over,
    so no compiled program or cache holds them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpflows.errors import InputError
from dpflows.models.architectures import Architecture
from dpflows.models.autoregressive import NAME, CellShape
from dpflows.pipeline.defaults import (
    Defaults,
    Shape,
    expected_megabytes,
    expected_seconds,
    natural_megabytes,
    natural_samples,
    natural_seconds,
    rule_for,
)
from dpflows.pipeline.plan import Descent, Plan, Recorded, Stage, TrainingStage, Work, needed
from dpflows.privacy.accounting import calibrate_noise, calibrate_steps
from dpflows.privacy.events import Event, check_positive, event_from_dict
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.batches import Batches, make_batches
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.dp_sgd import (
    Callbacks,
    Loop,
    Optimizer,
    PlainGradient,
    PrivateGradient,
    Training,
    plain_gradient,
    private_gradient,
)
from dpflows.training.ghost_clipping import (
    Blueprint,
    Clipping,
    Parameters,
    by_taps,
    choose_clipper,
    take_apart,
)
from dpflows.training.natural_gradient import Natural, NaturalGradient
from dpflows.training.progress_checks import Checks, plan_checks

Model = TypeVar("Model")
T = TypeVar("T")


#: The names of all of them.
OPTIMIZERS = ("adam", "sgd", "natural")


def name_of(optimizer: str | Descent) -> str:
    """The name of an optimizer, given by name or as an object."""
    return optimizer if isinstance(optimizer, str) else optimizer.name


def optimizer_from(description: dict[str, Any]) -> Descent:
    """Read back the result of ``dataclasses.asdict``.

    Example:
        >>> optimizer_from({"name": "natural"}) == NaturalGradient()
        True
    """
    is_natural = description.get("name") == NaturalGradient.name
    return (NaturalGradient if is_natural else Optimizer)(**description)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The training settings that the caller fixed; ``None`` follows the public rule.

    With ``noise_multiplier`` but without ``steps``, training runs until the budget is spent, as in
    the paper; with ``steps`` only, the noise is the least that the budget allows.

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


@final
@dataclasses.dataclass(frozen=True)
class TrainModel(TrainingStage):
    """Train the model by noisy steps on batches of the rows, within the budget.

    Guarantee:
        ``events`` is exactly what the steps and the checks release.
    """

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all steps and checks."""
        return self.events_by(self.steps)

    def events_by(self, steps: int) -> tuple[Event, ...]:
        """The events up to the end of a step, including the check after it."""
        if not self.is_private or steps == 0:
            return ()
        training = self.batches.event(steps=steps, noise_multiplier=self.noise_multiplier)
        return (training, *self._checks_by(steps))

    def _checks_by(self, steps: int) -> list[Event]:
        if self.checks is None:
            return []
        made = self.checks.done_by(steps, steps=self.steps)
        return [self.checks.event(made)] if made else []

    def run(self, work: Work) -> Work:
        """Train the model on the points of the work."""
        model = fit_model(
            needed(work.model),
            needed(work.points),
            self,
            entropy=work.entropy,
            callbacks=work.callbacks,
            checkpoints=work.journal,
            known_to_taps=True,
        )
        return work.after(model=model)

    @property
    def seconds(self) -> float:
        """Estimated seconds on two cores, including compilation."""
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
        """Estimated megabytes beyond the rows."""
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
            "architecture": dataclasses.asdict(self.architecture),
            "sampling": self.batches.sampling,
            "batch_size": self.batches.batch_size,
            "batch_cap": self.batches.slots,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "clipping": dataclasses.asdict(self.clipping),
            "optimizer": dataclasses.asdict(self.optimizer),
            "checks": None if self.checks is None else self.checks.to_dict(),
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any], *, rows: int, columns: int) -> "TrainModel":
        """Read back what ``to_dict`` wrote."""
        sampling, checks = description["sampling"], description.get("checks")
        return cls(
            rows=rows,
            columns=columns,
            architecture=_shape(description["architecture"]),
            batches=make_batches(sampling, rows=rows, batch_size=int(description["batch_size"])),
            steps=int(description["steps"]),
            noise_multiplier=float(description["noise_multiplier"]),
            clipping=Clipping(**description["clipping"]),
            optimizer=optimizer_from(description["optimizer"]),
            checks=checks and Checks.from_dict(checks, sampling=sampling, rows=rows),
        )


def plan_training(
    budget: Budget,
    *,
    rows: int,
    columns: int,
    settings: Settings | None = None,
    before: Sequence[Event] = (),
    train: bool = True,
) -> TrainModel:
    """The training that a budget allows for a table of this shape.

    Args:
        budget: The total budget.
        rows: Public number of rows.
        columns: Number of columns.
        settings: The settings that the caller fixed.
        before: The events before training, within the same budget.
        train: Whether to train at all; ``before`` may spend everything.
    """
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
    return TrainModel(
        rows=rows,
        columns=columns,
        architecture=settings.architecture or rule.architecture,
        batches=batches,
        steps=steps,
        noise_multiplier=noise,
        clipping=Clipping(settings.clipping_norm, settings.clipping),
        optimizer=optimizer,
        checks=checks and dataclasses.replace(checks, count=min(checks.count, steps)),
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


def read_plan(description: dict[str, Any], budget: Budget) -> Plan:
    """Read back what ``Plan.to_dict`` wrote; stages before training are only recorded."""
    rows, columns = int(description["rows"]), int(description["columns"])
    is_trained = "steps" in description
    released = description["before" if is_trained else "releases"]
    events = tuple(event_from_dict(event) for event in released)
    stages: list[Stage] = [Recorded(events)] if events else []
    if is_trained:
        stages.append(TrainModel.from_dict(description, rows=rows, columns=columns))
    return Plan(
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
            "learning_rate must be None with optimizer='natural', which determines its own step "
            "size; choose optimizer='adam' or 'sgd' to set it"
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
    """Compute steps and noise from the budget, where the caller did not fix them."""
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


def negative_log_likelihood(model: Any, row: Float[Array, " columns"]) -> Float[Array, ""]:
    """The loss of one row."""
    return -model.log_prob(row)


def fit_model(
    model: Model,
    rows: Float[np.ndarray, "rows columns"],
    plan: TrainingStage,
    *,
    entropy: Entropy,
    callbacks: Callbacks | None = None,
    checkpoints: Checkpoints | None = None,
    known_to_taps: bool = False,
) -> Model:
    """Train ``model`` on normalised rows as ``plan`` says.

    Args:
        model: Anything with ``log_prob`` of one row.
        rows: The private rows, normalised.
        plan: The training stage, planned for this many rows.
        entropy: Source of randomness of batches and noise.
        callbacks: Progress and stop hooks.
        checkpoints: The checkpoints to save the run to and resume it from.
        known_to_taps: Skip the check that ghost clipping is exact for this model.
    """
    if plan.steps == 0:
        return model
    parameters, blueprint = take_apart(model)
    loop = _training(plan, blueprint, parameters, known_to_taps)
    dtype = jnp.result_type(float)
    callbacks, state = callbacks or Callbacks(), loop.start(parameters)
    if checkpoints is not None:
        checkpoints.begin()
        callbacks = dataclasses.replace(callbacks, on_state=checkpoints.keep)
        state = checkpoints.resume(state)
    state = loop.run(state, jnp.asarray(rows, dtype), entropy=entropy, callbacks=callbacks)
    if checkpoints is not None:
        # Otherwise a second start would make the last steps again, with other noise.
        checkpoints.write(state)
    return blueprint.assemble(loop.released(state))


def _training(
    plan: TrainingStage, blueprint: Blueprint, parameters: Parameters, known_to_taps: bool
) -> Training:
    """The run of the plan."""
    how = plan.optimizer
    if isinstance(how, NaturalGradient):
        return Natural(blueprint, plan.batches, how, plan.noise_multiplier, plan.steps, plan.checks)
    gradient = _gradient(plan, blueprint, parameters, known_to_taps)
    return Loop(gradient, plan.batches, how, plan.steps)


def _gradient(
    plan: TrainingStage, blueprint: Blueprint, parameters: Parameters, known_to_taps: bool
) -> PlainGradient | PrivateGradient:
    loss = negative_log_likelihood
    if not plan.is_private:
        return plain_gradient(loss, blueprint)
    if known_to_taps:
        clipper = by_taps(loss, blueprint, plan.clipping)
    else:
        clipper = choose_clipper(loss, blueprint, plan.clipping, parameters, plan.columns)
    return private_gradient(
        clipper,
        blueprint,
        parameters,
        noise_multiplier=plan.noise_multiplier,
        batch_size=plan.batches.batch_size,
    )

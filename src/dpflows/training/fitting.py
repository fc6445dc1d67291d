"""Carry out a plan: the one place where private rows meet a flow's parameters.

Guarantee:
    The returned model is a function of the plan's released events, public settings
    and randomness. Rows are passed to compiled code as arguments, never closed over,
    so no compiled program or cache holds them.
"""

import dataclasses
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpflows.caching import keep_compiled_programs
from dpflows.privacy.randomness import Entropy
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.clipping import by_taps, choose_clipper
from dpflows.training.loop import (
    Callbacks,
    Loop,
    PlainGradient,
    Training,
    plain_gradient,
)
from dpflows.training.natural_gradient import Natural
from dpflows.training.noise import PrivateGradient, private_gradient
from dpflows.training.optimizers import NaturalGradient
from dpflows.training.plan import Plan
from dpflows.training.taps import Blueprint, Parameters, take_apart

Model = TypeVar("Model")


def negative_log_likelihood(model: Any, row: Float[Array, " columns"]) -> Float[Array, ""]:
    """The loss of one row."""
    return -model.log_prob(row)


def fit_model(
    model: Model,
    rows: Float[np.ndarray, "rows columns"],
    plan: Plan,
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
        plan: What to do; must have been made for this many rows.
        entropy: Where batches and noise come from.
        callbacks: Progress and stop hooks.
        checkpoints: Where to keep the run, and from where to go on with it.
        known_to_taps: Skip the check that taps are exact for this model.
    """
    if plan.steps == 0:
        return model
    keep_compiled_programs()
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
    plan: Plan, blueprint: Blueprint, parameters: Parameters, known_to_taps: bool
) -> Training:
    """The run that the plan asks for."""
    how = plan.optimizer
    if isinstance(how, NaturalGradient):
        return Natural(blueprint, plan.batches, how, plan.noise_multiplier, plan.steps, plan.checks)
    gradient = _gradient(plan, blueprint, parameters, known_to_taps)
    return Loop(gradient, plan.batches, how, plan.steps)


def _gradient(
    plan: Plan, blueprint: Blueprint, parameters: Parameters, known_to_taps: bool
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

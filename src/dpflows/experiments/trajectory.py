"""The paper's recipe: one long run, and the models it passes on its way.

Noise, batch and learning rate are fixed, so a shorter run is the beginning of a longer
one. Each budget is a number of steps; its model is the state of the run at that step.
"""

import copy
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.estimators.base import key_of
from dpflows.estimators.flow import DPFlow
from dpflows.experiments.moments import moments_steps
from dpflows.experiments.paper import RECIPE
from dpflows.experiments.tables import Rows, Vector
from dpflows.flows.architectures import Architecture
from dpflows.flows.density import Density
from dpflows.privacy.accounting import calibrate_steps
from dpflows.privacy.events import SampledGaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.loop import CHUNK, Callbacks, State
from dpflows.training.taps import take_apart

#: The paper stopped runs that had converged; so many steps are far beyond that.
MOST_STEPS = 150_000

Claim = tuple[str, float]


def recipe_steps(accountant: str, epsilon: float, *, rows: int, delta: float) -> int:
    """How many steps the paper's accountants allow at an epsilon.

    Both take one row to move the sum by the clipping norm; under the paper's own
    definition, one row exchanged for another, it moves by twice that. ``gdp-clt`` is an
    estimate besides.

    Example:
        >>> recipe_steps("gdp-clt", 1.0, rows=24_059, delta=1.52e-5)
        12565
        >>> recipe_steps("ma", 1.0, rows=24_059, delta=1.52e-5)
        2198
    """
    event = recipe_event(rows)
    if accountant == "ma":
        return moments_steps(event, epsilon, delta)
    return calibrate_steps(
        Budget(epsilon, delta),
        lambda steps: [dataclasses.replace(event, count=steps)],
        accountant=accountant,
    )


def recipe_event(rows: int, steps: int = 1) -> SampledGaussianEvent:
    """What the recipe releases."""
    return SampledGaussianEvent(
        sampling="uniform",
        rows=rows,
        batch_size=RECIPE.batch_size,
        noise_multiplier=RECIPE.noise_multiplier,
        count=steps,
    )


def recipe_models(
    rows: Rows, box: tuple[Vector, Vector], delta: float, claims: Sequence[Claim]
) -> Iterator[tuple[Claim, DPFlow, float]]:
    """Run the recipe once and yield the model of every claim, with the seconds it took.

    Guarantee:
        None: columns are standardised by their own moments, and neither accountant proves
        its epsilon. The models are stamped.
    """
    stops = {claim: allowed_steps(claim, len(rows), delta) for claim in claims}
    passed = Snapshots(set(stops.values()))
    flow = recipe_flow(max(epsilon for _, epsilon in claims), delta, box)
    flow.set_params(steps=max(stops.values()))
    flow.fit(rows, callbacks=Callbacks(on_state=passed.take))
    for claim, steps in stops.items():
        parameters, seconds = passed.at[steps]
        yield claim, _stopped(flow, parameters, steps, Budget(claim[1], delta)), seconds


def recipe_flow(epsilon: float, delta: float, box: tuple[Vector, Vector]) -> DPFlow:
    """The estimator with the released code's settings; it runs as long as the budget lasts."""
    maf = Architecture("maf", width=RECIPE.width, depth=RECIPE.depth, blocks=RECIPE.blocks)
    return DPFlow(
        epsilon,
        delta,
        bounds=box,
        prior=None,
        normalisation="paper-not-private",
        architecture=maf,
        sampling="uniform",
        accountant="gdp-clt",
        batch_size=RECIPE.batch_size,
        noise_multiplier=RECIPE.noise_multiplier,
        learning_rate=RECIPE.learning_rate,
        schedule="constant",
        clipping_norm=RECIPE.clipping_norm,
    )


def allowed_steps(claim: Claim, rows: int, delta: float) -> int:
    """How long the run of a claim lasts; whole chunks only, so that it can be looked at there.

    Example:
        >>> allowed_steps(("gdp-clt", 1.0), 24_059, 1.52e-5) <= 12_565
        True
    """
    accountant, epsilon = claim
    allowed = min(recipe_steps(accountant, epsilon, rows=rows, delta=delta), MOST_STEPS)
    return max(allowed // CHUNK, 1) * CHUNK


class Snapshots:
    """Parameters at the steps somebody asked for."""

    def __init__(self, steps: set[int]) -> None:
        self._steps, self._began = steps, time.monotonic()
        self.at: dict[int, tuple[Any, float]] = {}

    def take(self, state: State) -> None:
        """Copy the state if it is wanted; the next step consumes the original."""
        if int(state.step) in self._steps:
            kept = jax.tree.map(np.array, state.parameters)
            self.at[int(state.step)] = kept, time.monotonic() - self._began


def _stopped(flow: DPFlow, parameters: Any, steps: int, budget: Budget) -> DPFlow:
    """The flow as it was at an earlier step, with that step's claim."""
    earlier = copy.copy(flow)
    _, blueprint = take_apart(flow.density_.model)
    model = blueprint.assemble(jax.tree.map(jnp.asarray, parameters))
    density = Density(flow.density_.normaliser, model, flow.density_.low, flow.density_.high)
    earlier.density_ = density.with_inside_mass(key_of(Entropy.from_os(), "sampling"))
    earlier.plan_ = dataclasses.replace(flow.plan_, steps=steps, budget=budget)
    earlier.guarantee_ = earlier.plan_.guarantee(stamps=flow.guarantee_.stamps)
    return earlier

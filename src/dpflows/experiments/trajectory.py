"""The paper's recipe: one long run, and the models it passes on its way.

Noise, batch and learning rate are fixed, so a shorter run is the beginning of a longer
one. Each budget is a number of steps; its model is the state of the run at that step.
"""

import copy
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax

from dpflows.estimators.flow import DPFlow
from dpflows.experiments.moments import moments_steps
from dpflows.experiments.paper import RECIPE
from dpflows.experiments.tables import Rows, Vector
from dpflows.models.architectures import Architecture
from dpflows.models.density import Defended, Density
from dpflows.models.normalisers import Normaliser, Scaling
from dpflows.pipeline.stage import jax_key
from dpflows.pipeline.training import fit_model
from dpflows.privacy.accounting import calibrate_steps
from dpflows.privacy.events import SampledGaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_sgd import CHUNK, Callbacks, State
from dpflows.training.ghost_clipping import take_apart

#: The paper stopped runs that had converged; so many steps are far beyond that.
MOST_STEPS = 150_000
CHOSEN_STAMP = "NOT PRIVATE: chosen among the states of a run by its test rows"
_LOOKS = 60

Claim = tuple[str, float]


def recipe_steps(
    accountant: str, epsilon: float, *, rows: int, delta: float, reach: float = 1.0
) -> int:
    """How many steps the paper's accountants allow at an epsilon.

    Both take one row to move the sum by the clipping norm, a ``reach`` of one; under the
    paper's own definition, one row exchanged for another, it moves by twice that.
    ``gdp-clt`` is an estimate besides.

    Example:
        >>> recipe_steps("gdp-clt", 1.0, rows=24_059, delta=1.52e-5)
        12565
        >>> recipe_steps("ma", 1.0, rows=24_059, delta=1.52e-5)
        2198
    """
    event = recipe_event(rows)
    event = dataclasses.replace(event, noise_multiplier=event.noise_multiplier / reach)
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
    rows: Rows,
    test: Rows,
    box: tuple[Vector, Vector],
    delta: float,
    claims: Sequence[Claim],
    *,
    standardised: bool = True,
    entropy: Entropy | None = None,
) -> Iterator[tuple[Claim, DPFlow, float]]:
    """Run the recipe once and yield the model of every claim, with the seconds it took.

    A claim's model is the best on the test rows that the run passed before its stop, as in
    the released code; without that choice many a run ends far below where it was.

    Args:
        rows: What to train on.
        test: What to choose on.
        box: Around all rows.
        delta: Beside every epsilon.
        claims: Accountants and epsilons.
        standardised: Whether the flow sees columns in units of their own moments.
        entropy: For tests.

    Guarantee:
        None: models are chosen on test rows, columns are standardised by their own moments,
        and neither accountant proves its epsilon. The models are stamped.
    """
    entropy = Entropy.from_os() if entropy is None else entropy
    stops = {claim: allowed_steps(claim, len(rows), delta) for claim in claims}
    flow = recipe_flow(max(epsilon for _, epsilon in claims), delta, box)
    # a run that stops before its first step: the trained one below has no background
    stop_at_once = Callbacks(should_stop=lambda progress: True)
    shell = flow.set_params(steps=CHUNK).fit(rows, callbacks=stop_at_once)
    units = shell.density_.normaliser if standardised else Scaling.identity(rows.shape[1])
    model = _fresh(shell, entropy)
    watch = _Watch(model, jnp.asarray(units.apply(test)), stops.values())
    plan = dataclasses.replace(shell.plan_.trained, steps=max(stops.values()))
    callbacks = Callbacks(on_state=watch.look)
    fit_model(
        model, units.apply(rows), plan, entropy=entropy, callbacks=callbacks, known_to_taps=True
    )
    for claim, steps in stops.items():
        best, seconds = watch.at[steps]
        yield claim, _stopped(shell, units, best, steps, Budget(claim[1], delta)), seconds


def recipe_flow(epsilon: float, delta: float, box: tuple[Vector, Vector]) -> DPFlow:
    """The estimator with the released code's settings; it runs as long as the budget lasts."""
    maf = Architecture("maf", width=RECIPE.width, depth=RECIPE.depth, blocks=RECIPE.blocks)
    return DPFlow(
        epsilon,
        delta,
        bounds=box,
        normalisation="paper-not-private",
        architecture=maf,
        sampling="uniform",
        accountant="gdp-clt",
        batch_size=RECIPE.batch_size,
        noise_multiplier=RECIPE.noise_multiplier,
        learning_rate=RECIPE.learning_rate,
        schedule="constant",
        clipping_norm=RECIPE.clipping_norm,
        # the literature's deltas are part of what is reproduced
        allow_large_delta=True,
    )


def allowed_steps(claim: Claim, rows: int, delta: float, *, reach: float = 1.0) -> int:
    """How long the run of a claim lasts; whole chunks only, so that it can be looked at there.

    Example:
        >>> allowed_steps(("gdp-clt", 1.0), 24_059, 1.52e-5) <= 12_565
        True
    """
    accountant, epsilon = claim
    allowed = recipe_steps(accountant, epsilon, rows=rows, delta=delta, reach=reach)
    return max(min(allowed, MOST_STEPS) // CHUNK, 1) * CHUNK


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


class _Watch:
    """The best model on test rows that a run passed, at each of its stops."""

    def __init__(self, model: Defended, test: jax.Array, stops: Iterable[int]) -> None:
        self._stops, self._began = set(stops), time.monotonic()
        self._looks = _looks(max(self._stops)) | self._stops
        _, self._blueprint = take_apart(model)
        self._test, self._score, self._best = test, -np.inf, model
        self.at: dict[int, tuple[Defended, float]] = {}

    def look(self, state: State) -> None:
        """Score the state at some steps, and note the best so far at a stop."""
        step = int(state.step)
        if step in self._looks:
            self._compare(self._blueprint.assemble(jax.tree.map(jnp.array, state.parameters)))
        if step in self._stops:
            self.at[step] = self._best, time.monotonic() - self._began

    def _compare(self, model: Defended) -> None:
        score = float(_mean_log_density(model, self._test))
        if score > self._score:
            self._score, self._best = score, model


def _looks(last: int) -> set[int]:
    """Some steps between the first chunk and the last, ever farther apart."""
    return {int(at) * CHUNK for at in np.geomspace(1, max(last // CHUNK, 1), _LOOKS)}


@eqx.filter_jit
def _mean_log_density(model: Defended, rows: jax.Array) -> jax.Array:
    return jax.vmap(paramax.unwrap(model).log_prob)(rows).mean()


def _fresh(shell: DPFlow, entropy: Entropy) -> Defended:
    """An untrained flow without the background, which the original lacks.

    Worse, its rows would vanish in the background as soon as noise carries the flow away,
    and nothing would pull it back.
    """
    background = shell.density_.model.background
    key = jax_key(entropy, "initialisation")
    architecture: Any = shell.plan_.architecture
    flow = architecture.build(background.shape[0], key=key)
    return Defended(flow, background, weight=0.0)


def _stopped(
    shell: DPFlow, units: Normaliser, model: Defended, steps: int, budget: Budget
) -> DPFlow:
    """The shell with a model that the run passed, and the claim of the run up to its stop."""
    stopped = copy.copy(shell)
    stopped.prior_ = None
    density = Density(units, model, shell.density_.low, shell.density_.high)
    stopped.density_ = density.with_inside_mass(jax_key(Entropy.from_os(), "sampling"))
    plan = shell.plan_.with_training(steps=steps)
    stamps = (*plan.stamps, CHOSEN_STAMP)
    stopped.plan_ = dataclasses.replace(plan, budget=budget, stamps=stamps)
    stopped.guarantee_ = stopped.plan_.guarantee()
    return stopped

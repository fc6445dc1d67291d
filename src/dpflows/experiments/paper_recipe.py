"""The recipe of Waites and Cummings: their printed figures, accountant, settings and runs.

Log-likelihoods are means over ten folds in the paper's units. Pinwheel is printed there
as a negative log-likelihood; here its sign is reversed, so that larger is always better.

The moments accountant follows the paper and its code: batches without replacement by the
theorem of Wang, Balle and Kasiviswanathan, integer orders, and the original conversion to
epsilon. Both have been improved since; and one row is assumed to change a sum by the clipping
norm, although replacing it changes the sum by twice that. It serves only to reproduce the
paper's numbers of steps.

Noise, batch size and learning rate are fixed, so a shorter run is the beginning of a longer
one. Each budget is a number of steps; its model is the state of the run at that step.
"""

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from jaxtyping import Float64
from scipy.special import gammaln, logsumexp

from dpflows.estimators.flow import DPFlow
from dpflows.experiments.data import TableRows, Vector
from dpflows.models.architectures import Architecture
from dpflows.models.density import Defended, Density
from dpflows.models.normalisers import Normaliser, Scaling
from dpflows.pipeline.plan import jax_key
from dpflows.pipeline.training import fit_model
from dpflows.privacy.accounting import calibrate_steps
from dpflows.privacy.events import SampledGaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_sgd import CHUNK, Callbacks, State
from dpflows.training.ghost_clipping import take_apart

Figures = dict[float, float]

#: How the rows of the paper's tables are called here: (data set, method, accountant).
PUBLISHED: dict[tuple[str, str, str], Figures] = {
    ("life-science", "paper-recipe", "gdp-clt"): {0.5: 8.90, 1.0: 9.41, 2.0: 10.20, 4.0: 10.77},
    ("life-science", "paper-recipe", "ma"): {0.5: 7.37, 1.0: 8.67, 2.0: 9.32, 4.0: 10.09},
    ("life-science", "dp-mog", "ma"): {0.5: 2.30, 1.0: 5.09, 2.0: 8.87, 4.0: 9.10},
    ("life-science", "dp-mog", "zcdp"): {0.5: -8.93, 1.0: -0.16, 2.0: 2.95, 4.0: 5.48},
    ("power", "paper-recipe", "gdp-clt"): {1.25: -2.12},
    ("power", "paper-recipe", "ma"): {1.25: -3.43, 1.75: -2.47, 2.25: -2.16},
    ("power", "dp-mog", "ma"): {1.25: -2.88, 1.75: -2.87, 2.25: -2.86},
    ("power", "dp-mog", "zcdp"): {1.25: -3.29, 1.75: -3.10, 2.25: -3.04},
    ("gowalla", "paper-recipe", "gdp-clt"): {2.25: -0.44},
    ("gowalla", "paper-recipe", "ma"): {2.25: -1.81, 3.5: -0.77, 4.0: 0.47},
    ("gowalla", "dp-mog", "ma"): {2.25: -0.92, 3.5: -0.92, 4.0: -0.91},
    ("gowalla", "dp-mog", "zcdp"): {2.25: -0.87, 3.5: -0.93, 4.0: -0.93},
    ("half-moons", "paper-recipe", "gdp-clt"): {1.5: -2.23},
    ("half-moons", "paper-recipe", "ma"): {1.5: -2.57, 2.25: -2.43, 3.0: -2.22},
    ("half-moons", "dp-mog", "ma"): {1.5: -2.59, 2.25: -2.58, 3.0: -2.58},
    ("half-moons", "dp-mog", "zcdp"): {1.5: -2.73, 2.25: -2.60, 3.0: -2.60},
    ("gaussians", "paper-recipe", "gdp-clt"): {1.5: -2.45},
    ("gaussians", "paper-recipe", "ma"): {1.5: -2.73, 2.25: -2.61, 3.0: -2.45},
    ("gaussians", "dp-mog", "ma"): {1.5: -2.44, 2.25: -2.45, 3.0: -2.45},
    ("gaussians", "dp-mog", "zcdp"): {1.5: -2.42, 2.25: -2.41, 3.0: -2.43},
    ("pinwheel", "paper-recipe", "ma"): {1.5: -2.80, 2.5: -2.78, 3.5: -2.74, 4.5: -2.63},
    ("pinwheel", "public-prior", "ma"): {1.5: -3.05, 2.5: -2.40, 3.5: -1.91, 4.5: -1.87},
    ("pinwheel", "private-prior", "ma"): {1.5: -2.77, 2.5: -2.70, 3.5: -2.62, 4.5: -2.47},
    ("pinwheel", "dp-mog", "ma"): {1.5: -2.75, 2.5: -2.76, 3.5: -2.76, 4.5: -2.76},
    ("pinwheel", "dp-mog-10", "ma"): {1.5: -2.76, 2.5: -2.88, 3.5: -2.77, 4.5: -2.77},
}

#: Components of the paper's DP-MoG, by data set.
COMPONENTS = {
    "life-science": 3,
    "power": 10,
    "gowalla": 11,
    "half-moons": 3,
    "gaussians": 8,
    "pinwheel": 5,
}


@final
@dataclasses.dataclass(frozen=True)
class Recipe:
    """The released code's settings, the same for every data set."""

    blocks: int = 5
    width: int = 100
    depth: int = 2
    learning_rate: float = 7e-4
    batch_size: int = 100
    noise_multiplier: float = 2.1
    clipping_norm: float = 12.0


RECIPE = Recipe()


def published(dataset: str, method: str, accountant: str, epsilon: float) -> float | None:
    """The paper's figure for a row of its tables; for our own rows, the best of its private ones.

    Example:
        >>> published("life-science", "dp-mog", "ma", 1.0)
        5.09
        >>> published("life-science", "ours", "pld", 1.0)
        9.41
        >>> published("life-science", "ours", "pld", 3.0) is None
        True
    """
    for name in (accountant, "ma"):
        if (dataset, method, name) in PUBLISHED:
            return PUBLISHED[dataset, method, name].get(epsilon)
    if not method.startswith("ours"):
        return None
    return _best_private(dataset, epsilon)


def _best_private(dataset: str, epsilon: float) -> float | None:
    rows = (
        figures.get(epsilon)
        for (name, method, _), figures in PUBLISHED.items()
        if name == dataset and method != "public-prior"
    )
    return max((figure for figure in rows if figure is not None), default=None)


_ORDERS = np.arange(2, 101)

Orders = Float64[np.ndarray, " orders"]


def moments_epsilon(event: SampledGaussianEvent, delta: float) -> float:
    """What the paper's code states for ``event.count`` steps.

    Example:
        >>> run = SampledGaussianEvent(
        ...     sampling="uniform", rows=24_059, batch_size=100, noise_multiplier=2.1, count=2_198
        ... )
        >>> round(moments_epsilon(run, 1.52e-5), 2)
        1.0
    """
    costs = _costs(event.rate, event.noise_multiplier)
    return float((event.count * costs + _overheads(delta)).min())


def moments_steps(event: SampledGaussianEvent, epsilon: float, delta: float) -> int:
    """How many steps the paper's code allows within epsilon."""
    costs = _costs(event.rate, event.noise_multiplier)
    return max(int(((epsilon - _overheads(delta)) / costs).max()), 0)


def _overheads(delta: float) -> Orders:
    return -math.log(delta) / (_ORDERS - 1)


@functools.lru_cache(maxsize=8)
def _costs(rate: float, noise: float) -> Orders:
    """The Rényi cost of one step at each order."""
    return np.array([_cost(int(order), rate, noise) for order in _ORDERS])


def _cost(order: int, rate: float, noise: float) -> float:
    second = 1 / noise**2
    largest = math.log(min(4 * math.expm1(second), 2 * math.exp(second)))
    j = np.arange(3, order + 1)
    higher = j * math.log(rate) + _choose(order, j) + j * (j - 1) / (2 * noise**2) + math.log(2)
    pair = 2 * math.log(rate) + _choose(order, np.array([2])) + largest
    return float(logsumexp([0.0, *pair, *higher])) / (order - 1)


def _choose(order: int, j: np.ndarray) -> np.ndarray:
    """The logarithm of the binomial coefficients."""
    return gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)


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
    rows: TableRows,
    test: TableRows,
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
        and neither accountant proves its epsilon. The models are marked NOT PRIVATE.
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

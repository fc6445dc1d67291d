"""Canaries in the space of rows: unlikely rows that hide in a table, or do not.

The training is that of the estimator's own ``fit``, from its first release to its last. A
canary whose coin fell the other way is a null row, which is what the zero-out relation
puts in place of a person, so that the claim under attack is the very epsilon of the fit. A
null row cannot be written into a table, which is why ``fit`` is entered behind its reader.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.evaluation.audit.findings import Finding
from dpflows.evaluation.audit.game import Game
from dpflows.models.density import Density
from dpflows.pipeline.stage import Work
from dpflows.pipeline.training import negative_log_likelihood
from dpflows.privacy.events import check_choice
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Table
from dpflows.training.dp_sgd import Callbacks, State
from dpflows.training.ghost_clipping import Blueprint, Parameters, take_apart

#: Canaries lie between these parts of the way from the middle of the box to a corner. The
#: corners themselves are too far out: there the background explains a row, and the row
#: moves nothing.
NEAR, FAR = 0.3, 0.6
#: What is added to the overlap of the canaries' gradients before it is inverted.
RIDGE = 0.01
_PIECE = 64

Rows = Float[np.ndarray, "rows columns"]
Scores = Float[np.ndarray, " canaries"]


def made_up_table(rows: int, columns: int, entropy: Entropy) -> Rows:
    """Rows of independent standard normals inside [-4, 4]: public, made on the spot.

    Example:
        >>> made_up_table(5, 3, Entropy.from_os()).shape
        (5, 3)
    """
    chance = np.random.default_rng(entropy.words("dither", step=1, count=4))
    return chance.normal(size=(rows, columns)).clip(-4, 4)


def unlikely_rows(low: np.ndarray, high: np.ndarray, count: int, entropy: Entropy) -> Rows:
    """Rows on the way from the middle of the box to random corners, no two alike.

    Example:
        >>> unlikely_rows(np.zeros(3), np.ones(3), 5, Entropy.from_os()).shape
        (5, 3)
    """
    shape = (count, len(low))
    sides, parts = (
        entropy.uniforms("dither", step=step, count=count * len(low)).reshape(shape)
        for step in (2, 3)
    )
    reach = (NEAR + (FAR - NEAR) * parts) * np.where(sides < 0.5, -1, 1)
    return (low + high) / 2 + reach * (high - low) / 2


@final
@dataclasses.dataclass(frozen=True)
class Watched:
    """A released density, and the parameters that each chunk of steps ended with."""

    density: Density
    states: list[Parameters]


def learn_with_nulls(
    estimator: DensityEstimator, table: Table, *, entropy: Entropy, watch: bool = False
) -> Watched:
    """``fit`` behind its reader: a row of NaN is nobody's.

    Args:
        estimator: The settings; bounds must be declared.
        table: Rows and null rows.
        entropy: Where all randomness comes from.
        watch: Whether to keep the parameters on the way.
    """
    states: list[Parameters] = []

    def keep(state: State) -> None:
        states.append(jax.tree.map(np.asarray, state.parameters))

    plan = estimator.plan(table.rows, len(table.schema.columns))
    callbacks = Callbacks(on_state=keep if watch else None)
    estimator._run(plan, Work(table, entropy, callbacks=callbacks))
    return Watched(estimator.density_, states)


def by_density(watched: Watched, canaries: Rows) -> Scores:
    """Black box: the log-density that the released model gives to each canary."""
    return watched.density.log_prob(canaries)


def by_updates(watched: Watched, canaries: Rows) -> Scores:
    """White box: how much of every chunk's update each canary's gradient explains.

    Gradients of different canaries overlap, so the update is explained by all of them at
    once, by ridge regression, instead of by one after the other.
    """
    if len(watched.states) < 2:
        raise InputError(
            "score must be density: updates need a flow that is trained for 50 steps or more"
        )
    blueprint = take_apart(watched.density.model)[1]
    rows = jnp.asarray(watched.density.normaliser.apply(canaries), jnp.result_type(float))
    pulls = jax.jit(lambda at: _pulls(blueprint, at, rows))
    pairs = zip(watched.states, watched.states[1:], strict=False)
    parts = [_explained(pulls(a), _flat(b) - _flat(a)) for a, b in pairs]
    return np.sum(parts, axis=0, dtype=float)


def _pulls(
    blueprint: Blueprint, at: Parameters, rows: Float[Array, "canaries d"]
) -> Float[Array, "canaries n"]:
    """What each canary would add to a sum of gradients, clipped to length one."""

    def pull(row: Array) -> Array:
        gradient = jax.grad(lambda p: -negative_log_likelihood(blueprint.assemble(p), row))(at)
        flat = _flat(gradient)
        return flat / jnp.maximum(jnp.linalg.norm(flat), 1.0)

    return jax.lax.map(pull, rows, batch_size=_PIECE)


def _flat(parameters: Parameters) -> Float[Array, " n"]:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(parameters)])


def _explained(pulls: Float[Array, "canaries n"], update: Float[Array, " n"]) -> Scores:
    """Ridge coefficients of the update, times the length of what they multiply."""
    overlap = pulls @ pulls.T
    ridge = RIDGE * jnp.eye(len(pulls))
    weights = jnp.linalg.solve(overlap + ridge, pulls @ update)
    return np.asarray(weights * jnp.sqrt(jnp.diag(overlap)))


#: How a canary is scored, by name.
SCORING: dict[str, Callable[[Watched, Rows], np.ndarray]] = {
    "density": by_density,
    "updates": by_updates,
}


def audit_rows(
    estimator: DensityEstimator,
    source: Any,
    game: Game,
    *,
    entropy: Entropy,
    score: str = "density",
    internal: bool = True,
) -> Finding:
    """Fit one model to a table with canaries and guess which were in.

    Args:
        estimator: The settings of the fit, with declared bounds and the zero-out relation.
        source: The table.
        game: Canaries, guesses and confidence.
        entropy: Where coins, canaries, batches and noise come from.
        score: ``density`` of the released model, or ``updates`` on the way to it.
        internal: Whether the table is private.

    Example:
        >>> from dpflows import DPGaussian
        >>> estimator, entropy = DPGaussian(1.0, 1e-5, bounds=(-4, 4)), Entropy.from_os()
        >>> table = made_up_table(300, 3, entropy)
        >>> audit_rows(estimator, table, Game(50), entropy=entropy, internal=False).trials
        50
    """
    _check(estimator, score)
    table = estimator._spec().read(source)
    box = (table.schema.lows(), table.schema.highs())
    canaries, coins = unlikely_rows(*box, game.canaries, entropy), game.coins(entropy)
    joined = _joined(table, np.where(coins[:, None], canaries, np.nan))
    plan = estimator.plan(joined.rows, len(joined.schema.columns))
    claim = plan.guarantee(stamps=estimator.stamps())
    game = game.rules(claim.epsilon, claim.delta)
    watched = learn_with_nulls(estimator, joined, entropy=entropy, watch=score == "updates")
    found = game.correct(SCORING[score](watched, canaries), coins)
    details = {
        "estimator": type(estimator).__name__,
        "rows": table.rows,
        "columns": len(table.schema.columns),
        "score": score,
        "neighbours": claim.neighbours,
    }
    return game.finding("rows", claim, found, details, internal=internal)


def _joined(table: Table, more: Rows) -> Table:
    cells = np.concatenate([table.matrix, more])
    columns = {name: cells[:, i] for i, name in enumerate(table.schema.names)}
    return dataclasses.replace(table, columns=columns)


def _check(estimator: DensityEstimator, score: str) -> None:
    check_choice("score", score, tuple(SCORING))
    if estimator.neighbours != "zero-out":
        raise InputError("neighbours must be zero-out: a canary is in the table, or a null row is")
    if estimator.discover is not None:
        raise InputError("bounds must be declared, so that canaries can lie inside them")

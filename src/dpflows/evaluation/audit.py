r"""Empirical privacy audits: lower bounds on epsilon, compared with the claim.

In an audit with one training run, every canary is included by a fair coin, one model is
trained, and the auditor guesses some of the coins. Steinke, Nasr and Jagielski (2023, "Privacy
auditing with one training run") show that under :math:`(\varepsilon, \delta)`-differential
privacy the number of right guesses among ``r`` is hardly larger than a binomial one: with
:math:`W \sim \mathrm{Bin}(r, e^\varepsilon / (1 + e^\varepsilon))`,

.. math:: P(V \ge v) \le P(W \ge v)
          + 2 m \delta \max_{i \ge 1} \frac{P(v - i \le W < v)}{i}.

There are three attacks. ``audit_gradients`` uses canaries in gradient space, each of which
moves one weight of its own as far as clipping allows. They are trained by ``fit_model``: the
batches, the clipping, the noise, the division and the optimizer are those of every private
flow. Only the model differs: a single dense layer, in which canary ``(i, o)`` pulls at the
weight from input ``i`` to output ``o``. Natural-gradient training is run without progress
checks: they release sums over all rows, in which no canary has a coordinate, and would undo
steps that the auditor reads canaries from.

``audit_rows`` inserts unlikely rows into a table and runs the estimator's own ``fit``, from its
first release to its last. An excluded canary is a null row, as under the zero-out relation,
so the audited claim is exactly the epsilon of the fit. A null row cannot be written into a
table, which is why ``fit`` is entered after its reader.

``audit_step`` repeats the noisy sum of one step with and without a worst-case row.

Guarantee:
    If one step over all rows hides a row as Gaussian noise of the claimed multiplier
    does, then no test of membership has errors below the trade-off curve of
    two unit Gaussians at distance ``1 / noise_multiplier``. Errors that surely lie below
    it refute the multiplier.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy import optimize, stats

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.models.density import Density
from dpflows.pipeline.plan import Plan, Work
from dpflows.pipeline.training import Settings, fit_model, make_plan, negative_log_likelihood
from dpflows.privacy.accounting.privacy_profiles import GaussianProfile
from dpflows.privacy.events import check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy, RoundedGaussian
from dpflows.table.reading import Table
from dpflows.training.dp_sgd import Callbacks, State, private_gradient
from dpflows.training.ghost_clipping import Blueprint, Parameters, by_taps, take_apart
from dpflows.training.natural_gradient import NaturalGradient

#: What a reader must know before quoting the figure.
MEANING = (
    "A bound above the claim refutes the claim, up to the stated confidence. A bound below it "
    "proves nothing: a better attack may exist, and only the code that was run was attacked."
)
INTERNAL_STAMP = (
    "INTERNAL: this audit read the given table, and no guarantee covers its findings. Store them "
    "as you store the rows."
)


@final
@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of an audit.

    Attributes:
        way: The attack: ``gradients``, ``rows`` or ``step``.
        claimed: The epsilon that the accountant states for the attacked run.
        delta: At this delta; so is every epsilon here.
        bound: The empirical lower bound on epsilon.
        confidence: The probability that the bound of a correct program is below the true epsilon.
        largest: The bound that a perfect attack of this size would have given.
        trials: Canaries, or repetitions of a step.
        details: Public settings and counts, ready for JSON.
        internal: Whether a given table was read.

    Guarantee:
        None. A finding can refute a claim but never prove one.

    Example:
        >>> found = Finding("step", 1.0, 1e-5, 1.4, 0.95, 9.0, 1000)
        >>> found.is_flagged, found.to_dict()["flagged"]
        (True, True)
    """

    way: str
    claimed: float
    delta: float
    bound: float
    confidence: float
    largest: float
    trials: int
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    internal: bool = False

    @property
    def is_flagged(self) -> bool:
        """Whether the claim is refuted."""
        return self.bound > self.claimed

    @property
    def verdict(self) -> str:
        """One line: refuted, or not refuted; never confirmed."""
        if self.is_flagged:
            return "FLAGGED: the claim is refuted; do not release anything made with this code"
        if self.largest <= self.claimed:
            return "not refuted, but the audit is too small to refute this claim; use more canaries"
        return "not refuted"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description with its verdict and meaning."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return facts | {"flagged": self.is_flagged, "verdict": self.verdict, "meaning": MEANING}


#: The search for a bound walks in steps of this size until the guesses are no surprise.
_STRIDE = 0.05
#: Beyond this no number of canaries that fits a machine certifies anything.
_HIGHEST = 30.0
#: Guesses are planned so as to notice noise that is this many times too small.
PLANTED = 3.0


def p_value(correct: int, *, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """An upper bound of the probability of this many right guesses, if the claim holds.

    Args:
        correct: Right guesses.
        guesses: Guesses made; their number is fixed before the scores are seen.
        canaries: Number of canaries, guessed or not.
        epsilon: The claimed epsilon.
        delta: The claimed delta.

    Example:
        >>> p_value(20, guesses=20, canaries=100, epsilon=0.0, delta=0.0) == 0.5**20
        True
    """
    chance = 1 / (1 + math.exp(-epsilon))
    surprise = float(stats.binom.sf(correct - 1, guesses, chance))
    if correct == 0 or delta == 0:
        return min(surprise, 1.0)
    below = stats.binom.cdf(correct - 1, guesses, chance)
    steps = np.arange(1, correct + 1)
    just_missed = (below - stats.binom.cdf(correct - 1 - steps, guesses, chance)) / steps
    return min(surprise + 2 * canaries * delta * float(just_missed.max()), 1.0)


def lower_bound(
    correct: int, *, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """The epsilon below which any claim is refuted by this many right guesses.

    Guarantee:
        If training is (epsilon, delta)-differentially private, the result exceeds epsilon with
        probability at most ``1 - confidence``: every smaller epsilon was tested in increasing order
        and refuted at that level.

    Example:
        >>> lower_bound(50, guesses=100, canaries=1000, delta=1e-6, confidence=0.95)
        0.0
        >>> bound = lower_bound(99, guesses=100, canaries=1000, delta=1e-6, confidence=0.95)
        >>> 2.5 < bound < 3.1
        True
    """
    _check_game(correct, guesses, canaries, confidence)

    def excess(epsilon: float) -> float:
        found = p_value(correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta)
        return found - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    refuted = 0.0
    while refuted < _HIGHEST and excess(refuted + _STRIDE) < 0:
        refuted += _STRIDE
    if refuted >= _HIGHEST:
        return refuted
    return max(float(optimize.brentq(excess, refuted, refuted + _STRIDE, xtol=1e-6)) - 1e-6, 0.0)


def separation(epsilon: float, delta: float) -> float:
    """The distance of two unit Gaussians that costs exactly epsilon at delta.

    Example:
        >>> round(separation(1.0, 1e-5), 3)
        0.268
    """
    highest = 1.0
    while GaussianProfile(highest).epsilon(delta) < epsilon:
        highest *= 2
    return float(
        optimize.brentq(lambda mu: GaussianProfile(mu).epsilon(delta) - epsilon, 1e-9, highest)
    )


def expected_bound(
    mu: float, *, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """A pessimistic bound if a canary moves its score by ``mu`` deviations.

    It assumes one standard deviation fewer right guesses than the mean.
    """
    share = guesses / (2 * canaries)
    edge = optimize.brentq(
        lambda x: (stats.norm.sf(x) + stats.norm.sf(x - mu)) / 2 - share, -10, mu + 40
    )
    right = stats.norm.sf(edge - mu) / (stats.norm.sf(edge) + stats.norm.sf(edge - mu))
    poor = guesses * right - math.sqrt(guesses * right * (1 - right))
    return lower_bound(
        max(int(poor), 0), guesses=guesses, canaries=canaries, delta=delta, confidence=confidence
    )


def planned_guesses(canaries: int, *, epsilon: float, delta: float, confidence: float) -> int:
    """The number of guesses, from public numbers only.

    Few guesses are more certain, many prove more. The number gives the best bound if the noise is
    three times too small, and is fixed before scores are computed.

    Example:
        >>> planned_guesses(5000, epsilon=1.0, delta=1e-5, confidence=0.95) in range(50, 500)
        True
    """
    mu = PLANTED * separation(epsilon, delta)
    choices = sorted({2 * max(int(canaries * 0.5 * 0.7**i), 1) for i in range(1, 14)})

    def bound(guesses: int) -> float:
        return expected_bound(
            mu, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence
        )

    return max(choices, key=bound)


def _check_game(correct: int, guesses: int, canaries: int, confidence: float) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(
            "guesses must lie between the number of right ones and the number of canaries "
            f"({canaries}), got {guesses}"
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), for example 0.95, got {confidence}")


@final
@dataclasses.dataclass(frozen=True)
class Game:
    """The settings of an audit in one run, all fixed before canaries are drawn.

    Args:
        canaries: Number of canaries.
        confidence: Confidence of the bound.
        guesses: Number of guesses, half of them as included; ``None`` for the planned number.

    Example:
        >>> Game(canaries=100, guesses=20).rules(1.0, 1e-5).guesses
        20
    """

    canaries: int
    confidence: float = 0.95
    guesses: int | None = None

    def __post_init__(self) -> None:
        if self.canaries < 2:
            raise InputError(f"canaries must be at least 2, got {self.canaries}")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence must be in (0, 1), got {self.confidence}")
        if self.guesses is not None and not 2 <= self.guesses <= self.canaries:
            raise InputError(
                f"guesses must lie between 2 and the {self.canaries} canaries, got {self.guesses}"
            )

    def rules(self, epsilon: float, delta: float) -> "Game":
        """The settings with the number of guesses fixed by public numbers."""
        if self.guesses is not None:
            return self
        planned = planned_guesses(
            self.canaries, epsilon=epsilon, delta=delta, confidence=self.confidence
        )
        return dataclasses.replace(self, guesses=planned)

    def coins(self, entropy: Entropy) -> Bool[np.ndarray, " canaries"]:
        """The included canaries: one fair coin each."""
        return entropy.uniforms("sampling", step=0, count=self.canaries) < 0.5

    def correct(
        self, scores: Float[np.ndarray, " canaries"], coins: Bool[np.ndarray, " canaries"]
    ) -> int:
        """The right guesses if the highest scores are taken for members, the lowest for others."""
        order = np.argsort(scores, kind="stable")
        members = (self.guesses or 0) // 2
        strangers = (self.guesses or 0) - members
        right_members = coins[order[len(order) - members :]].sum()
        return int(right_members + (~coins[order[:strangers]]).sum())

    def finding(
        self, way: str, claim: Guarantee, correct: int, details: dict[str, Any], *, internal: bool
    ) -> Finding:
        """The finding from the number of right guesses and the claim."""
        return Finding(
            way=way,
            claimed=claim.epsilon,
            delta=claim.delta,
            bound=self._bound(correct, claim.delta),
            confidence=self.confidence,
            largest=self._bound(self.guesses or 0, claim.delta),
            trials=self.canaries,
            details={"guesses": self.guesses, "correct": correct} | details,
            internal=internal,
        )

    def _bound(self, correct: int, delta: float) -> float:
        return lower_bound(
            correct,
            guesses=self.guesses or 0,
            canaries=self.canaries,
            delta=delta,
            confidence=self.confidence,
        )


#: Length of a canary's gradient before clipping, in clipping norms: clipping must act.
STEEPNESS = 8.0
STEPS = 100
#: The chance of a row to be in a batch.
RATE = 0.1
#: Optimizers that are run with other settings than their defaults.
OPTIMIZERS = {NaturalGradient.name: NaturalGradient(checks=0)}


@final
class CanaryWeights(eqx.Module):
    """A model whose loss at row ``(i, o)`` is a steep multiple of one weight.

    A row with a NaN has no gradient, as required of null rows.

    Example:
        >>> from dpflows.privacy.randomness import Entropy
        >>> model = CanaryWeights.blank(3, Entropy.from_os())
        >>> float(model.log_prob(jnp.array([0.0, 1.0])))
        -0.0
    """

    layer: eqx.nn.Linear

    @classmethod
    def blank(cls, side: int, entropy: Entropy) -> "CanaryWeights":
        """All ``side * side`` weights at zero."""
        key = jax.random.wrap_key_data(jnp.asarray(entropy.key("initialisation")))
        layer = eqx.nn.Linear(side, side, use_bias=False, key=key)
        return cls(eqx.tree_at(lambda at: at.weight, layer, jnp.zeros((side, side))))

    def log_prob(self, row: Float[Array, "2"]) -> Float[Array, ""]:
        """Minus the steep multiple of the weight that the row names."""
        side = self.layer.weight.shape[0]
        places = jnp.clip(jnp.round(row), 0, side - 1).astype(jnp.int32)
        source, goal = jax.nn.one_hot(places, side, dtype=row.dtype)
        steepness = jnp.where(jnp.isfinite(row).all(), STEEPNESS, jnp.nan)
        return -steepness * jnp.dot(goal, self.layer(source))

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n 2"]:
        """Rows that name weights at random, for natural-gradient training."""
        side = self.layer.weight.shape[0]
        return jax.random.randint(key, (n, 2), 0, side).astype(self.layer.weight.dtype)


def audit_gradients(
    budget: Budget,
    game: Game,
    *,
    entropy: Entropy,
    steps: int = STEPS,
    rate: float = RATE,
    sampling: str = "poisson",
    optimizer: str = "sgd",
) -> Finding:
    """Train one model on Dirac canaries and guess which were included.

    Args:
        budget: The claimed budget of the run.
        game: Canaries, guesses and confidence.
        entropy: Source of randomness of coins, batches and noise.
        steps: Number of steps of the run.
        rate: The probability that a row is in a batch.
        sampling: ``poisson`` or ``uniform``.
        optimizer: ``sgd``, or ``natural`` to clip and noise in the Fisher metric.

    Example:
        >>> entropy = Entropy.from_os()
        >>> audit_gradients(Budget(1.0, 1e-5), Game(5000), entropy=entropy)  # doctest: +SKIP
        Finding(way='gradients', claimed=0.99999, delta=1e-05, bound=0.228, ...)
    """
    batch = max(round(rate * game.canaries), 1)
    settings = Settings(
        sampling=sampling,
        batch_size=batch,
        steps=steps,
        optimizer=OPTIMIZERS.get(optimizer, optimizer),
        schedule="constant",
        learning_rate=1.0 if optimizer == "sgd" else None,
    )
    plan = make_plan(budget, rows=game.canaries, columns=2, settings=settings)
    claim = plan.guarantee()
    game = game.rules(claim.epsilon, claim.delta)
    coins, side = game.coins(entropy), math.ceil(math.sqrt(game.canaries))
    places = np.column_stack(np.divmod(np.arange(game.canaries), side)).astype(float)
    rows = np.where(coins[:, None], places, np.nan)
    model = fit_model(
        CanaryWeights.blank(side, entropy),
        rows,
        plan.trained,
        entropy=entropy,
        known_to_taps=True,
    )
    # Plain descent from zero: minus the weight is the sum of all that was released. Natural steps
    # weigh it by gains that all weights share.
    released = -np.asarray(model.layer.weight, dtype=float).T.ravel()[: game.canaries]
    details = {
        "steps": steps,
        "batch_size": batch,
        "sampling": sampling,
        "optimizer": optimizer,
        "noise_multiplier": plan.noise_multiplier,
        "neighbours": claim.neighbours,
    }
    return game.finding("gradients", claim, game.correct(released, coins), details, internal=False)


#: Canaries lie between these parts of the way from the middle of the box to a corner. The
#: corners themselves are too far out: there the background explains a row, and the row
#: moves nothing.
NEAR, FAR = 0.3, 0.6
#: What is added to the overlap of the canaries' gradients before it is inverted.
RIDGE = 0.01
_CANARIES_AT_ONCE = 64

Rows = Float[np.ndarray, "rows columns"]
Scores = Float[np.ndarray, " canaries"]


def made_up_table(rows: int, columns: int, entropy: Entropy) -> Rows:
    """Rows of independent standard normals inside [-4, 4]: public, generated here.

    Example:
        >>> made_up_table(5, 3, Entropy.from_os()).shape
        (5, 3)
    """
    chance = np.random.default_rng(entropy.words("dither", step=1, count=4))
    return chance.normal(size=(rows, columns)).clip(-4, 4)


def unlikely_rows(low: np.ndarray, high: np.ndarray, count: int, entropy: Entropy) -> Rows:
    """Distinct rows between the middle of the box and random corners.

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
    """``fit`` after its reader, with rows of NaN as null rows.

    Args:
        estimator: The settings; bounds must be declared.
        table: Rows and null rows.
        entropy: Source of all randomness.
        watch: Whether to store intermediate parameters.
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
    """White box: the part of every chunk's update that each canary's gradient explains.

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
    """Each canary's clipped contribution to a sum of gradients."""

    def pull(row: Array) -> Array:
        gradient = jax.grad(lambda p: -negative_log_likelihood(blueprint.assemble(p), row))(at)
        flat = _flat(gradient)
        return flat / jnp.maximum(jnp.linalg.norm(flat), 1.0)

    return jax.lax.map(pull, rows, batch_size=_CANARIES_AT_ONCE)


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
    """Fit one model to a table with canaries and guess which were included.

    Args:
        estimator: The settings of the fit, with declared bounds and the zero-out relation.
        source: The table.
        game: Canaries, guesses and confidence.
        entropy: Source of randomness of coins, canaries, batches and noise.
        score: ``density`` of the released model, or of the ``updates`` during training.
        internal: Whether the table is private.

    Example:
        >>> from dpflows import DPGaussian
        >>> estimator, entropy = DPGaussian(1.0, 1e-5, bounds=(-4, 4)), Entropy.from_os()
        >>> table = made_up_table(300, 3, entropy)
        >>> audit_rows(estimator, table, Game(50), entropy=entropy, internal=False).trials
        50
    """
    _check(estimator, score)
    table = estimator.spec().read(source)
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
        raise InputError(
            "neighbours must be zero-out, since an excluded canary is replaced by a null row"
        )
    if estimator.discover is not None:
        raise InputError("bounds must be declared, so that canaries can lie inside them")


REPETITIONS = 100_000
#: The rows beside the one in question; they are null, so that nothing else is in the sum.
BYSTANDERS = 7
_STEPS_AT_ONCE = 20_000


def audit_step(
    budget: Budget,
    *,
    entropy: Entropy,
    repetitions: int = REPETITIONS,
    confidence: float = 0.95,
) -> Finding:
    """Repeat one full-batch step and bound its epsilon by the errors of the best test.

    Args:
        budget: The claimed budget of the step.
        entropy: Source of randomness of batches and noise.
        repetitions: Number of repetitions on each side, with and without the row.
        confidence: Confidence of the bound.

    Example:
        >>> audit_step(Budget(1.0, 1e-5), entropy=Entropy.from_os())  # doctest: +SKIP
        Finding(way='step', claimed=0.99994, delta=1e-05, bound=0.935, ...)
    """
    if repetitions < 100 or not 0 < confidence < 1:
        raise InputError("repetitions must be at least 100, and confidence must be in (0, 1)")
    rows = 1 + BYSTANDERS
    settings = Settings(steps=1, batch_size=rows)
    plan = make_plan(budget, rows=rows, columns=2, settings=settings)
    claim = plan.guarantee()
    seen, unseen = (
        released_sums(plan, present, entropy=entropy, repetitions=repetitions)
        for present in (True, False)
    )
    # Halfway: the fixed threshold at which both errors of a Gaussian test are equal.
    middle = plan.trained.clipping.norm / 2
    misses, alarms = int((seen <= middle).sum()), int((unseen > middle).sum())
    mu = surely_apart(misses, alarms, repetitions=repetitions, confidence=confidence)
    most = surely_apart(0, 0, repetitions=repetitions, confidence=confidence)
    return Finding(
        way="step",
        claimed=claim.epsilon,
        delta=claim.delta,
        bound=GaussianProfile(mu).epsilon(claim.delta),
        confidence=confidence,
        largest=GaussianProfile(most).epsilon(claim.delta),
        trials=repetitions,
        details={
            "noise_multiplier": plan.noise_multiplier,
            "largest_noise_multiplier": 1 / mu if mu > 0 else None,
            "misses": misses,
            "false_alarms": alarms,
            "neighbours": claim.neighbours,
        },
    )


def released_sums(
    plan: Plan, present: bool, *, entropy: Entropy, repetitions: int
) -> Float[np.ndarray, " repetitions"]:
    """Repeated noisy sums in the row's direction, drawn by the code of a step."""
    parameters, blueprint = take_apart(CanaryWeights.blank(1, entropy))
    gradient = private_gradient(
        by_taps(negative_log_likelihood, blueprint, plan.trained.clipping),
        blueprint,
        parameters,
        noise_multiplier=plan.noise_multiplier,
        batch_size=plan.batches.batch_size,
    )
    rows = np.full((plan.rows, 2), np.nan)
    rows[0] = 0.0 if present else np.nan

    def once(rows: Array, size: Array, words: Array) -> Array:
        drawn = rows[plan.batches.draw(jax.random.wrap_key_data(words))]
        return gradient.sums(parameters, drawn, jnp.arange(plan.batches.slots) < size)

    many, noise = jax.jit(jax.vmap(once, in_axes=(None, 0, 0))), RoundedGaussian(entropy)
    parts = []
    for start in range(0, repetitions, _STEPS_AT_ONCE):
        count = min(_STEPS_AT_ONCE, repetitions - start)
        at = start + (repetitions if present else 0)
        sizes = plan.batches.sizes(entropy, step=at, count=count)
        words = entropy.words("batch-rows", step=at, count=2 * count).reshape(count, 2)
        released = gradient.release(many(jnp.asarray(rows), sizes, words), noise, step=at)
        # a step divides the sum by the public batch size
        parts.append(released[:, 0] * plan.batches.batch_size)
    return np.concatenate(parts)


def surely_apart(misses: int, alarms: int, *, repetitions: int, confidence: float) -> float:
    """The distance in deviations that the two sides surely have, by exact binomial bounds.

    Example:
        >>> round(surely_apart(0, 0, repetitions=1000, confidence=0.95), 2)
        5.36
        >>> surely_apart(500, 500, repetitions=1000, confidence=0.95)
        0.0
    """
    tail = (1 - confidence) / 2
    worst = [
        float(stats.beta.isf(tail, errors + 1, repetitions - errors))
        if errors < repetitions
        else 1.0
        for errors in (misses, alarms)
    ]
    return max(float(stats.norm.isf(worst[0]) + stats.norm.isf(worst[1])), 0.0)


__all__ = [
    "Finding",
    "audit_gradients",
    "audit_rows",
    "audit_step",
    "lower_bound",
    "made_up_table",
    "p_value",
]

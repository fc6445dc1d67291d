"""Runs of natural-gradient steps: what is released, how often, and what it depends on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpflows.errors import InputError
from dpflows.models.architectures import Architecture
from dpflows.models.density import Defended, wide_gaussian
from dpflows.pipeline.defaults import natural_defaults
from dpflows.pipeline.training import Settings, fit_model, make_plan, read_plan
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy, RoundedGaussian
from dpflows.training import fisher, natural_gradient
from dpflows.training.batches import make_batches
from dpflows.training.fisher import Frame, estimate_metric
from dpflows.training.ghost_clipping import take_apart
from dpflows.training.natural_gradient import Natural, NaturalGradient, move
from dpflows.training.progress_checks import Checks

#: Every statistical test below rejects a correct run with at most this probability.
FALSE_ALARM = 1e-6
ROWS, DIM = 300, 2
SHAPE = Architecture("columnwise", width=4, depth=1, blocks=2, knots=3)


@pytest.fixture(scope="module")
def model():
    return Defended(SHAPE.build(DIM, key=jax.random.key(0)), wide_gaussian(DIM))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    first = rng.normal(size=(ROWS, 1))
    return np.hstack([first, 0.5 * first**2 + 0.3 * rng.normal(size=(ROWS, 1))])


def plan_of(steps=3, batch_size=100, epsilon=2.0, checks=2):
    optimizer = NaturalGradient(samples=256, checks=checks)
    settings = Settings(SHAPE, batch_size=batch_size, steps=steps, optimizer=optimizer)
    return make_plan(Budget(epsilon, 1e-4), rows=ROWS, columns=DIM, settings=settings)


def fitted(model, rows, plan, seed=1):
    return fit_model(model, rows, plan.trained, entropy=Entropy.insecure(seed))


@dataclasses.dataclass
class Watched:
    """What a run released and looked at, step by step."""

    releases: list
    metrics: list
    checks: list


@pytest.fixture
def watched(monkeypatch):
    seen = Watched([], [], [])
    release, looked = Natural.release, natural_gradient.estimate_metric
    compared = Checks.release

    def watch(self, sums, clip, noise, *, step):
        released = release(self, sums, clip, noise, step=step)
        seen.releases.append((step, sums, clip, released))
        return released

    def metric(*arguments, **settings):
        seen.metrics.append(looked(*arguments, **settings))
        return seen.metrics[-1]

    def compare(self, sums, noise, *, step):
        released = compared(self, sums, noise, step=step)
        seen.checks.append((step, sums, released))
        return released

    monkeypatch.setattr(Natural, "release", watch)
    monkeypatch.setattr(Checks, "release", compare)
    monkeypatch.setattr(natural_gradient, "estimate_metric", metric)
    return seen


def test_a_run_releases_what_its_events_pay_for(model, rows, watched):
    plan = plan_of()
    fitted(model, rows, plan)
    steps, checks = plan.events
    assert [step for step, *_ in watched.releases] == list(range(steps.count))
    assert steps.batch_size == plan.batches.batch_size == 100
    assert steps.noise_multiplier == plan.noise_multiplier > 0
    assert len(watched.checks) == checks.count == 2
    assert checks.batch_size == ROWS
    assert checks.noise_multiplier == plan.checks.noise_multiplier > 0


def test_no_two_releases_of_a_run_have_the_same_number(model, rows, watched):
    """The noise of a run is a function of its key and of these numbers."""
    fitted(model, rows, plan_of())
    numbers = [step for step, *_ in watched.releases + watched.checks]
    assert len(set(numbers)) == len(numbers)


def noise_of(plan, model, draws=40):
    """Noise of many releases in units of the clipping norm times the noise multiplier."""
    parameters, blueprint = take_apart(model)
    run = Natural(blueprint, plan.batches, plan.optimizer, plan.noise_multiplier, plan.steps)
    size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    noise = RoundedGaussian(Entropy.from_os())
    drawn = [run.release(np.zeros(size), 3.0, noise, step=step) for step in range(draws)]
    return np.concatenate(drawn) * plan.batches.batch_size / (3.0 * plan.noise_multiplier)


def test_noise_of_a_step_is_what_the_plan_says(model):
    drawn = noise_of(plan_of(), model)
    band = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], drawn.size)
    assert band[0] <= np.sum(drawn**2) <= band[1]


def test_less_noise_than_the_plan_says_is_caught(model, monkeypatch):
    """The twin: noise of the multiplier alone, as if the clip were one."""
    release = Natural.release
    monkeypatch.setattr(
        Natural,
        "release",
        lambda self, sums, clip, noise, step: release(self, sums, 1.0, noise, step=step),
    )
    drawn = noise_of(plan_of(), model)
    assert np.sum(drawn**2) < stats.chi2.ppf(FALSE_ALARM / 2, drawn.size)


def test_no_noise_of_a_run_is_used_twice(model):
    """False alarms: two of 40 vectors of over a hundred normals would have to be equal."""
    drawn = noise_of(plan_of(), model).reshape(40, -1)
    assert len(np.unique(drawn, axis=0)) == 40


def joined(model, steps=300, rows=500, batch_size=50):
    """How many rows join each of many steps, and how often each row joins."""
    batches = make_batches("poisson", rows=rows, batch_size=batch_size)
    run = Natural(take_apart(model)[1], batches, NaturalGradient(), 1.0, steps)
    numbered = jnp.arange(rows, dtype=jnp.float32)[:, None]
    entropy, sizes, counts = Entropy.from_os(), [], np.zeros(rows)
    for step in range(steps):
        drawn, present = run._batch(numbered, entropy, step)
        chosen = np.asarray(drawn)[np.asarray(present), 0].astype(int)
        sizes.append(len(chosen))
        counts[chosen] += 1
    return np.asarray(sizes), counts


def scatter(counts, tries, chance):
    """The two-sided p-value of the spread of binomial counts."""
    expected = tries * chance
    statistic = np.sum((counts - expected) ** 2) / (expected * (1 - chance))
    below = stats.chi2.cdf(statistic, len(counts))
    return 2 * min(below, 1 - below)


def test_rows_join_the_steps_of_a_run_by_chance(model):
    sizes, counts = joined(model)
    assert scatter(sizes, 500, 0.1) > FALSE_ALARM
    assert scatter(counts, 300, 0.1) > FALSE_ALARM


def test_batches_of_a_fixed_size_are_caught():
    """The twin: every step takes as many rows as the plan expects on average."""
    assert scatter(np.full(300, 50.0), 500, 0.1) < FALSE_ALARM


def first_metrics(model, rows, watched, poison):
    """The first metric of a run on the rows, and on rows of which all were exchanged."""
    metrics = []
    for table in (rows, poison):
        watched.metrics.clear()
        fitted(model, table, plan_of(steps=1))
        metrics.append(watched.metrics[0])
    return [jax.tree.leaves(metric) for metric in metrics]


def test_the_metric_does_not_see_the_rows(model, rows, watched):
    poison = np.full_like(rows, np.nan)
    ours, theirs = first_metrics(model, rows, watched, poison)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_metric_of_the_rows_is_caught(model, rows, watched, monkeypatch):
    """The twin: the samples are the rows themselves."""
    table = []

    def leak(frame, parameters, key):
        return jnp.resize(jnp.asarray(table[-1], jnp.float32), (fisher.PIECE, DIM))

    start = Natural.advance

    def advance(self, entropy):
        step = start(self, entropy)

        def leaking(state, rows, at):
            table.append(np.asarray(rows))
            return step(state, rows, at)

        return leaking

    monkeypatch.setattr(fisher, "_sampled", leak)
    monkeypatch.setattr(Natural, "advance", advance)
    ours, theirs = first_metrics(model, rows, watched, rows + 1)
    assert not all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_every_row_joins_a_step_of_all_rows(model, rows, watched):
    """With a batch as large as the table nothing is left to chance."""
    fitted(model, rows, plan_of(steps=1, batch_size=ROWS))
    (_, sums, clip, _), *_ = watched.releases
    frame = Frame.of(take_apart(model)[1])
    parameters = take_apart(model)[0]
    metric = watched.metrics[0]
    table, everyone = jnp.asarray(rows, jnp.float32), jnp.ones(ROWS, bool)
    place = frame, parameters, metric.blocks
    whole = natural_gradient.totals(*place, clip, table, everyone, "block").sum
    np.testing.assert_allclose(sums, np.asarray(whole), rtol=1e-4, atol=1e-6)


def test_half_the_squared_length_of_a_step_is_its_divergence(model):
    """The Fisher metric of the model's own samples measures Kullback-Leibler divergence."""
    settings = NaturalGradient(samples=6_144, metric="full")
    parameters, blueprint = take_apart(model)
    frame, key = Frame.of(blueprint), jnp.asarray([5, 6], jnp.uint32)
    metric = estimate_metric(
        frame, parameters, key, 1e-3, samples=settings.samples, kind=settings.metric
    )
    # towards rows that are elsewhere, no few of which decide: a direction in which it does change
    clip = metric.effective**0.5
    place, elsewhere = (frame, parameters, metric.blocks), metric.samples[:500] + 0.5
    towards = natural_gradient.totals(*place, clip, elsewhere, jnp.ones(500, bool), "full").sum
    with jax.enable_x64(True):
        wide = 0.15 * towards / jnp.linalg.norm(towards)
    step = wide.astype(jnp.float32)
    moved, scale, is_linear = move(frame, parameters, metric, step, settings)
    assert scale == 1
    assert is_linear
    logs = [jax.vmap(blueprint.assemble(p).log_prob)(metric.samples) for p in (parameters, moved)]
    ratio = np.asarray(logs[1] - logs[0], np.float64)
    divergence = np.mean(np.expm1(ratio) - ratio)
    assert divergence == pytest.approx(0.15**2 / 2, rel=0.4)


def test_training_learns_a_bent_table(model, rows):
    trained = fitted(model, rows, plan_of(steps=40, batch_size=ROWS, epsilon=8.0))
    scores = [
        float(jnp.mean(jax.vmap(m.log_prob)(jnp.asarray(rows, jnp.float32))))
        for m in (model, trained)
    ]
    assert scores[1] > scores[0] + 0.2


def test_a_plan_of_natural_steps_is_read_back():
    plan = plan_of()
    assert read_plan(plan.to_dict(), plan.budget) == plan


@pytest.mark.parametrize("field", ["clip", "damping", "samples", "gain", "trust"])
def test_settings_must_be_positive(field):
    with pytest.raises(InputError, match=field):
        NaturalGradient(**{field: 0})


def test_a_step_is_a_part_of_the_gradient(model, rows, watched, monkeypatch):
    """One gain where the metric sees, a smaller one where damping hides a direction."""
    bold, damping = 0.5, 1.0
    taken = []
    honest = natural_gradient.scaled

    def scaled(blocks, gradient, gain, weak):
        taken.append((np.asarray(gradient), np.asarray(honest(blocks, gradient, gain, weak))))
        return honest(blocks, gradient, gain, weak)

    monkeypatch.setattr(natural_gradient, "scaled", scaled)
    plan, blueprint = plan_of(steps=1), take_apart(model)[1]
    run = Natural(blueprint, plan.batches, plan.optimizer, plan.noise_multiplier, plan.steps)
    start = run.start(take_apart(model)[0])
    shortened = start.optimizer._replace(
        gain_factor=jnp.float32(bold), damping=jnp.float32(damping)
    )
    table = jnp.asarray(rows, jnp.float32)
    run.advance(Entropy.from_os())(start._replace(optimizer=shortened), table, 0)
    ((gradient, step),) = taken
    gain = bold * plan.optimizer.gain
    assert np.linalg.norm(step) < 0.999 * gain * np.linalg.norm(gradient)
    assert step @ gradient > 1.001 * gain / (1 + damping) * (gradient @ gradient)


def test_gains_fall_in_the_last_part_of_a_run():
    settings = NaturalGradient(annealing=0.8)
    gains = [settings.gain_at(0.5, step, 50) for step in range(50)]
    np.testing.assert_allclose(gains[:41], settings.gain / 2)
    assert sorted(set(gains), reverse=True) == gains[40:]


def test_damping_follows_the_noise_unless_steps_are_too_long():
    settings = NaturalGradient()
    wanted = settings.damping_for(1e-2, 100)
    assert wanted == pytest.approx(settings.damping * 1e-4)
    assert settings.damping_for(0.0, 100) == settings.least_damping
    assert settings.damping_after(wanted, wanted, is_linear=True) == wanted
    assert settings.damping_after(wanted, wanted, is_linear=False) == 2 * wanted


def test_wider_networks_for_more_rows():
    widths = [
        natural_defaults(Budget(1.0, 1e-6), rows=rows, columns=10).architecture.width
        for rows in (1000, 20_000, 100_000)
    ]
    assert widths == sorted(set(widths))


def test_noise_multipliers_stay_where_small_batches_cost_nothing():
    for rows in (1000, 2_000_000):
        plan = make_plan(
            Budget(4.0, 1e-7), rows=rows, columns=5, settings=Settings(optimizer="natural")
        )
        assert plan.noise_multiplier > 2

"""Progress checks: what a row can move, what noise there is, and what a run does with them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from contracts.families import hostile_rows, model_of
from dpflows.privacy.accounting import epsilon_of, strength
from dpflows.privacy.events import GaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy, RoundedGaussian
from dpflows.training import progress_checks as checks_module
from dpflows.training.batches import make_batches
from dpflows.training.ghost_clipping import take_apart
from dpflows.training.progress_checks import (
    CLIP,
    LEAST_SHARE,
    MOST_SHARE,
    Checks,
    clipped_sum,
    log_probs,
    plan_checks,
)

#: Every statistical test below rejects a correct check with at most this probability.
FALSE_ALARM = 1e-6
ROWS = 60


@pytest.fixture(scope="module")
def places():
    """A model's blueprint and three sets of its parameters, far from each other."""
    parameters, blueprint = take_apart(model_of("columnwise"))

    def moved(by):
        return jax.tree.map(lambda x: x + by, parameters)

    return blueprint, parameters, (moved(0.3), moved(-0.4))


def sums_of(places, rows, monkeypatch):
    """What a check over all rows adds noise to."""
    seen = []
    monkeypatch.setattr(
        Checks, "release", lambda self, sums, noise, step: seen.append(sums) or np.zeros(2)
    )
    checks = Checks(make_batches("poisson", rows=len(rows), batch_size=len(rows)), 1, 1.0)
    checks.compare(
        *places,
        jnp.asarray(rows, jnp.float32),
        entropy=Entropy.from_os(),
        noise=RoundedGaussian(Entropy.from_os()),
        step=0,
    )
    return seen[0]


def moved_by(places, rows, monkeypatch):
    """How far each row moves the sums when it is taken out."""
    whole = sums_of(places, rows, monkeypatch)
    return [
        np.linalg.norm(whole - sums_of(places, np.delete(rows, at, axis=0), monkeypatch))
        for at in range(0, len(rows), 4)
    ]


def test_no_hostile_row_moves_a_check_by_more_than_its_bound(places, monkeypatch):
    moves = moved_by(places, hostile_rows(ROWS), monkeypatch)
    bound = Checks(make_batches("poisson", rows=ROWS, batch_size=ROWS), 1, 1.0).bound
    assert 0.5 * bound < max(moves) <= bound


def test_a_check_without_a_clip_is_caught(places, monkeypatch):
    """The twin: log-ratios count whole."""
    monkeypatch.setattr(checks_module, "CLIP", 1e9)
    assert max(moved_by(places, hostile_rows(ROWS), monkeypatch)) > CLIP * np.sqrt(2)


def test_compiled_programs_do_not_tell_the_size_of_a_batch(places, monkeypatch):
    """Poisson batches of a check differ in size; what is compiled has always the same shape."""
    shapes, counted = set(), set()
    densities, added = checks_module.log_probs, checks_module.clipped_sum

    def watch(blueprint, parameters, rows):
        shapes.add(rows.shape)
        return densities(blueprint, parameters, rows)

    def count(candidate, reference):
        counted.add(len(candidate))
        return added(candidate, reference)

    monkeypatch.setattr(checks_module, "log_probs", watch)
    monkeypatch.setattr(checks_module, "clipped_sum", count)
    checks = Checks(make_batches("poisson", rows=400, batch_size=100), 1, 1.0)
    rows, noise = jnp.zeros((400, 3)), RoundedGaussian(Entropy.from_os())
    for step in range(30):
        checks.compare(*places, rows, entropy=Entropy.from_os(), noise=noise, step=step)
    assert shapes == {(checks.batches.slots, 3)}
    assert len(counted) > 1


def test_rows_whose_ratio_is_not_a_number_add_nothing():
    assert clipped_sum(np.array([np.nan, -np.inf]), np.zeros(2)) == -CLIP
    assert clipped_sum(np.full(1, -np.inf), np.full(1, -np.inf)) == 0
    assert clipped_sum(np.array([1e300, -1e300, 1.0]), np.zeros(3)) == 1.0


def test_sums_are_exact_in_any_order():
    rng = np.random.default_rng(0)
    ratios = rng.normal(size=10_000)
    shuffled = [rng.permutation(ratios) for _ in range(20)]
    assert len({clipped_sum(each, np.zeros(10_000)) for each in shuffled}) == 1


def noise_of(checks, draws=400):
    noise = RoundedGaussian(Entropy.from_os())
    drawn = [checks.release(np.zeros(2), noise, step=step) for step in range(draws)]
    return np.concatenate(drawn)


@pytest.fixture(scope="module")
def planned():
    return plan_checks(Budget(1.0, 1e-5), sampling="poisson", rows=9000, count=10)


def is_of_scale(drawn, deviation):
    band = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], drawn.size)
    return bool(band[0] <= np.sum((drawn / deviation) ** 2) <= band[1])


def test_noise_of_a_check_is_what_its_event_says(planned):
    event = planned.event(planned.count)
    deviation = event.noise_multiplier * CLIP * np.sqrt(2) / planned.batches.batch_size
    assert planned.deviation == pytest.approx(deviation)
    assert is_of_scale(noise_of(planned), deviation)


def test_noise_for_a_single_sum_is_caught(planned, monkeypatch):
    """The twin: noise as if a row moved one of the two sums."""
    deviation = planned.deviation
    monkeypatch.setattr(Checks, "bound", CLIP)
    assert not is_of_scale(noise_of(planned), deviation)


def share_of(checks, budget):
    """The part of the squared Gaussian budget that checks over all rows cost."""
    noise = checks.noise_multiplier
    events = [GaussianEvent(noise=noise, sensitivity=Sensitivity.of_sum(1.0), count=checks.count)]
    spent = epsilon_of(events, delta=budget.delta, neighbours="zero-out", accountant="gdp")
    same = [checks.event(checks.count)]
    priced = epsilon_of(same, delta=budget.delta, neighbours="zero-out", accountant="pld")
    assert priced == pytest.approx(spent, rel=1e-3)
    return (strength(Budget(spent, budget.delta)) / strength(budget)) ** 2


@pytest.mark.parametrize(("rows", "share"), [(500, MOST_SHARE), (60_000, LEAST_SHARE)])
def test_all_checks_cost_their_share(rows, share):
    budget = Budget(1.0, 1e-5)
    checks = plan_checks(budget, sampling="poisson", rows=rows, count=10)
    assert share_of(checks, budget) == pytest.approx(share, rel=0.01)


def test_between_the_limits_checks_are_as_fine_as_a_twentieth_nat():
    checks = plan_checks(Budget(1.0, 1e-5), sampling="poisson", rows=6_000, count=10)
    assert checks.deviation == pytest.approx(0.05)
    assert LEAST_SHARE < share_of(checks, Budget(1.0, 1e-5)) < MOST_SHARE


def test_large_tables_are_compared_on_batches():
    checks = plan_checks(Budget(1.0, 1e-5), sampling="poisson", rows=10**7, count=10)
    assert checks.batches.batch_size < 10**5
    assert checks.noise_multiplier >= 2
    assert checks.deviation < 1e-3


@pytest.mark.parametrize("steps", [1, 2, 7, 10, 60, 99])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_checks_are_spread_over_the_steps(steps, count):
    count = min(count, steps)
    checks = Checks(make_batches("poisson", rows=10, batch_size=10), count, 1.0)
    due = [step for step in range(1, steps + 1) if checks.is_due(step, steps=steps)]
    assert len(due) == count
    assert due[-1] == steps
    last = 0
    for step in range(1, steps + 1):
        assert checks.since(step, steps=steps) == step - last
        last = step if step in due else last


@pytest.mark.parametrize(
    ("gains", "chosen", "shortening"),
    [
        ((1.0, 0.5), 0, 1.0),
        ((0.9, 1.0), 0, 1.0),
        ((0.3, 1.0), 1, 0.6),
        ((0.01, 0.0), 0, 0.5),
        ((-1.0, -0.5), 2, 0.5),
    ],
)
def test_a_run_goes_on_while_steps_lead_and_shortens_those_that_gain_little(
    planned, gains, chosen, shortening
):
    assert planned.decide(np.asarray(gains)) == (chosen, shortening)


@pytest.mark.parametrize(("gains", "chosen"), [((0.9, 1.0), 1), ((1.0, 0.9), 0), ((-1, -2), 2)])
def test_the_last_check_takes_the_best(planned, gains, chosen):
    assert planned.decide(np.asarray(gains, float), is_last=True).chosen == chosen


def test_densities_of_pieces_are_those_of_rows(places):
    blueprint, parameters, _ = places
    rows = jnp.asarray(hostile_rows(7), jnp.float32)
    model = blueprint.assemble(parameters)
    expected = np.asarray([model.log_prob(row) for row in rows])
    np.testing.assert_allclose(log_probs(blueprint, parameters, rows), expected, rtol=1e-4)


def test_checks_are_read_back(planned):
    again = Checks.from_dict(planned.to_dict(), sampling="poisson", rows=9000)
    assert again == planned
    assert dataclasses.replace(again, count=3) != planned

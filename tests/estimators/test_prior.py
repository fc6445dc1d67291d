"""A prior pays its share, starts the flow where it stands, and survives a file."""

import numpy as np
import pytest

from dpflows import DPFlow, DPGaussianMixture, InputError, load
from dpflows.estimators.flow import PUBLIC_PRIOR
from dpflows.estimators.persistence import parameter_arrays
from dpflows.models.architectures import Architecture
from dpflows.models.density import Mixture
from dpflows.pipeline.initialisation import prior_arrays, prior_from, standardised
from dpflows.privacy.accounting import epsilon_of

RNG = np.random.default_rng(8)
CENTRES = np.array([[-2.0, 1.0], [2.0, 0.0], [0.0, -2.0]])
ROWS = (CENTRES[RNG.integers(0, 3, 3000)] + RNG.normal(0, 0.2, (3000, 2))).clip(-4, 4)
SMALL = Architecture("nsf", width=8, depth=1, blocks=1, knots=4)


def flow(**changes):
    settings = {
        "epsilon": 2.0,
        "delta": 1e-4,
        "bounds": (-4, 4),
        "architecture": SMALL,
        "steps": 5,
        "batch_size": 50,
        "learning_rate": 1e-6,
        "prior": "mixture",
    }
    return DPFlow(**(settings | changes))


def mixture(**changes):
    return DPGaussianMixture(**({"epsilon": 1.0, "delta": 1e-4, "bounds": (-4, 4)} | changes))


@pytest.fixture(scope="module")
def refined():
    return flow().fit(ROWS)


def test_the_prior_and_the_steps_share_one_budget(refined):
    promise = refined.guarantee_
    assert {event.purpose for event in promise.events} == {"mixture", "training"}
    assert 1.9 < promise.epsilon <= 2.0
    apart = sum(
        epsilon_of([e for e in promise.events if e.purpose == purpose], delta=promise.delta)
        for purpose in ("mixture", "training")
    )
    assert promise.epsilon < apart


@pytest.mark.long
def test_an_untrained_flow_is_as_good_as_its_prior(refined):
    plain = DPFlow(2.0, 1e-4, bounds=(-4, 4), architecture=SMALL, steps=5, batch_size=50).fit(ROWS)
    assert refined.score(ROWS) > plain.score(ROWS) + 0.5


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.long),
        pytest.param({"trainable_prior": True}, marks=pytest.mark.long),
        {"prior_share": 1.0},
    ],
)
def test_a_refined_prior_survives_a_file(changes, tmp_path):
    fitted = flow(**changes).fit(ROWS)
    fitted.save(tmp_path / "model.dpflow")
    again = load(tmp_path / "model.dpflow")
    np.testing.assert_allclose(again.score_samples(ROWS), fitted.score_samples(ROWS), rtol=1e-5)


def test_the_whole_budget_for_the_prior_leaves_no_steps():
    fitted = flow(prior_share=1.0).fit(ROWS)
    assert fitted.plan_.steps == 0
    assert {event.purpose for event in fitted.guarantee_.events} == {"mixture"}
    assert 1.9 < fitted.guarantee_.epsilon <= 2.0


def test_a_start_that_is_never_made_costs_nothing():
    plan = flow(prior_share=1.0, initialisation="private").plan(3000, 2)
    assert plan.guarantee().epsilon <= 2.0
    assert {event.purpose for event in plan.events} == {"mixture"}


@pytest.mark.parametrize(
    "name", ["private", pytest.param("paper-not-private", marks=pytest.mark.long)]
)
def test_a_start_from_the_rows_is_paid_for_or_stamped(name):
    fitted = flow(prior=None, initialisation=name).fit(ROWS)
    paid = "initialisation of layer 1" in {event.purpose for event in fitted.guarantee_.events}
    assert paid == fitted.guarantee_.is_private == (name == "private")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::dpflows.errors.RepeatedFitWarning")
def test_a_private_prior_that_is_given_counts(refined):
    given = mixture().fit(ROWS)
    fitted = flow(prior=given).fit(ROWS)
    assert set(given.guarantee_.events) < set(fitted.guarantee_.events)
    assert fitted.guarantee_.epsilon <= 2.0


@pytest.mark.long
def test_a_prior_without_privacy_stamps_what_is_made_of_it_unless_it_is_public():
    given = mixture(epsilon=float("inf")).fit(ROWS)
    assert not flow(prior=given).fit(ROWS).guarantee_.is_private
    public = flow(prior=given, prior_is_public=True).fit(ROWS)
    assert public.guarantee_.is_private
    assert public.guarantee_.caveats == (PUBLIC_PRIOR,)
    assert "prior_is_public" in public.privacy_statement()
    assert {event.purpose for event in public.guarantee_.events} == {"training"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::dpflows.errors.RepeatedFitWarning")
def test_training_moves_the_prior_only_on_request():
    still, moved = (
        flow(learning_rate=0.05, trainable_prior=trainable).fit(ROWS) for trainable in (False, True)
    )
    frozen, trained = (parameter_arrays(fitted.density_.model) for fitted in (still, moved))
    # log-weights, means, and the two halves of the inverse factors
    assert len(trained) == len(frozen) + 4
    start = moved.prior_.means
    after = [array for array in trained.values() if array.shape == start.shape]
    assert not any(np.allclose(array, start, atol=1e-3) for array in after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": "guess"}, "prior must be None"),
        ({"prior_share": 0.0}, "prior_share must be in"),
        ({"prior_share": 1.5}, "prior_share must be in"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(InputError, match=message):
        flow(**changes).fit(ROWS)


@pytest.mark.long
def test_a_prior_of_other_columns_is_refused():
    given = mixture(bounds=(-4, 4)).fit(ROWS[:, :1])
    with pytest.raises(InputError, match="prior must have 2 columns"):
        flow(prior=given).fit(ROWS)


def test_a_mixture_seen_through_itself_is_standardised():
    means = RNG.normal(5, 3, (4, 2))
    _, seen = standardised(Mixture(np.full(4, 0.25), means, np.tile(np.eye(2), (4, 1, 1))))
    rows = seen.sample(20_000, np.random.default_rng(1))
    assert rows.mean(axis=0) == pytest.approx(np.zeros(2), abs=0.05)
    assert rows.std(axis=0) == pytest.approx(np.ones(2), abs=0.05)
    assert prior_from(prior_arrays(seen)).means == pytest.approx(seen.means)

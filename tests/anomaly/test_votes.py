"""Answers follow the law they are charged for."""

import pytest
from scipy.stats import binomtest

from dpflows.anomaly import voting
from dpflows.anomaly.query_budget import QueryBudget
from dpflows.anomaly.voting import MECHANISMS, SparseVectorStream, VoteSettings, mechanism_for
from dpflows.errors import BudgetError, InputError, UnplannedReleaseError
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import NEIGHBOURS, VoteEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy

FALSE_ALARM = 1e-6
QUESTIONS = 1000
ONE_BY_ONE = ("exponential", "geometric")
every_law = pytest.mark.parametrize("name", ONE_BY_ONE)


def vote(voters=10, epsilon=0.6, neighbours="zero-out", alarms=1):
    return VoteSettings(voters, epsilon, neighbours, alarms)


@pytest.fixture
def free(monkeypatch):
    """A meter that counts charges and refuses none."""
    subject = QueryBudget(Budget(1.0, 1e-6), mechanism_for("geometric", vote()).event, "pld")
    monkeypatch.setattr(subject._gate, "limit", 10**9)
    return subject


def answers(mechanism, votes, *, queries, count=QUESTIONS):
    with mechanism.admitted(queries, count, Entropy.from_os()) as ask:
        return [ask(votes) for _ in range(count)]


def is_surprised(event, votes, given):
    """Whether so many yes answers contradict the event's chance."""
    return binomtest(sum(given), len(given), event.chance(votes)).pvalue < FALSE_ALARM


@every_law
@pytest.mark.parametrize("votes", [0, 4, 5, 7])
def test_answers_have_the_chance_that_is_priced(name, votes, free):
    """False alarms: one in a million for each of the eight cases."""
    mechanism = mechanism_for(name, vote())
    assert not is_surprised(mechanism.event, votes, answers(mechanism, votes, queries=free))


@every_law
def test_the_test_rejects_noise_of_half_the_size(name, free):
    loud = mechanism_for(name, vote(epsilon=1.2))
    honest = mechanism_for(name, vote())
    assert is_surprised(honest.event, 7, answers(loud, 7, queries=free))


@every_law
def test_an_answer_with_less_noise_than_was_charged_is_never_given(name, free, monkeypatch):
    real = voting.noisy_vote
    monkeypatch.setattr(
        voting, "noisy_vote", lambda *a, epsilon, **k: real(*a, epsilon=2 * epsilon, **k)
    )
    with pytest.raises(UnplannedReleaseError, match="not among the planned"):
        answers(mechanism_for(name, vote()), 7, count=1, queries=free)


@every_law
def test_each_answer_is_charged(name, free):
    answers(mechanism_for(name, vote()), 7, count=12, queries=free)
    assert free.taken() == 12


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_one_charge_costs_at_most_its_epsilon(name, neighbours):
    event = mechanism_for(name, vote(neighbours=neighbours)).event
    cost = epsilon_of([event], delta=1e-9, neighbours=neighbours)
    assert cost <= 0.6 * (1 + 1e-3)


@every_law
def test_the_price_is_that_of_the_law(name):
    event = mechanism_for(name, vote()).event
    assert isinstance(event, VoteEvent)
    assert (event.law, event.voters) == (name, 10)


def test_a_stream_is_charged_once_until_its_alarms_are_used_up(free):
    stream = mechanism_for("sparse-vector", vote(100, 20.0, alarms=2))
    assert answers(stream, 100, count=50, queries=free) == [True] * 50
    assert free.taken() == 1
    assert answers(stream, 0, count=5, queries=free) == [False] * 5
    assert free.taken() == 3


def test_a_stream_costs_what_its_own_event_says():
    settled = vote(10, 0.3, "add-remove", 3)
    stream = SparseVectorStream(settled)
    opened = stream._opened(0, Entropy.from_os())
    assert opened.event.epsilon == stream.event.epsilon


def test_what_a_stream_guarantees_is_kept_if_all_are_anomalies():
    stream = mechanism_for("sparse-vector", vote(100, 20.0, alarms=3))
    queries = QueryBudget(Budget(60.0, 1e-6), stream.event, "pld")
    certain = stream.guaranteed(queries)
    assert certain == 3 * queries.limit
    assert answers(stream, 0, count=4, queries=queries) == [False] * 4
    assert stream.guaranteed(queries) == certain - 4
    with pytest.raises(BudgetError, match="more"):
        answers(stream, 0, count=certain - 3, queries=queries)
    assert answers(stream, 0, count=certain - 4, queries=queries) == [False] * (certain - 4)
    assert stream.guaranteed(queries) == 0


def test_a_forked_process_opens_a_stream_of_its_own(free, monkeypatch):
    stream = mechanism_for("sparse-vector", vote(100, 20.0, alarms=2))
    answers(stream, 100, count=1, queries=free)
    monkeypatch.setattr("dpflows.anomaly.voting.os.getpid", lambda: -1)
    monkeypatch.setattr(free._counter, "_process", -1)
    answers(stream, 100, count=1, queries=free)
    assert free.taken() == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"voters": 0}, "k must be at least 1"),
        ({"epsilon": 0.0}, "epsilon_per_query must be a positive"),
        ({"epsilon": float("inf")}, "epsilon_per_query must be a positive"),
        ({"alarms": 0}, "alarms must be at least 1"),
        ({"voters": 20_000}, "k must be at most 2,000"),
        ({"epsilon": 1e-9}, "epsilon_per_query must be at least 0.0001"),
    ],
)
def test_terms_that_cannot_be_met_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        vote(**change)


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(InputError, match="mechanism must be one of"):
        mechanism_for("coin", vote())

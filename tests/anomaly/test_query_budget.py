"""No more is granted than the budget allows, whoever asks."""

import contextlib
import copy
import dataclasses
import pickle
import threading
import time

import pytest

from dpflows.anomaly.query_budget import MemoryCounter, QueryBudget
from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import StepFilter, epsilon_of
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.guarantee import Budget

PRICE = PureEvent(epsilon=Sensitivity.uniformly(0.05))
HUNDRED = Budget(
    epsilon_of([dataclasses.replace(PRICE, count=100)], delta=1e-6, neighbours="zero-out"), 1e-6
)


def queries(**settings):
    return QueryBudget(HUNDRED, PRICE, "pld", **settings)


def granted(subject, *, threads=8, requests=10_000):
    """How many of so many requests from so many threads are granted."""
    grants = []

    def ask():
        for _ in range(requests // threads):
            with contextlib.suppress(BudgetError):
                grants.append(subject.charge(1))

    crowd = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return grants


def test_of_ten_thousand_requests_from_eight_threads_a_hundred_are_granted():
    subject = queries()
    assert subject.limit == 100
    assert sorted(granted(subject)) == list(range(100))
    assert subject.remaining() == 0
    assert subject.spent() == pytest.approx(HUNDRED.epsilon)


def test_a_meter_without_its_lock_is_caught(monkeypatch):
    subject = queries()
    subject._lock = contextlib.nullcontext()
    honest = StepFilter.request

    def slow(self, count=1):
        time.sleep(1e-4)
        return honest(self, count)

    monkeypatch.setattr(StepFilter, "request", slow)
    assert sorted(granted(subject, requests=800)) != list(range(100))


def test_a_batch_is_granted_whole_or_not_at_all():
    subject = queries()
    assert subject.charge(60) == 0
    with pytest.raises(BudgetError, match="allows 40 more, but 41 were requested"):
        subject.charge(41)
    assert subject.charge(40) == 60
    with pytest.raises(BudgetError, match="allows 0 more"):
        subject.charge(1)


def test_what_was_spent_before_counts():
    subject = queries(counter=MemoryCounter(97))
    assert subject.remaining() == 3
    assert subject.charge(3) == 97


def test_nothing_is_spent_before_the_first_charge():
    assert queries().spent() == 0


def test_a_charge_that_cannot_be_written_is_not_granted():
    class FullDisk(MemoryCounter.__base__):
        @contextlib.contextmanager
        def opened(self):
            class Transaction:
                taken = 0

                def write(self, taken):
                    raise InputError("no room")

            yield Transaction()

    subject = QueryBudget(HUNDRED, PRICE, "pld", FullDisk())
    for _ in range(2):
        with pytest.raises(InputError, match="no room"):
            subject.charge(1)
    assert subject.taken() == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_meter_cannot_be_copied(duplicate):
    with pytest.raises(InputError, match="its own budget"):
        duplicate(queries())


def test_a_forked_copy_is_refused(monkeypatch):
    subject = queries()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(InputError, match="another process"):
        subject.charge(1)

"""What every store of a ledger must keep."""

import contextlib
import copy
import dataclasses
import threading
import time

import pytest

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import GaussianEvent, SampledGaussianEvent, SelectionEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger, Receipt, RunState
from dpflows.privacy.ledger.stores import STORES, open_store
from figures import note
from privacy.ledger.charges import DELTA, cap_for, query, store_of

DIGEST = "ab" * 32


@pytest.fixture
def ledger(place) -> Ledger:
    return Ledger(place, cap=cap_for(10), accountant="zcdp")


def test_the_stores_are_the_ones_tested_here():
    assert set(STORES) == {"file", "postgresql"}


def test_it_opens_again_with_what_it_was_made_with(place, ledger):
    again = Ledger(place)
    assert (again.identity, again.cap, again.accountant) == (
        ledger.identity,
        cap_for(10),
        "zcdp",
    )
    assert Ledger(place, cap=cap_for(10), accountant="zcdp").identity == ledger.identity
    assert len(ledger.identity) == 32
    assert [entry.state for entry in again.history()] == ["OPENED"]


@pytest.mark.parametrize(
    ("cap", "accountant"),
    [
        (Budget(7.0, DELTA), None),
        (dataclasses.replace(cap_for(10), delta=1e-7), None),
        (dataclasses.replace(cap_for(10), neighbours="replace-one"), None),
        (None, "pld"),
    ],
)
def test_another_cap_or_accountant_is_refused(place, ledger, cap, accountant):
    with pytest.raises(InputError, match="was fixed when it was created"):
        Ledger(place, cap=cap, accountant=accountant)


def test_none_is_made_without_a_cap(place):
    with pytest.raises(InputError, match="there is no ledger at .*give a cap"):
        Ledger(place)
    assert not open_store(place).exists()


@pytest.mark.parametrize(
    ("cap", "accountant", "complaint"),
    [
        (Budget(float("inf"), DELTA), "pld", "must be finite"),
        (Budget(1.0, DELTA), "gdp-clt", "gives only estimates; use one of pld"),
        (Budget(1.0, DELTA), "none", "accountant must be one of"),
    ],
)
def test_none_is_made_that_could_not_keep_its_promise(place, cap, accountant, complaint):
    with pytest.raises(InputError, match=complaint):
        Ledger(place, cap=cap, accountant=accountant)
    assert not open_store(place).exists()


def test_charges_add_up_to_the_cap_and_not_beyond(ledger):
    receipts = [ledger.reserve([query(count=2)], purpose="fit") for _ in range(5)]
    assert ledger.spent() == receipts[-1].epsilon == ledger.cap.epsilon
    assert ledger.remaining() == 0
    before = ledger.history()
    with pytest.raises(BudgetError, match="nothing was charged"):
        ledger.reserve([query()], purpose="fit")
    assert ledger.history() == before
    assert ledger.charged("fit") == 10
    assert ledger.odometer() == [(r.entry, r.epsilon) for r in receipts]
    ledger.verify()


def test_a_refusal_is_no_end_and_says_nothing_of_the_rows(ledger):
    with pytest.raises(BudgetError, match="0 is spent; this charge counts as epsilon"):
        ledger.reserve([query(5.0)], purpose="too much")
    ledger.reserve([query()], purpose="enough")


def test_room_is_asked_for_without_a_charge(ledger):
    ledger.require_room([query(count=10)])
    with pytest.raises(BudgetError):
        ledger.require_room([query(count=11)])
    assert [entry.state for entry in ledger.history()] == ["OPENED"]
    with ledger.held():
        ledger.reserve([query(count=10)], purpose="fit")
        with pytest.raises(BudgetError):
            ledger.require_room([query()])


def test_the_total_is_that_of_all_events_together(place):
    ledger = Ledger(place, cap=Budget(3.0, DELTA), accountant="gdp")
    for noise in (20.0, 30.0, 20.0):
        sums = GaussianEvent(noise=noise, sensitivity=Sensitivity.of_sum(1.0))
        ledger.reserve([sums], purpose="sum")
    events = [event for entry in ledger.history() for event in entry.events]
    assert ledger.spent() == pytest.approx(epsilon_of(events, delta=DELTA, accountant="gdp"))
    ledger.verify()


def test_an_event_without_a_price_under_the_caps_neighbours_fails_closed(place):
    ledger = Ledger(place, cap=Budget(3.0, DELTA, "add-remove"))
    fixed = SampledGaussianEvent(sampling="uniform", rows=100, batch_size=10, noise_multiplier=9.0)
    with pytest.raises(InputError, match="cannot compute the cost of a sampled-gaussian event"):
        ledger.reserve([fixed], purpose="fit")
    assert [entry.state for entry in ledger.history()] == ["OPENED"]


def test_the_caps_relation_decides_the_price(place):
    cap = dataclasses.replace(cap_for(4), neighbours="replace-one")
    ledger = Ledger(place, cap=cap, accountant="zcdp")
    sums = dataclasses.replace(query(), epsilon=Sensitivity.of_sum(0.01))
    ledger.reserve([sums], purpose="twice the price, four times the rho")
    with pytest.raises(BudgetError):
        ledger.reserve([sums], purpose="no room")


def test_a_run_goes_on_without_a_second_charge(place, ledger):
    first = ledger.reserve([query()], purpose="fit", run="night-7")
    assert Ledger(place).reserve([query()], purpose="fit", run="night-7") == first
    assert ledger.charged("fit") == 1
    for events, purpose in [([query(0.02)], "fit"), ([query()], "other")]:
        with pytest.raises(InputError, match="was charged for something else"):
            ledger.reserve(events, purpose=purpose, run="night-7")


def test_a_full_ledger_still_lets_a_run_go_on(ledger):
    first = ledger.reserve([query(count=10)], purpose="fit", run="night-7")
    assert ledger.reserve([query(count=10)], purpose="fit", run="night-7") == first


def test_a_released_run_is_over(ledger):
    receipt = ledger.reserve([query()], purpose="fit", run="night-7")
    assert ledger.state_of("night-7") == RunState("RESERVED")
    marked = ledger.release(receipt, artefact=DIGEST)
    assert ledger.state_of("night-7") == RunState("RELEASED", DIGEST)
    assert marked.epsilon == receipt.epsilon == ledger.spent()
    assert ledger.release(receipt, artefact=DIGEST) == marked
    assert ledger.release(marked, artefact=DIGEST) == marked
    with pytest.raises(InputError, match="released with another artefact"):
        ledger.release(receipt, artefact="cd" * 32)
    with pytest.raises(InputError, match="was already released"):
        ledger.reserve([query()], purpose="fit", run="night-7")
    assert [entry.label for entry in ledger.history()[1:]] == [
        "RESERVED night-7",
        "RELEASED night-7",
    ]


def test_only_its_own_receipts_count(ledger):
    receipt = ledger.reserve([query()], purpose="fit")
    with pytest.raises(InputError, match="is from another ledger"):
        ledger.release(dataclasses.replace(receipt, ledger="0" * 32))
    for changed in ({"head": DIGEST}, {"entry": 9}, {"run": "nobody"}, {"epsilon": 0.0}):
        with pytest.raises(InputError, match="the ledger was replaced by an older copy"):
            ledger.release(dataclasses.replace(receipt, **changed))
    assert ledger.state_of(receipt.run) == RunState("RESERVED")


def test_runs_that_are_not_named_are_all_different(ledger):
    runs = {ledger.reserve([query()], purpose="fit").run for _ in range(4)}
    assert len(runs) == 4
    assert ledger.state_of("unknown") is None


@pytest.mark.parametrize("purpose", ["", "x" * 201, "two\nlines", "\x1b[2J"])
def test_a_purpose_is_short_and_printable(ledger, purpose):
    with pytest.raises(InputError, match="purpose must"):
        ledger.reserve([query()], purpose=purpose)


@pytest.mark.parametrize("purpose", ["x" * 201, "two\nlines"])
def test_so_are_the_labels_of_events_also_inside_a_selection(ledger, purpose):
    inside = SelectionEvent(run=(query(purpose=purpose),), mean=3.0)
    for event in (query(purpose=purpose), inside):
        with pytest.raises(InputError, match="purpose must"):
            ledger.reserve([event], purpose="fit")


@pytest.mark.parametrize("run", ["", "x" * 101, "two words", "caf\u00e9", "a\tb"])
def test_a_run_is_short_and_plain(ledger, run):
    with pytest.raises(InputError, match="run must"):
        ledger.reserve([query()], purpose="fit", run=run)


def test_odd_requests_are_refused(ledger):
    with pytest.raises(InputError, match="events must not be empty"):
        ledger.reserve([], purpose="fit")
    receipt = ledger.reserve([query()], purpose="fit")
    with pytest.raises(InputError, match="artefact must be the SHA-256"):
        ledger.release(receipt, artefact="patient 4711")


def _fail_while_held(ledger: Ledger) -> None:
    with ledger.held():
        ledger.reserve([query()], purpose="vote")
        raise ZeroDivisionError


def test_what_is_held_counts_together_or_not_at_all(place, ledger):
    with ledger.held():
        ledger.reserve([query()], purpose="vote")
        with ledger.held():
            ledger.reserve([query(count=2)], purpose="vote")
        assert ledger.charged("vote") == 3
        assert ledger.spent() > 0
        assert len(ledger.history()) == 3
    assert Ledger(place).charged("vote") == 3
    with pytest.raises(ZeroDivisionError):
        _fail_while_held(ledger)
    assert ledger.charged("vote") == Ledger(place).charged("vote") == 3
    ledger.reserve([query()], purpose="vote")
    ledger.verify()


def test_a_refusal_inside_leaves_what_was_held(ledger):
    with ledger.held():
        ledger.reserve([query()], purpose="vote")
        with pytest.raises(BudgetError):
            ledger.reserve([query(5.0)], purpose="vote")
    assert ledger.charged("vote") == 1


def test_threads_share_one_ledger(place):
    ledger = Ledger(place, cap=cap_for(6), accountant="zcdp")
    granted: list[Receipt] = []

    def ask() -> None:
        for _ in range(3):
            with contextlib.suppress(BudgetError):
                granted.append(ledger.reserve([query()], purpose="thread"))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({receipt.run for receipt in granted}) == 6 == ledger.charged("thread")
    ledger.verify()


def test_two_that_are_made_at_once_are_one(place):
    made: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(Ledger(place, cap=cap_for(3), accountant="zcdp").identity)
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1


def test_a_ledger_is_not_copied(ledger):
    with pytest.raises(InputError, match="cannot be copied"):
        copy.deepcopy(ledger)


def test_many_entries_are_answered_at_once(place, timed):
    timed(place, 500)


@pytest.mark.long
def test_ten_thousand_entries_are_answered_at_once(place, timed):
    note(f"ledger_entries, {store_of(place)}", timed(place, 10_000))


@pytest.fixture
def timed():
    """Fill a ledger and time the answers of one that was just opened."""

    def measure(place: str, size: int) -> dict:
        filled = Ledger(place, cap=cap_for(size), accountant="zcdp")
        with filled.held():
            for _ in range(size - 1):
                filled.reserve([query()], purpose="fit")
        ledger = Ledger(place)
        start = time.perf_counter()
        left = ledger.remaining()
        seconds = time.perf_counter() - start
        assert 0 < left < ledger.cap.epsilon
        assert seconds < 0.2
        ledger.verify()
        return {"entries": size, "remaining_seconds": seconds}

    return measure

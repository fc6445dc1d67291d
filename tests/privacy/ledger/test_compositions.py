"""What a ledger grants: one fit for the whole cap, many by a filter, or what was declared."""

import dataclasses
import itertools
import re
import time

import pytest

from dpflows.errors import BudgetError, InputError
from dpflows.pipeline.training import make_plan
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import (
    ApproximateEvent,
    GaussianEvent,
    PureEvent,
    SampledGaussianEvent,
    Sensitivity,
)
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger
from dpflows.privacy.ledger.entries import ORIGIN, Row, chain, read_entry
from dpflows.privacy.ledger.stores import SQLiteStore
from dpflows.training.mixture_em import plan_mixture
from privacy.ledger.charges import query

CAP = Budget(1.0, 1e-6)


def steps_of(epsilon: float, delta: float = CAP.delta):
    """Gradient steps by the default rules."""
    return make_plan(Budget(epsilon, delta), rows=20_000, columns=4).events


def rounds_of(epsilon: float, delta: float = CAP.delta):
    """The rounds of a mixture by the default rules."""
    return plan_mixture(Budget(epsilon, delta), rows=20_000, columns=3).events


FITS = {"flow": steps_of, "mixture": rounds_of}
every_fit = pytest.mark.parametrize("fit", FITS)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "clinic.ledger", cap=CAP)


def gaussian(mu: float) -> GaussianEvent:
    return GaussianEvent(noise=1 / mu, sensitivity=Sensitivity.uniformly(1.0))


def refused(ledger: Ledger, events) -> str:
    with pytest.raises(BudgetError) as refusal:
        ledger.reserve(events, purpose="fit")
    assert "nothing was charged" in str(refusal.value)
    return str(refusal.value)


@every_fit
def test_one_fit_may_use_the_whole_cap_and_then_nothing_is_left(ledger, fit):
    assert ledger.remaining() == CAP.epsilon
    ledger.reserve(FITS[fit](CAP.epsilon), purpose="fit")
    assert ledger.spent() == pytest.approx(CAP.epsilon, rel=1e-3)
    assert ledger.remaining() == 0
    for event in (gaussian(0.001), query(1e-3)):
        assert "may use at most epsilon 0.0000" in refused(ledger, [event])
    ledger.verify()


@every_fit
@pytest.mark.parametrize("before", [1, 3])
def test_what_remains_can_be_spent_and_five_percent_more_cannot(ledger, fit, before):
    for _ in range(before):
        ledger.reserve(FITS["flow" if fit == "mixture" else "mixture"](0.3), purpose="fit")
    left = ledger.remaining()
    assert 0.2 < left < 0.98
    assert f"may use at most epsilon {left:.3f}"[:-1] in refused(ledger, FITS[fit](1.05 * left))
    ledger.reserve(FITS[fit](left), purpose="fit")
    assert CAP.epsilon * 0.97 < ledger.spent() <= CAP.epsilon
    ledger.verify()


def test_a_filter_costs_little_where_fits_are_gaussian(tmp_path):
    """Ten fits decided beforehand could be priced together; the filter grants almost as much."""
    cap = Budget(epsilon_of([*rounds_of(0.3)] * 10, delta=CAP.delta) * 1.02, CAP.delta)
    ledger = Ledger(tmp_path / "clinic.ledger", cap=cap)
    for _ in range(10):
        ledger.reserve(rounds_of(0.3), purpose="fit")


def test_pure_charges_alone_add_up_to_the_cap(ledger):
    for epsilon in (0.4, 0.35, 0.25):
        ledger.reserve([query(epsilon)], purpose="vote")
    assert ledger.spent() == pytest.approx(1.0, abs=1e-3)
    refused(ledger, [query(0.001)])
    ledger.verify()


def test_pure_charges_may_follow_a_fit(ledger):
    ledger.reserve(rounds_of(0.5), purpose="fit")
    for _ in range(4):
        ledger.reserve([query(0.1)], purpose="vote")
    assert ledger.spent() <= CAP.epsilon
    assert ledger.remaining() == 0
    assert "counts as epsilon" in refused(ledger, rounds_of(0.1))
    ledger.verify()


def test_a_refusal_says_what_a_charge_counts_for(ledger):
    ledger.reserve(rounds_of(0.5), purpose="fit")
    said = refused(ledger, [query(0.6)])
    assert "cap is epsilon 1 at delta 1e-06" in said
    assert "0.5 is spent" in said
    assert re.search(r"\(0\.6\d* alone", said)
    assert "\n" not in said


def test_a_charge_with_a_delta_of_its_own(ledger):
    """The first may have any; later ones share what is set aside of the cap's delta."""

    def search(delta: float):
        return [ApproximateEvent(epsilon=Sensitivity.uniformly(0.02), delta=delta)]

    ledger.reserve(search(2e-7), purpose="categories")
    ledger.reserve(search(5e-8), purpose="categories")
    assert "no finite cost" in refused(ledger, search(2e-7))
    ledger.verify()


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_accountants_without_a_proof_for_chosen_charges_are_refused(tmp_path, accountant):
    with pytest.raises(InputError, match="declare all charges beforehand"):
        Ledger(tmp_path / "clinic.ledger", cap=CAP, accountant=accountant)


def test_the_other_filters_say_what_remains(tmp_path):
    for accountant in ("rdp-filter", "zcdp", "gdp"):
        ledger = Ledger(tmp_path / accountant, cap=CAP, accountant=accountant)
        ledger.reserve(rounds_of(0.4), purpose="fit")
        left = ledger.remaining()
        assert 0.5 < left < 0.9
        refused(ledger, rounds_of(1.05 * left))
        ledger.reserve(rounds_of(left), purpose="fit")
        ledger.verify()


def test_a_charge_with_known_prices_takes_less_than_fifty_milliseconds(ledger):
    """The fastest of five counts, so that a busy machine raises no false alarm."""
    steps, durations = steps_of(0.1), []
    ledger.reserve(steps, purpose="fit")
    ledger.reserve(steps, purpose="fit")
    for count in range(1, 6):
        started = time.perf_counter()
        ledger.require_room([*steps, gaussian(0.01 / count)] if count == 1 else steps)
        durations.append(time.perf_counter() - started)
    assert min(durations) < 0.05


# Declared beforehand


@pytest.fixture
def declared(tmp_path) -> Ledger:
    return Ledger(tmp_path / "declared.ledger", cap=CAP, composition="declared")


def test_declared_charges_are_priced_together_and_granted_once_each(declared, tmp_path):
    charges = [[query(0.3)], [query(0.3)], [gaussian(0.05)]]
    declared.declare(charges)
    whole = epsilon_of([event for charge in charges for event in charge], delta=CAP.delta)
    assert declared.spent() == pytest.approx(whole)
    again = Ledger(tmp_path / "declared.ledger")
    again.declare(charges[::-1])
    assert (again.composition, len(again.history())) == ("declared", 2)
    assert declared.remaining() == pytest.approx(0.3, abs=1e-3)
    receipts = [again.reserve([e], purpose="any") for e in (gaussian(0.05), query(0.3))]
    assert receipts[-1].epsilon == pytest.approx(whole)
    again.reserve([query(0.3)], purpose="another word")
    assert again.remaining() == 0
    assert "not among those declared" in refused(again, [query(0.3)])
    again.verify()


def test_what_was_not_declared_is_refused(declared):
    with pytest.raises(InputError, match="none is declared yet"):
        declared.reserve([query(0.1)], purpose="fit")
    with pytest.raises(BudgetError, match="would cost"):
        declared.declare([[query(0.6)], [query(0.6)]])
    declared.declare([[query(0.2), query(0.1)], [gaussian(0.05)]])
    for other in (query(0.2), query(0.1), gaussian(0.04)):
        refused(declared, [other])
    with pytest.raises(InputError, match="has another declaration"):
        declared.declare([[query(0.1)]])
    with pytest.raises(InputError, match="must not be empty"):
        declared.declare([[]])


def test_a_declaration_is_tighter_than_a_filter(tmp_path):
    """Steps with few rows and little noise have a loss that no Gaussian describes well."""
    few = SampledGaussianEvent(
        sampling="poisson", rows=20_000, batch_size=100, noise_multiplier=0.9, count=50
    )
    charges = [[few], [few]]
    adaptive = Ledger(tmp_path / "a.ledger", cap=CAP)
    adaptive.reserve([few], purpose="fit")
    refused(adaptive, [few])
    declared = Ledger(tmp_path / "d.ledger", cap=CAP, composition="declared")
    declared.declare(charges)
    for charge in charges:
        declared.reserve(charge, purpose="fit")


def test_compositions_are_fixed_and_do_not_mix(ledger, declared, tmp_path):
    with pytest.raises(InputError, match="does not take declarations"):
        ledger.declare([[query(0.1)]])
    with pytest.raises(InputError, match="composition was fixed when it was created"):
        Ledger(tmp_path / "clinic.ledger", composition="declared")
    with pytest.raises(InputError, match="composition must be one of"):
        Ledger(tmp_path / "new.ledger", cap=CAP, composition="both")
    with pytest.raises(InputError, match="is a filter"):
        Ledger(tmp_path / "x", cap=CAP, composition="declared", accountant="gdp-filter")


# What is forged

FORGERIES = [
    {"epsilon": 0.3},
    {"mu": 0.01},
    {"mu": None, "pure": None},
    {"mu_cap": 0.9},
    {"pure_cap": 0.9},
    {"pure": 0.0},
    {"slack": 0.0},
    {"remaining": 0.9},
]


@pytest.mark.parametrize("changes", FORGERIES)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_rows_that_claim_less_are_found_though_chained_anew(ledger, tmp_path, changes, place):
    ledger.reserve(steps_of(0.3), purpose="fit")
    ledger.reserve(steps_of(0.3), purpose="fit")
    ledger.reserve([query(0.01)], purpose="vote")
    honest = ledger.history()
    entry = honest[place]
    inside = {
        name: value for name, value in changes.items() if name not in ("epsilon", "remaining")
    }
    position = dataclasses.replace(entry.position, **inside)
    forged = dataclasses.replace(
        entry, position=position, **{n: v for n, v in changes.items() if n not in inside}
    )
    if (position, forged.epsilon) == (entry.position, entry.epsilon) and forged == entry:
        pytest.skip("this row says so anyway")
    if position.pure == 0.0 == (entry.position.pure or 0.0):
        pytest.skip("this row says so anyway")
    # The other rows stay as they are: whoever makes them fit must lower them too.
    written = [*honest[:place], forged, *honest[place + 1 :]]
    with pytest.raises(InputError, match="entry|was changed"):
        _written(tmp_path / "forged.ledger", written).verify()


def _written(path, entries) -> Ledger:
    head, store = ORIGIN, SQLiteStore(str(path))
    with store.creating() as stored:
        for entry in entries:
            row = entry.chained_to(head)
            stored.append(row)
            head = row.head
    return Ledger(path)


# Ledgers of version 0.1: their rows, byte for byte

_OLD = (
    '{"accountant":"pld","cap":{"delta":1e-06,"epsilon":1.0,"neighbours":"zero-out"},"entry":1,'
    '"epsilon":0.0,"format":1,"ledger":"a58613813055b5d2e108e2a97c8e8905","state":"OPENED",'
    '"time":"2026-11-17T11:42:51Z"}',
    '{"entry":2,"epsilon":0.39685742702508064,"events":[{"count":1,"kind":"gaussian","noise":10.0,'
    '"purpose":"","sensitivity":{"add_remove":1.0,"replace_one":2.0,"zero_out":1.0}}],'
    '"neighbours":"zero-out","purpose":"fit","run":"night-0","state":"RESERVED",'
    '"time":"2026-11-17T11:42:52Z"}',
    '{"artefact":"abababababababababababababababababababababababababababababababab","entry":3,'
    '"epsilon":0.39685742702508064,"run":"night-0","state":"RELEASED",'
    '"time":"2026-11-17T11:42:52Z"}',
    '{"entry":4,"epsilon":0.6567434950961151,"events":[{"count":1,"kind":"gaussian","noise":8.0,'
    '"purpose":"","sensitivity":{"add_remove":1.0,"replace_one":2.0,"zero_out":1.0}}],'
    '"neighbours":"zero-out","purpose":"fit","run":"night-1","state":"RESERVED",'
    '"time":"2026-11-17T11:42:52Z"}',
    '{"entry":5,"epsilon":0.8857256049020347,"events":[{"count":1,"epsilon":{"add_remove":0.25,'
    '"replace_one":0.25,"zero_out":0.25},"kind":"pure","purpose":""}],"neighbours":"zero-out",'
    '"purpose":"fit","run":"night-2","state":"RESERVED","time":"2026-11-17T11:42:52Z"}',
)
_OLD_HEAD = "011ec35b21e1d3b4b39f3920fda1c92349dda127298bf8b613e907384bdea33f"


def _old_ledger(path, rows: int) -> Ledger:
    heads = list(itertools.accumulate(_OLD[:rows], chain, initial=ORIGIN))[1:]
    with SQLiteStore(str(path)).creating() as stored:
        for number, (body, head) in enumerate(zip(_OLD, heads, strict=False), start=1):
            stored.append(Row(number, body, head))
    assert heads[3] == _OLD_HEAD
    return Ledger(path, cap=CAP, accountant="pld")


def test_an_old_ledger_opens_and_goes_on_with_the_filter(tmp_path):
    ledger = _old_ledger(tmp_path / "old.ledger", 4)
    ledger.verify()
    assert (ledger.spent(), ledger.composition) == (0.6567434950961151, "adaptive")
    left = ledger.remaining()
    assert 0.5 < left < 0.75
    ledger.release(ledger.reserve([gaussian(0.125)], purpose="fit", run="night-9"))
    with pytest.raises(InputError, match="was charged for something else"):
        ledger.reserve([gaussian(0.125)], purpose="fit", run="night-1")
    assert ledger.remaining() < left
    refused(ledger, [gaussian(0.2)])
    again = Ledger(tmp_path / "old.ledger")
    again.reserve([gaussian(0.05)], purpose="fit")
    again.verify()
    assert read_entry(Row(1, _OLD[0], chain(ORIGIN, _OLD[0])), ORIGIN).to_dict()["format"] == 1


def test_an_old_ledger_that_passes_its_cap_by_the_filter_is_full(tmp_path):
    ledger = _old_ledger(tmp_path / "old.ledger", 5)
    ledger.verify()
    assert ledger.remaining() == 0
    assert "made by version 0.1" in refused(ledger, [gaussian(0.01)])


def test_pure_events_in_no_order_surprise_the_filter(ledger):
    """A long row of charges of all kinds: the ledger stays whole, and within its cap."""
    kinds = [gaussian(0.02), query(0.005), PureEvent(epsilon=Sensitivity.uniformly(0.001), count=5)]
    for _ in range(20):
        for event in kinds:
            ledger.reserve([event], purpose="any")
    assert ledger.spent() < CAP.epsilon
    ledger.verify()

"""What must hold for every event, under every accountant and relation that prices it."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.privacy.accounting import ACCOUNTANTS, delta_of, epsilon_of
from dpflows.privacy.events import (
    NEIGHBOURS,
    ApproximateEvent,
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
    SelectionEvent,
    Sensitivity,
    VoteEvent,
    ZCDPEvent,
    event_from_dict,
)

UNIT = Sensitivity.of_sum(1.0)
DELTA = 1e-5


def sampled(**changes) -> SampledGaussianEvent:
    settings = {"sampling": "poisson", "rows": 2000, "batch_size": 40, "noise_multiplier": 1.3}
    return SampledGaussianEvent(**(settings | changes))


def gaussian(noise: float = 4.0) -> GaussianEvent:
    return GaussianEvent(noise=noise, sensitivity=UNIT)


def scaled(factor: float) -> Sensitivity:
    return Sensitivity(factor, factor, 2 * factor)


def vote(law: str, epsilon: float, *, turned: float = 1.0, voters: int = 10) -> VoteEvent:
    sensitivity = Sensitivity(turned, turned, 2 * turned)
    return VoteEvent(voters=voters, epsilon=epsilon, law=law, sensitivity=sensitivity)


#: Each event as a function of how costly it is: a larger argument must cost more.
EVENTS = {
    "gaussian": lambda cost: gaussian(6.0 / cost),
    "laplace": lambda cost: LaplaceEvent(scale=8.0 / cost, sensitivity=UNIT),
    "discrete-laplace": lambda cost: DiscreteLaplaceEvent(scale=8.0 / cost, sensitivity=UNIT),
    "bounded-range": lambda cost: BoundedRangeEvent(epsilon=scaled(0.2 * cost)),
    "pure": lambda cost: PureEvent(epsilon=scaled(0.1 * cost)),
    "approximate": lambda cost: ApproximateEvent(epsilon=scaled(0.1 * cost), delta=1e-7 * cost),
    "zcdp": lambda cost: ZCDPEvent(rho=Sensitivity(0.01 * cost, 0.01 * cost, 0.04 * cost)),
    "poisson": lambda cost: sampled(noise_multiplier=1.3 / cost),
    "poisson-rate": lambda cost: sampled(batch_size=round(40 * cost)),
    "poisson-capped": lambda cost: sampled(noise_multiplier=1.3 / cost, batch_cap=60),
    "uniform": lambda cost: sampled(noise_multiplier=2.6 / cost, sampling="uniform"),
    "uniform-rate": lambda cost: sampled(
        noise_multiplier=2.6, sampling="uniform", batch_size=round(40 * cost)
    ),
    "vote-exponential": lambda cost: vote("exponential", 0.2 * cost),
    "vote-geometric": lambda cost: vote("geometric", 0.1 * cost),
    "vote-odd": lambda cost: vote("geometric", 0.1 * cost, voters=9),
    "vote-turned": lambda cost: vote("exponential", 0.2, turned=round(4 * cost)),
    "selection": lambda cost: SelectionEvent(run=(gaussian(20.0 / cost),), mean=4.0, shape=1.0),
    "selection-candidates": lambda cost: SelectionEvent(
        run=(gaussian(40.0),),
        candidates=((gaussian(20.0 / cost),), (sampled(),)),
        mean=4.0,
        shape=1.0,
    ),
    "selection-failing": lambda cost: SelectionEvent(
        run=(gaussian(20.0 / cost), ApproximateEvent(epsilon=scaled(0.0), delta=1e-8)),
        mean=4.0,
        shape=1.0,
    ),
    "selection-mean": lambda cost: SelectionEvent(run=(gaussian(20.0),), mean=4.0 * cost),
}

every_event = pytest.mark.parametrize("name", EVENTS)
every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS)
every_relation = pytest.mark.parametrize("neighbours", NEIGHBOURS)


def priced(events: list[Event], accountant: str, neighbours: str) -> float | None:
    try:
        return epsilon_of(events, delta=DELTA, neighbours=neighbours, accountant=accountant)
    except InputError as refusal:
        words = str(refusal)
    assert "cannot compute the cost" in words
    assert "\n" not in words
    return None


@every_event
def test_json_round_trip(name):
    event = EVENTS[name](1.0)
    text = json.dumps(event.to_dict(), allow_nan=False)
    assert event_from_dict(json.loads(text)) == event


@every_event
@every_relation
def test_the_default_accountant_prices_it_unless_the_relation_makes_no_sense(name, neighbours):
    expected = not (name.startswith("uniform") and neighbours == "add-remove")
    assert (priced([EVENTS[name](1.0)], "pld", neighbours) is not None) == expected


@every_event
@every_accountant
@every_relation
def test_k_at_once_equals_k_times_once(name, accountant, neighbours):
    event = EVENTS[name](1.0)
    at_once = priced([dataclasses.replace(event, count=5)], accountant, neighbours)
    one_by_one = priced([event] * 5, accountant, neighbours)
    labelled = [dataclasses.replace(event, purpose=f"part {i}", count=i) for i in (2, 3)]
    assert at_once == one_by_one
    assert at_once == priced(labelled, accountant, neighbours)


@every_event
def test_composing_by_hand_agrees_with_counting(name):
    """The count must not be dropped: composing unlike labels of the same price adds up."""
    event = EVENTS[name](1.0)
    nearly = EVENTS[name](1.0 + 1e-9)
    mixed = priced([event, nearly, dataclasses.replace(event, count=2)], "pld", "zero-out")
    whole = priced([dataclasses.replace(event, count=4)], "pld", "zero-out")
    assert mixed == pytest.approx(whole, rel=2e-3)


@every_event
@every_accountant
@every_relation
def test_more_never_costs_less(name, accountant, neighbours):
    once = priced([EVENTS[name](1.0)], accountant, neighbours)
    dearer = priced([EVENTS[name](1.25)], accountant, neighbours)
    longer = priced([dataclasses.replace(EVENTS[name](1.0), count=3)], accountant, neighbours)
    mixed = priced([EVENTS[name](1.0), gaussian(30.0)], accountant, neighbours)
    if once is None:
        assert dearer is None
        assert longer is None
        return
    assert once <= dearer
    assert once <= longer
    assert mixed is None or once <= mixed


@settings(max_examples=12, deadline=None)
@given(
    noise=st.floats(0.4, 20),
    rate=st.integers(1, 400),
    steps=st.integers(1, 3000),
    factor=st.floats(1.0, 3.0),
    neighbours=st.sampled_from(NEIGHBOURS),
)
def test_sampled_steps_are_monotone(noise, rate, steps, factor, neighbours):
    """More steps, a larger rate or less noise never lower epsilon, on any grid."""

    def cost(noise: float, rate: int, steps: int) -> float:
        event = sampled(noise_multiplier=noise, batch_size=rate, count=steps)
        return epsilon_of([event], delta=DELTA, neighbours=neighbours)

    base = cost(noise, rate, steps)
    assert base <= cost(noise / factor, rate, steps) * (1 + 1e-6) + 1e-9
    assert base <= cost(noise, math.ceil(rate * factor), steps) * (1 + 1e-6) + 1e-9
    assert base <= cost(noise, rate, math.ceil(steps * factor)) * (1 + 1e-6) + 1e-9


@every_event
def test_relations_are_ordered(name):
    """Replacing a row is never cheaper than blanking it."""
    blank = priced([EVENTS[name](1.0)], "pld", "zero-out")
    replace = priced([EVENTS[name](1.0)], "pld", "replace-one")
    assert blank <= replace


@every_event
def test_delta_and_epsilon_are_inverse(name):
    event = EVENTS[name](1.0)
    epsilon = epsilon_of([event], delta=DELTA)
    if epsilon > 0:
        assert delta_of([event], epsilon=epsilon) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: gaussian(0.0), "noise"),
        (lambda: gaussian(math.nan), "noise"),
        (lambda: LaplaceEvent(scale=-1.0, sensitivity=UNIT), "scale"),
        (lambda: DiscreteLaplaceEvent(scale=math.inf, sensitivity=UNIT), "scale"),
        (lambda: ApproximateEvent(epsilon=UNIT, delta=1.0), "delta"),
        (lambda: sampled(noise_multiplier=0.0), "noise_multiplier"),
        (lambda: sampled(batch_size=2001), "batch_size"),
        (lambda: sampled(batch_size=0), "batch_size"),
        (lambda: sampled(batch_cap=0), "batch_cap"),
        (lambda: sampled(sampling="uniform", batch_cap=50), "batch_cap"),
        (lambda: sampled(count=0), "count"),
        (lambda: vote("geometric", 0.0), "epsilon"),
        (lambda: vote("geometric", 1.0, voters=0), "voters"),
        (lambda: vote("geometric", 1.0).chance(11), "votes"),
        (lambda: event_from_dict(vote("geometric", 1.0).to_dict() | {"law": "flat"}), "law"),
        (lambda: event_from_dict(vote("geometric", 1.0).to_dict() | {"voters": 2.5}), "voters"),
        (lambda: SelectionEvent(run=(), mean=0.0), "mean"),
        (lambda: SelectionEvent(run=(), mean=2.0, shape=-0.5), "shape"),
        (lambda: Sensitivity(1.0, -1.0, 1.0), "add_remove"),
        (lambda: Sensitivity(1.0, 1.0, math.nan), "replace_one"),
        (lambda: event_from_dict({"kind": "unheard-of"}), "kind"),
        (lambda: event_from_dict({"kind": "gaussian"}), "noise"),
        (lambda: event_from_dict({"kind": "pure", "epsilon": "much"}), "event"),
        (lambda: event_from_dict(gaussian().to_dict() | {"count": 1.5}), "count"),
        (lambda: event_from_dict({"kind": ["pure"]}), "event"),
    ],
)
def test_bad_input_is_one_line_that_names_the_parameter(make, parameter):
    with pytest.raises(InputError, match=parameter) as refusal:
        make()
    assert "\n" not in str(refusal.value)

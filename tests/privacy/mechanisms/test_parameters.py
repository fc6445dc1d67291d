"""Seeds leave a stamp; bad parameters get one line; streams stop when they must."""

import math

import numpy as np
import pytest

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.events import Sensitivity
from dpflows.privacy.mechanisms import (
    SparseVector,
    clipped_moments,
    discover_categories,
    exponential_mechanism,
    noisy_count,
    noisy_histogram,
    noisy_vote,
    private_bounds,
    private_quantile,
    report_noisy_max,
    select_best,
    statistics,
)
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)
EDGES = np.array([-1.0, 0.0, 0.5, 1.0])
SPREAD = np.concatenate([np.full(200, -0.5), np.full(200, 0.5)])[:, None]

SEEDED = {
    "count": lambda e: noisy_count(np.ones(9), scale=3.0, entropy=e),
    "histogram": lambda e: noisy_histogram(np.ones(9), EDGES, scale=3.0, entropy=e),
    "quantile": lambda e: private_quantile(np.ones(9), EDGES, fraction=0.5, scale=9.0, entropy=e),
    "bounds": lambda e: private_bounds(np.ones(900), scale=3.0, entropy=e),
    "categories": lambda e: discover_categories(["a"] * 99, scale=3.0, delta=0.01, entropy=e),
    "moments": lambda e: clipped_moments(
        SPREAD, np.array([-1.0]), np.array([1.0]), noise=3.0, entropy=e
    ),
    "exponential": lambda e: exponential_mechanism(
        np.zeros(50), sensitivity=UNIT, scale=3.0, entropy=e
    ),
    "noisy max": lambda e: report_noisy_max(np.zeros(50), sensitivity=UNIT, scale=3.0, entropy=e),
    "geometric vote": lambda e: noisy_vote(5, 9, epsilon=0.3, entropy=e),
    "exponential vote": lambda e: noisy_vote(5, 9, epsilon=0.3, law="exponential", entropy=e),
    "selection": lambda e: select_best(lambda i: (i, 0.0), 50, run_events=(), mean=5.0, entropy=e),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_test_seed_repeats_itself_and_leaves_its_stamp(name):
    one, two = (SEEDED[name](Entropy.insecure(5)) for _ in range(2))
    assert repr(one.value) == repr(two.value)
    assert one.stamp == TEST_SEED_STAMP
    assert SEEDED[name](OS).stamp == ""


@pytest.mark.parametrize(
    ("attempt", "parameter"),
    [
        (lambda: noisy_count(np.ones(3), scale=0.0, entropy=OS), "scale"),
        (lambda: noisy_histogram(np.ones(3), EDGES, scale=-1.0, entropy=OS), "scale"),
        (lambda: noisy_histogram(np.ones(3), EDGES[::-1], scale=1.0, entropy=OS), "edges"),
        (lambda: noisy_histogram(np.ones(3), EDGES[:1], scale=1.0, entropy=OS), "edges"),
        (
            lambda: private_quantile(np.ones(3), EDGES, fraction=1.0, scale=1.0, entropy=OS),
            "fraction",
        ),
        (lambda: private_bounds(np.ones(3), scale=1.0, miss=0.0, entropy=OS), "miss"),
        (lambda: discover_categories(["a"], scale=1.0, delta=0.0, entropy=OS), "delta"),
        (
            lambda: clipped_moments(SPREAD, np.ones(1), np.ones(1), noise=1.0, entropy=OS),
            "lower",
        ),
        (
            lambda: clipped_moments(SPREAD, np.zeros(1), np.ones(1), noise=0.0, entropy=OS),
            "noise",
        ),
        (lambda: noisy_vote(5, 3, epsilon=1.0, entropy=OS), "votes"),
        (lambda: noisy_vote(-1, 3, epsilon=1.0, law="exponential", entropy=OS), "votes"),
        (lambda: noisy_vote(0, 0, epsilon=1.0, entropy=OS), "voters"),
        (lambda: noisy_vote(1, 3, epsilon=0.0, entropy=OS), "epsilon"),
        (lambda: noisy_vote(1, 3, epsilon=1.0, law="flat", entropy=OS), "law"),
        (
            lambda: exponential_mechanism(np.zeros(0), sensitivity=UNIT, scale=1.0, entropy=OS),
            "scores",
        ),
        (
            lambda: SparseVector(0.0, sensitivity=UNIT, epsilon=0.0, positives=1, entropy=OS),
            "epsilon",
        ),
        (
            lambda: SparseVector(0.0, sensitivity=UNIT, epsilon=1.0, positives=0, entropy=OS),
            "positives",
        ),
        (lambda: select_best(lambda i: (i, 0.0), 0, run_events=(), mean=2.0, entropy=OS), "cand"),
        (lambda: select_best(lambda i: (i, 0.0), 1, run_events=(), mean=1.0, entropy=OS), "mean"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(attempt, parameter):
    with pytest.raises(InputError, match=parameter) as refusal:
        attempt()
    assert "\n" not in str(refusal.value)


def test_a_sparse_vector_stops_after_its_positives():
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=50.0, positives=2, entropy=OS)
    assert [stream.exceeds(v) for v in (100.0, -100.0, math.nan, math.inf)] == [
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(BudgetError, match="positive answers"):
        stream.exceeds(0.0)


def test_the_discovery_threshold_keeps_its_delta():
    """The exact tail of the noise at the threshold is at most delta, and not far below."""
    for scale in (0.3, 1.0, 20.0):
        for delta in (1e-3, 1e-9):
            gap = statistics.discovery_threshold(scale, delta) - 1
            tail = math.exp(-gap / scale) / (1 + math.exp(-1 / scale))
            assert tail <= delta
            assert gap == 1 or tail * math.exp(1 / scale) > delta

"""Noise whose every rounding is that of the real sum."""

import os

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpflows.errors import InputError
from dpflows.privacy import randomness as mechanism
from dpflows.privacy.randomness import ERROR, LATTICE_BITS, Entropy, RoundedGaussian, lattice

#: A right sampler fails a statistical test below with at most this probability.
FALSE_ALARM = 1e-6


@pytest.fixture
def noise():
    return RoundedGaussian(Entropy.insecure(5))


def exact_normal(normals, at):
    """The normal of the middle of the interval that 64 bits leave, with 200 bits."""
    pair = at % len(normals.radius)
    with mpmath.workprec(200):
        u = mpmath.ldexp(mpmath.mpf(2 * int(normals.radius[pair]) + 1), -65)
        turn = mpmath.ldexp(mpmath.mpf(int(normals.angle[pair])), -63)
        wave = mpmath.cospi if at < len(normals.radius) else mpmath.sinpi
        return mpmath.sqrt(-2 * mpmath.log(u)) * wave(turn)


def edges():
    """Bits at the ends of what double precision may decide, and at every quarter turn."""
    low, high = 2**42, 2**64 - 2**42
    radii = [low, low + 1, high, high - 1, 2**63, 2**62, 2**50, 2**64 - 2**45]
    angles = [0, 1, 2**61, 2**62 - 1, 2**62, 2**62 + 1, 2**63, 3 * 2**62, 2**64 - 1]
    return np.array([(r, a) for r in radii for a in angles], dtype=np.uint64).T


def test_double_precision_is_as_good_as_is_claimed(noise):
    """A tenth of the claimed error is left for the bits that are not drawn yet."""
    normals = noise.normals(4000, step=0)
    gaps = [abs(exact_normal(normals, at) - float(v)) for at, v in enumerate(normals.values)]
    assert max(gaps) < ERROR / 10


def with_bits(monkeypatch, noise, radius, angle):
    """The normals of given first bits; all further bits are zero."""
    bits = np.concatenate([radius, angle]).astype(np.uint64).tobytes()
    further = lambda part, count: bits if part == 0 else bytes(count)  # noqa: E731
    monkeypatch.setattr(RoundedGaussian, "_stream", lambda _, step, part, n: further(part, n))
    return noise.normals(2 * len(radius), step=0)


def test_double_precision_holds_at_the_edges(noise, monkeypatch):
    normals = with_bits(monkeypatch, noise, *edges())
    gaps = [abs(exact_normal(normals, at) - float(v)) for at, v in enumerate(normals.values)]
    # near u = 1 the rounding of u itself is the largest part of the error
    assert max(gaps) < ERROR / 2


def test_extreme_bits_are_followed_by_more(noise, monkeypatch):
    asked = []
    right = RoundedGaussian._precisely

    def noted(self, normals, at, *, step):
        asked.append(at)
        return right(self, normals, at, step=step)

    monkeypatch.setattr(RoundedGaussian, "_precisely", noted)
    radius = np.array([0, 2**42 - 1, 2**64 - 2**42 + 1, 2**64 - 1, 2**63], dtype=np.uint64)
    normals = with_bits(monkeypatch, noise, radius, radius)
    assert sorted(asked) == [0, 1, 2, 3, 5, 6, 7, 8]
    # with zeros after the first 64, u is 2^-257 and no smaller
    assert np.hypot(normals.values[0], normals.values[5]) == pytest.approx(
        np.sqrt(2 * 257 * np.log(2))
    )


def test_the_slow_way_rounds_as_the_fast_one(noise):
    """Where double precision decides, more bits change nothing."""
    sums = np.random.default_rng(1).normal(size=400) * 100
    normals = noise.normals(len(sums), step=7)
    fast = noise.rounded(sums, normals, scale=0.7, step=7)
    slow = [
        noise._nearest(float(value), normals, at, scale=0.7, step=7) * lattice(0.7)
        for at, value in enumerate(sums)
    ]
    np.testing.assert_array_equal(fast, slow)


def test_sums_near_the_middle_of_two_points_take_the_slow_way(noise, monkeypatch):
    asked = []
    right = RoundedGaussian._nearest

    def noted(self, value, normals, at, **rest):
        asked.append(at)
        return right(self, value, normals, at, **rest)

    monkeypatch.setattr(RoundedGaussian, "_nearest", noted)
    normals = noise.normals(6, step=2)
    middles = (np.floor(normals.values / lattice(1.0)) + 0.5) * lattice(1.0)
    noise.rounded(middles - normals.values, normals, scale=1.0, step=2)
    assert asked == list(range(6))


@pytest.mark.parametrize("scale", [1e-3, 0.7, 1.0, 55.0])
def test_every_release_lies_on_a_lattice_that_the_scale_fixes(noise, scale):
    width = lattice(scale)
    assert scale / 2 ** (LATTICE_BITS + 1) < width <= scale / 2**LATTICE_BITS
    points = noise.add(np.linspace(-3, 3, 501), scale=scale, step=0) / width
    assert (points == np.rint(points)).all()


def looks_normal(values):
    """Kolmogorov-Smirnov on all, and the chance of what lies beyond four deviations."""
    tail = int((np.abs(values) > 4).sum())
    chance = stats.binomtest(tail, len(values), 2 * stats.norm.sf(4)).pvalue
    return min(stats.kstest(values, "norm").pvalue, chance) > FALSE_ALARM / 2


def test_draws_are_normal():
    values = RoundedGaussian(Entropy.from_os()).add(np.zeros(500_001), scale=1.0, step=0)
    assert looks_normal(values)


def test_a_lost_tail_would_be_caught():
    values = RoundedGaussian(Entropy.from_os()).add(np.zeros(500_001), scale=1.0, step=0)
    assert not looks_normal(np.clip(values, -4, 4))


def test_both_halves_of_a_pair_are_independent():
    """False alarm as stated: the correlation of 250,000 pairs is normal."""
    values = RoundedGaussian(Entropy.from_os()).add(np.zeros(500_000), scale=1.0, step=0)
    first, second = values[:250_000], values[250_000:]
    limit = stats.norm.isf(FALSE_ALARM / 4) / np.sqrt(250_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < limit


def test_steps_and_runs_differ_and_a_test_seed_repeats():
    def drawn(entropy, step):
        return RoundedGaussian(entropy).add(np.zeros(8), scale=1.0, step=step).tolist()

    assert drawn(Entropy.insecure(1), 0) == drawn(Entropy.insecure(1), 0)
    assert drawn(Entropy.insecure(1), 0) != drawn(Entropy.insecure(1), 1)
    assert drawn(Entropy.from_os(), 0) != drawn(Entropy.from_os(), 0)


def test_the_key_has_256_bits_of_the_noise_stream(monkeypatch):
    asked = []
    entropy = Entropy.insecure(1)
    monkeypatch.setattr(
        type(entropy),
        "bytes",
        lambda self, stream, *, step, count: asked.append((stream, count)) or bytes(count),
    )
    RoundedGaussian(entropy)
    assert asked == [("noise", 32)]


def test_no_two_parts_of_a_run_share_a_nonce(noise, monkeypatch):
    nonces = []
    cipher = mechanism.algorithms.ChaCha20

    def noted(key, nonce):
        nonces.append(nonce)
        return cipher(key, nonce)

    monkeypatch.setattr(mechanism.algorithms, "ChaCha20", noted)
    for step in range(3):
        for part in range(3):
            noise._stream(step, part, 1)
    assert len(set(nonces)) == 9


def test_a_forked_process_cannot_go_on(noise, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InputError, match="forked"):
        noise.add(np.zeros(2), scale=1.0, step=0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sums_that_are_not_finite_are_refused(noise, value):
    with pytest.raises(InputError, match="finite"):
        noise.add(np.array([0.0, value]), scale=1.0, step=0)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_scales_that_are_none_are_refused(noise, scale):
    with pytest.raises(InputError, match="positive"):
        noise.add(np.zeros(2), scale=scale, step=0)

"""Bits come from the system, streams and steps do not repeat, seeds leave a stamp."""

import inspect
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from scipy.stats import kstest

from dpflows.privacy import randomness
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy, Stream

STREAMS = get_args(Stream)
FALSE_ALARM = 1e-6
OS, SEEDED = Entropy.from_os(), Entropy.insecure(3)
both = pytest.mark.parametrize("entropy", [OS, SEEDED], ids=["system", "seeded"])


@both
def test_no_key_repeats_across_streams_and_steps(entropy):
    """False alarms: 3,000 random 64-bit keys collide with a chance below 1e-12."""
    keys = {entropy.key(stream, step=step).tobytes() for stream in STREAMS for step in range(500)}
    assert len(keys) == 500 * len(STREAMS)


def test_the_system_never_repeats_a_step_but_a_seed_does():
    assert OS.bytes("noise", step=0, count=16) != OS.bytes("noise", step=0, count=16)
    assert SEEDED.bytes("noise", step=0, count=16) == SEEDED.bytes("noise", step=0, count=16)
    other = Entropy.insecure(4).bytes("noise", step=0, count=16)
    assert SEEDED.bytes("noise", step=0, count=16) != other


@both
def test_uniforms_are_uniform(entropy):
    """Kolmogorov-Smirnov; false alarms: one in a million for fresh bits, none for a seed."""
    drawn = entropy.uniforms("batches", step=1, count=100_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert kstest(drawn, "uniform").pvalue > FALSE_ALARM
    assert kstest(drawn**1.05, "uniform").pvalue < FALSE_ALARM


@both
def test_streams_are_uncorrelated(entropy):
    """Six standard deviations for each pair; false alarms: below 1e-7."""
    drawn = np.stack([entropy.uniforms(stream, step=0, count=40_000) for stream in STREAMS])
    correlation = np.corrcoef(drawn) - np.eye(len(STREAMS))
    assert np.abs(correlation).max() < 6 / np.sqrt(40_000)
    copied = np.corrcoef(drawn[0], 0.95 * drawn[1] + 0.05 * drawn[0])[0, 1]
    assert abs(copied) > 6 / np.sqrt(40_000)


def test_a_forked_process_draws_other_bits():
    program = """
import os
from dpflows.privacy.randomness import Entropy
entropy = Entropy.from_os()
child = os.fork()
os.write(1, entropy.bytes("noise", step=0, count=16).hex().encode() + b"\\n")
if child:
    os.waitpid(child, 0)
"""
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(shown) == len(set(shown)) == 2


def test_only_a_seed_leaves_a_stamp():
    assert OS.stamp == ""
    assert SEEDED.stamp == TEST_SEED_STAMP
    assert TEST_SEED_STAMP.startswith("NOT PRIVATE")


def test_no_seed_has_a_default():
    assert inspect.signature(Entropy.insecure).parameters["seed"].default is inspect.Parameter.empty
    assert "seed" not in inspect.signature(Entropy.from_os).parameters
    assert "default_rng" not in inspect.getsource(randomness)

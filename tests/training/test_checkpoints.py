"""A run that was interrupted goes on, costs nothing more and reveals nothing."""

import jax
import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.files import read_model, write_model
from dpflows.flows.architectures import Architecture
from dpflows.flows.base import wide_gaussian
from dpflows.flows.density import Defended
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.fitting import fit_model
from dpflows.training.loop import CHUNK, Callbacks, State
from dpflows.training.plan import Settings, make_plan
from dpflows.training.taps import Parameters

ROWS = np.random.default_rng(1).normal(size=(300, 2))
EMPTY = State(Parameters((), None), None, Parameters((), None), jax.numpy.asarray(0))
SMALL = Architecture("maf", width=6, depth=1, blocks=1)


def plan(**changes):
    settings = {"architecture": SMALL, "steps": 2 * CHUNK + 5, "batch_size": 30} | changes
    return make_plan(Budget(1.0, 1e-4), rows=300, columns=2, settings=Settings(**settings))


def train(checkpoints=None, stop_after=None, entropy=Entropy.insecure(4)):  # noqa: B008
    model = Defended(SMALL.build(2, key=jax.random.key(0)), wide_gaussian(2))
    callbacks = Callbacks(should_stop=lambda at: at.step == stop_after)
    return fit_model(
        model,
        ROWS,
        plan(),
        entropy=entropy,
        callbacks=callbacks,
        checkpoints=checkpoints,
        known_to_taps=True,
    )


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run.checkpoint", plan(), seconds=1e6)


def test_a_resumed_run_equals_an_uninterrupted_one(checkpoints):
    train(checkpoints, stop_after=CHUNK)
    resumed, whole = train(checkpoints), train()
    # What was handed out is in the file: a third start makes no step, whatever its noise.
    again = train(checkpoints, entropy=Entropy.insecure(5))
    for model in (whole, again):
        for first, second in zip(*map(jax.tree.leaves, (resumed, model)), strict=True):
            np.testing.assert_array_equal(first, second)


def test_a_checkpoint_holds_no_rows_and_no_keys(checkpoints):
    train(checkpoints, stop_after=CHUNK)
    header, arrays = read_model(checkpoints.path)
    assert set(header) == {"kind", "plan", "run", "ledger", "before", "has_state"}
    keys = Entropy.insecure(4).key("noise", step=0)
    content = checkpoints.path.read_bytes()
    assert keys.tobytes() not in content
    for row in ROWS.astype(np.float32):
        assert row.tobytes() not in content
    assert all(array.shape != ROWS.shape for array in arrays.values())


def test_another_plan_is_refused(checkpoints, tmp_path):
    train(checkpoints, stop_after=CHUNK)
    other = Checkpoints(checkpoints.path, plan(batch_size=40))
    with pytest.raises(InputError, match="belongs to another run"):
        train(other)


def test_writes_are_not_more_frequent_than_asked(tmp_path):
    rare = Checkpoints(tmp_path / "run.checkpoint", plan(), seconds=1e6)
    train(rare, stop_after=CHUNK)
    first = rare.path.read_bytes()
    rare.keep(EMPTY)
    assert rare.path.read_bytes() == first


def test_the_run_is_on_disk_before_anything_else_and_stays_the_same(checkpoints):
    assert checkpoints.known_run() is None
    run = checkpoints.begin()
    again = Checkpoints(checkpoints.path, plan())
    assert (again.known_run(), again.begin(), again.before(), again.has_state) == (
        run,
        run,
        None,
        False,
    )
    again.write(EMPTY)
    assert Checkpoints(checkpoints.path, plan()).begin() == run


def test_a_run_that_was_refused_is_forgotten_but_an_older_one_is_not(checkpoints):
    checkpoints.begin()
    again = Checkpoints(checkpoints.path, plan())
    again.begin()
    again.abandon()
    assert checkpoints.path.exists()
    checkpoints.abandon()
    assert not checkpoints.path.exists()


@pytest.mark.parametrize(("first", "second"), [("a" * 32, None), (None, "a" * 32), ("a", "b")])
def test_a_run_goes_on_with_the_ledger_it_began_with(tmp_path, first, second):
    Checkpoints(tmp_path / "run.checkpoint", plan(), ledger=first).begin()
    with pytest.raises(InputError, match="ledger"):
        Checkpoints(tmp_path / "run.checkpoint", plan(), ledger=second).begin()


@pytest.mark.parametrize("run", [None, 7, "", "../run", "A" * 32])
def test_a_run_that_cannot_be_is_refused(checkpoints, run):
    checkpoints.begin()
    header, arrays = read_model(checkpoints.path)
    write_model(checkpoints.path, header=header | {"run": run}, arrays=arrays)
    with pytest.raises(InputError, match="does not fit its plan"):
        Checkpoints(checkpoints.path, plan()).begin()


def test_no_file_means_a_fresh_start(checkpoints):
    assert checkpoints.resume(EMPTY) is EMPTY

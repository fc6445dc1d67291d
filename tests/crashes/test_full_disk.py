"""A full disk, at every moment of a charged run: refused in one line, finished when there is room.

The disk is full for the files of this process by way of patches at each operation that needs
room; a second test fills a real one, block by block.
"""

import contextlib
import shutil
import subprocess
import sys
from hashlib import sha256

import jax.numpy as jnp
import pytest

from crashes.disk import FullDisk
from crashes.runs import attempt, charges, check, content, histogram
from dpflows.errors import InputError
from dpflows.estimators import charging
from dpflows.files import write_model
from dpflows.pipeline import training
from dpflows.training.dp_sgd import State
from figures import note

STATES = 5


@pytest.fixture(autouse=True)
def cheap_and_comparable(monkeypatch):
    """A ledger refuses seeds, but only seeded models can be compared; steps cost nothing."""
    monkeypatch.setattr(charging, "require_price", lambda stamps: None)
    monkeypatch.setattr(training, "fit_model", keep_states)


def keep_states(model, rows, plan, *, checkpoints, **options):
    """Stands for training: writes as many states as it would, and goes on from the last."""
    state = checkpoints.resume(State(jnp.zeros(3), (), jnp.zeros(3), jnp.asarray(0)))
    for step in range(int(state.step), STATES):
        checkpoints.write(state._replace(step=jnp.asarray(step + 1)))
    return model


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """An undisturbed run: its model, and everything that it asked the disk for."""
    folder = tmp_path / "whole"
    folder.mkdir()
    with FullDisk().mounted(monkeypatch) as disk:
        attempt(folder)
    check(folder)
    assert charges(folder) == 1
    return content(folder), disk.asked


def stopped(folder, disk, monkeypatch):
    """Whether a full disk stopped the run; it may only do so in one line."""
    folder.mkdir()
    with disk.mounted(monkeypatch):
        try:
            attempt(folder)
        except InputError as error:
            said = str(error)
        else:
            return False
    assert "full" in said or "No space left" in said
    assert "\n" not in said
    return True


def try_points(points, tmp_path, monkeypatch, model, **kind):
    """Stop a run at each of the points, then let it go on; the number of runs that stopped."""
    count = 0
    for point in points:
        folder = tmp_path / f"{point}-{kind}"
        count += stopped(folder, FullDisk(point, **kind), monkeypatch)
        check(folder)
        attempt(folder)
        check(folder)
        assert charges(folder) == 1
        assert content(folder) == model
        shutil.rmtree(folder)
    return count


def test_a_full_disk_releases_nothing_uncharged(whole, tmp_path, monkeypatch):
    model, asked = whole
    operations = {"write", "fsync", "replace", "link", "mkstemp"}
    assert operations | {"CREATE", "INSERT", "COMMIT"} == set(asked)
    points = range(0, len(asked), 8)
    assert try_points(points, tmp_path, monkeypatch, model) >= len(points) - 1


def test_a_commit_that_happened_though_it_failed_is_not_made_twice(whole, tmp_path, monkeypatch):
    model, asked = whole
    pairs = zip(asked, asked[1:], strict=False)
    commits = [place + 1 for place, pair in enumerate(pairs) if pair == ("INSERT", "COMMIT")]
    assert len(commits) == 3  # made, charged, released
    kind = {"lasting": False, "is_late": True}
    assert try_points(commits, tmp_path, monkeypatch, model, **kind) == len(commits)


@pytest.mark.long
@pytest.mark.parametrize("lasting", [True, False])
def test_a_full_disk_at_every_moment(whole, tmp_path, monkeypatch, lasting):
    model, asked = whole
    count = try_points(range(len(asked)), tmp_path, monkeypatch, model, lasting=lasting)
    kind = "lasting" if lasting else "passing"
    note(f"full_disk_{kind}", {"fault_points": len(asked), "stopped": count})
    assert len(asked) >= 50
    assert count >= len(asked) - 1  # the last one of all comes when the model has its name


def test_the_test_catches_a_model_that_is_seen_before_the_ledger_knows(
    whole, tmp_path, monkeypatch
):
    def careless(payment, path, model, *, overwrite=False):
        write_model(path, header=model[0], arrays=model[1])
        payment.ledger.release(payment.receipt, artefact=sha256(path.read_bytes()).hexdigest())

    monkeypatch.setattr(charging.Payment, "hand_out", lambda payment, model: payment)
    monkeypatch.setattr(charging.Payment, "deliver", careless)
    model, asked = whole
    with pytest.raises(AssertionError):
        try_points(range(len(asked) - 9, len(asked) - 4), tmp_path, monkeypatch, model)


@contextlib.contextmanager
def small_disk(folder, blocks):
    """A file system in memory with so many blocks of 4,096 bytes."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={4096 * blocks}", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here: it takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system in memory")
def test_a_real_disk_that_is_full(tmp_path):
    """From no room at all to enough, in steps of one block."""
    outcomes = []
    for blocks in range(1, 200):
        folder = tmp_path / str(blocks)
        with small_disk(folder, blocks):
            try:
                attempt(folder, histogram)
                outcomes.append("released")
            except InputError:
                outcomes.append("refused")
                assert not (folder / "m.dpflow").exists()
            with contextlib.suppress(InputError):  # no room for a ledger at all
                check(folder)
        if outcomes[-10:].count("released") == 10:
            break
    figures = {"disks": len(outcomes), "refused": outcomes.count("refused")}
    note("full_disk_real", figures)
    assert figures["refused"] >= 50
    assert outcomes.index("released") == figures["refused"]

"""A run that was interrupted goes on, costs nothing more and reveals nothing."""

import errno
import os
import stat
import subprocess
import sys
import threading

import jax
import numpy as np
import pandas as pd
import pytest

from dpflows.errors import InputError
from dpflows.files import read_model, write_model
from dpflows.models.architectures import Architecture
from dpflows.models.density import Defended, wide_gaussian
from dpflows.pipeline.training import Settings, fit_model, make_plan
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table import Column, Schema
from dpflows.table.reading import read_table
from dpflows.training.checkpoints import Checkpoints, key_path, table_tag
from dpflows.training.dp_sgd import CHUNK, Callbacks, State
from dpflows.training.ghost_clipping import Parameters

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
        plan().trained,
        entropy=entropy,
        callbacks=callbacks,
        checkpoints=checkpoints,
        known_to_taps=True,
    )


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run.checkpoint", plan(), seconds=1e6)


def begun(checkpoints):
    with checkpoints.alive():
        return checkpoints.begin()


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
    marks = {"kind", "plan", "run", "ledger", "table", "before", "result", "has_state"}
    assert set(header) == marks
    keys = Entropy.insecure(4).key("noise", step=0)
    content = checkpoints.path.read_bytes()
    assert keys.tobytes() not in content
    for row in ROWS.astype(np.float32):
        assert row.tobytes() not in content
    assert all(array.shape != ROWS.shape for array in arrays.values())


def test_another_plan_is_refused(checkpoints, tmp_path):
    with checkpoints.alive():
        train(checkpoints, stop_after=CHUNK)
    other = Checkpoints(checkpoints.path, plan(batch_size=40))
    with pytest.raises(InputError, match="belongs to a run with other settings"):
        train(other)


def test_writes_are_not_more_frequent_than_asked(tmp_path):
    rare = Checkpoints(tmp_path / "run.checkpoint", plan(), seconds=1e6)
    train(rare, stop_after=CHUNK)
    first = rare.path.read_bytes()
    rare.keep(EMPTY)
    assert rare.path.read_bytes() == first


def test_the_run_is_on_disk_before_anything_else_and_stays_the_same(checkpoints):
    assert checkpoints.known_run() is None
    run = begun(checkpoints)
    again = Checkpoints(checkpoints.path, plan())
    assert (again.known_run(), again.begin(), again.before(), again.has_state) == (
        run,
        run,
        None,
        False,
    )
    again.write(EMPTY)
    del again  # lets the lock go
    assert Checkpoints(checkpoints.path, plan()).begin() == run


def test_a_run_that_was_refused_is_forgotten_but_an_older_one_is_not(checkpoints):
    begun(checkpoints)
    again = Checkpoints(checkpoints.path, plan())
    with again.alive():
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
    begun(checkpoints)
    header, arrays = read_model(checkpoints.path)
    write_model(checkpoints.path, header=header | {"run": run}, arrays=arrays)
    with pytest.raises(InputError, match="does not match its plan"):
        Checkpoints(checkpoints.path, plan()).begin()


def test_no_file_means_a_fresh_start(checkpoints):
    assert checkpoints.resume(EMPTY) is EMPTY


def test_a_run_is_locked_while_it_lives_and_free_afterwards(checkpoints):
    second = Checkpoints(checkpoints.path, plan())
    with checkpoints.alive():
        run = checkpoints.begin()
        with pytest.raises(InputError, match=r"continued by another process \(pid \d+ on .*path$"):
            begun(second)
        said = []
        thread = threading.Thread(target=lambda: said.append(refusal(second)))
        thread.start()
        thread.join()
        assert "wait for it or use another path" in said[0]
        train(checkpoints, stop_after=CHUNK)  # the file is replaced, the lock stays
        assert "another process" in refusal(second)
    assert begun(second) == run
    assert os.listdir(checkpoints.path.parent) == [checkpoints.path.name]


def test_a_forked_process_that_ends_leaves_the_lock_alone(checkpoints):
    words = [sys.executable, "-c", FORKED, str(checkpoints.path)]
    assert subprocess.run(words, check=False).returncode == 0


FORKED = """
import os, sys
from pathlib import Path
from dpflows.files import NamedLock
lock = NamedLock(Path(sys.argv[1]))
lock.take()
if (child := os.fork()) == 0:
    lock.let_go()
    os._exit(0)
os.waitpid(child, 0)
sys.exit(NamedLock(Path(sys.argv[1])).take())
"""


def refusal(checkpoints):
    try:
        begun(checkpoints)
    except InputError as error:
        return str(error)
    return ""


def test_the_kernel_unlocks_a_run_whose_process_was_killed(checkpoints):
    run = begun(checkpoints)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(checkpoints.path)], stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    assert f"pid {holder.pid} on" in refusal(checkpoints)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert begun(checkpoints) == run


HOLDER = """
import sys, time
from pathlib import Path
from dpflows.files import NamedLock
lock = NamedLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
time.sleep(100)
"""


def test_a_run_has_one_lock_and_one_file_by_whatever_name_it_is_reached(checkpoints, tmp_path):
    run, link = begun(checkpoints), tmp_path / "link"
    link.symlink_to(checkpoints.path.name)
    by_link = Checkpoints(link, plan())
    with checkpoints.alive():
        assert "another process" in refusal(by_link)
    assert begun(by_link) == run
    with by_link.alive():
        by_link.begin()
        by_link.write(EMPTY)
    assert link.is_symlink()
    os.link(checkpoints.path, tmp_path / "hard")
    assert "hard links" in refusal(checkpoints)


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_without_locks_is_refused_in_plain_words(checkpoints, monkeypatch, reason):
    def fail(*words):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(InputError, match=r"cannot lock .*choose a folder on a local disk"):
        begun(checkpoints)


def test_a_checkpoint_of_an_older_version_is_refused(checkpoints):
    begun(checkpoints)
    header, arrays = read_model(checkpoints.path)
    old = {name: value for name, value in header.items() if name not in ("table", "result")}
    write_model(checkpoints.path, header=old, arrays=arrays)
    assert "made by an older version of dpflows" in refusal(checkpoints)


def table_of(rows):
    return read_table(rows, Schema.from_bounds([-9, -9], [9, 9]))


def kept_for(path, rows):
    return Checkpoints(path, plan(), table=table_of(rows))


def changed_cell(rows):
    other = rows.copy()
    other[17, 1] += 1e-9
    return other


def test_a_run_goes_on_with_its_own_table_alone(tmp_path):
    run = begun(kept_for(tmp_path / "run", ROWS))
    assert begun(kept_for(tmp_path / "run", ROWS.copy())) == run
    for other in (changed_cell(ROWS), ROWS[:-1], ROWS[::-1], ROWS[:, ::-1]):
        assert "belongs to another table" in refusal(kept_for(tmp_path / "run", other))
    with pytest.raises(InputError, match="does not match its plan"):
        begun(Checkpoints(tmp_path / "run", plan()))


def test_the_test_catches_a_run_that_takes_any_table(tmp_path, monkeypatch):
    run = begun(kept_for(tmp_path / "run", ROWS))
    monkeypatch.setattr(Checkpoints, "_require_table", lambda self, header: None)
    assert begun(kept_for(tmp_path / "run", changed_cell(ROWS))) == run


def test_text_truth_and_dates_count_too():
    frame = pd.DataFrame(
        {"a": ["x", "y"], "b": [True, False], "c": pd.to_datetime(["2020-01-01", "2021-01-01"])}
    )
    kinds = Schema(
        (
            Column("a", "categorical", categories=("x", "y", "z")),
            Column("b", "boolean"),
            Column("c", "date", min=0, max=2e9),
        )
    )
    tags = {table_tag(bytes(32), read_table(frame, kinds))}
    for name, cell in {"a": "z", "b": False, "c": pd.Timestamp("2020-01-02")}.items():
        other = frame.copy()
        other.loc[0, name] = cell
        tags.add(table_tag(bytes(32), read_table(other, kinds)))
    assert len(tags) == 4


def test_the_tag_needs_a_key_that_is_not_in_the_file_and_goes_with_the_run(tmp_path, monkeypatch):
    first, second = (kept_for(tmp_path / name, ROWS) for name in ("a", "b"))
    keys = [key_path(begun(kept)) for kept in (first, second)]
    tags = [read_model(kept.path)[0]["table"] for kept in (first, second)]
    assert tags[0] != tags[1]  # the same table: a tag cannot be compared with a guess
    assert keys[0].read_bytes() not in first.path.read_bytes()
    assert keys[0].read_bytes().hex().encode() not in first.path.read_bytes()
    assert [stat.S_IMODE(p.stat().st_mode) for p in (keys[0], keys[0].parent)] == [0o600, 0o700]
    second.remove()
    assert [key.exists() for key in keys] == [True, False]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    said = refusal(kept_for(tmp_path / "a", ROWS))
    assert "copy" in said
    assert "start a new run, which is charged again" in said
    assert "\n" not in said


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert "set XDG_STATE_HOME" in refusal(kept_for(tmp_path / "run", ROWS))
    assert not (tmp_path / "run").exists()

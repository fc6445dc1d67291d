"""Charges in a file: several processes, killed ones, damaged and foreign files."""

import json
import os
import subprocess
import sys

import pytest

from dpflows.anomaly.query_budget import FileCounter, MemoryCounter
from dpflows.errors import InputError
from dpflows.files import read_model, write_model

IDENTITY = "0123"

#: Several processes, each forked from one that has imported everything.
CROWD = """
import contextlib, os, random, signal, sys, time
from dpflows.anomaly.query_budget import FileCounter
path, workers, patience, how = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]

def charge():
    with FileCounter(path, "0123").opened() as transaction:
        if transaction.taken >= 100:
            return None
        number = transaction.taken
        transaction.write(number + 1)
        return number

def tell(number):
    os.write(1, f"{number}\\n".encode())

def work():
    while True:
        if how == "answer first":
            with FileCounter(path, "0123").opened() as transaction:
                tell(transaction.taken)
            os.kill(os.getpid(), signal.SIGKILL)
        number = charge()
        if number is None:
            return
        if how == "die between":
            os.kill(os.getpid(), signal.SIGKILL)
        tell(number)

while True:
    children = []
    for _ in range(workers):
        if (child := os.fork()) == 0:
            work()
            os._exit(0)
        children.append(child)
    if patience:
        time.sleep(random.uniform(0, patience))
        for child in children:
            os.kill(child, signal.SIGKILL)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if not patience or 0 in codes:
        break
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ensemble.dpflow"
    queries = {"taken": 0, "identity": IDENTITY}
    write_model(path, header={"meter": queries, "kept": "as it is"}, arrays={})
    return path


def taken(path):
    return read_model(path)[0]["meter"]["taken"]


def crowd(path, *, workers=4, patience=0.0, how="charge first"):
    """The numbers that the processes told."""
    words = [sys.executable, "-c", CROWD, str(path), str(workers), str(patience), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=True)
    return [int(line) for line in done.stdout.split()]


def test_four_processes_share_a_hundred_charges(file):
    assert sorted(crowd(file)) == list(range(100))
    assert taken(file) == 100
    assert read_model(file)[0]["kept"] == "as it is"


def test_processes_that_are_killed_at_any_moment_tell_nothing_uncharged(file):
    """Rounds of two processes, all killed within 20 ms, until a hundred charges are made."""
    told = crowd(file, workers=2, patience=0.02)
    assert len(told) == len(set(told))
    assert len(told) <= taken(file) == 100


def test_death_between_charge_and_answer_costs_the_charge(file):
    assert crowd(file, workers=3, how="die between") == []
    assert taken(file) == 3


def test_the_test_catches_an_answer_before_its_charge(file):
    assert len(crowd(file, workers=3, how="answer first")) == 3 > taken(file)


def test_a_page_holds_all_others_off_through_several_charges(file):
    """The lock follows the file from version to version."""
    with FileCounter(file, IDENTITY).opened() as transaction:
        for number in (1, 2, 3):
            transaction.write(number)
            words = [sys.executable, "-c", LOCKED, str(file)]
            assert subprocess.run(words, check=False).returncode == 0
    assert taken(file) == 3


LOCKED = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(0)
sys.exit(1)
"""


def test_only_the_owner_may_read_it(file):
    with FileCounter(file, IDENTITY).opened() as transaction:
        transaction.write(1)
    assert os.stat(file).st_mode & 0o077 == 0
    assert os.listdir(file.parent) == [file.name]


def test_the_file_of_another_ensemble_is_refused(file):
    with (
        pytest.raises(InputError, match="no longer the file"),
        FileCounter(file, "4567").opened(),
    ):
        pass


def test_a_file_that_is_gone_is_refused(file):
    counter = FileCounter(file, IDENTITY)
    file.unlink()
    with pytest.raises(InputError, match="only while its file is in its place"), counter.opened():
        pass


@pytest.mark.parametrize("number", [-1, 1.5, None, True, "3"])
def test_a_number_that_cannot_be_is_refused(file, number):
    queries = {"taken": number, "identity": IDENTITY}
    write_model(file, header=json.loads(json.dumps({"meter": queries})), arrays={})
    with pytest.raises(InputError, match="whole number"), FileCounter(file, IDENTITY).opened():
        pass


def test_memory_counts_too():
    counter = MemoryCounter(2)
    with counter.opened() as transaction:
        transaction.write(transaction.taken + 5)
    with counter.opened() as transaction:
        assert transaction.taken == 7

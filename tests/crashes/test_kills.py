"""Training that is killed at any moment goes on: one charge, and the very same model.

The full size takes minutes, most of it spent on starting children; the cheap version that
stops a run at each point where a disk may fail is in ``test_full_disk.py``.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from figures import note

WORKER = Path(__file__).with_name("worker.py")


def killed(folder, kills, bug="none"):
    """Kill runs so often; gives what they left, the first two being those left in peace."""
    words = [sys.executable, str(WORKER), str(folder), str(kills), bug]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=3000, check=True)
    return json.loads(done.stdout)


@pytest.mark.long
def test_two_hundred_kills_cost_one_charge_each_and_change_nothing(tmp_path):
    told = killed(tmp_path, 200)
    runs = told["runs"]
    note(
        "training_kills",
        {
            "kills": sum(told["phases"].values()),
            "runs": len(runs) - 2,
            "runs_killed_at_least_once": told["killed"],
            "when": told["phases"],
            "kills_of_finished_runs_not_counted": told["too_late"],
            "runs_by_charges": Counter(str(run["charges"]) for run in runs[2:]),
            "ledgers": Counter(run["ledger"] for run in runs[2:]),
            "different_models": len({run["model"] for run in runs}),
        },
    )
    assert sum(told["phases"].values()) == 200
    assert told["phases"]["training"] >= 20
    assert "lost" not in told["phases"]
    assert {run["charges"] for run in runs} == {run["releases"] for run in runs} == {1}
    assert len({run["model"] for run in runs}) == 1
    assert all(run["is_receipt_good"] for run in runs)
    # Scratch files of a killed writer stay, under names that nobody reads, and the file of a
    # lock whose holder was killed when its run was over; nothing else does.
    left = set(" ".join(run["left"] for run in runs).split()) - {".run.part.lock"}
    assert [name for name in left if not name.startswith(".dpflows-")] == []


@pytest.mark.long
def test_the_test_catches_a_run_whose_name_was_not_on_disk_when_it_was_charged(tmp_path):
    runs = killed(tmp_path, 5, "forgetful")["runs"]
    assert max(run["charges"] for run in runs) > 1

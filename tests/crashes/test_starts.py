"""Two live processes start the same kept run: one charge, one model, one clear refusal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from figures import note

WORKER = Path(__file__).with_name("starts.py")


def started(folder, trials, bug="none"):
    words = [sys.executable, str(WORKER), str(folder), str(trials), bug]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=3000, check=True)
    return json.loads(done.stdout)


def judge(trials):
    for trial in trials:
        assert trial["codes"] == [0, 0]
        assert trial["ledger"] == ["RESERVED", "RELEASED"]
        refused, model = sorted(trial["results"], key=lambda result: "model" in result)
        assert "is being continued by another process (pid " in refused["refused"]
        assert "wait for it or use another path" in refused["refused"]
        assert len(model["model"]) == 64
        assert sorted(trial["left"]) == ["run.ledger", "run.part"]


def test_two_starts_of_one_run(tmp_path):
    judge(started(tmp_path, 3))


@pytest.mark.long
def test_the_test_catches_runs_without_a_lock(tmp_path):
    with pytest.raises(AssertionError):
        judge(started(tmp_path, 1, "unlocked"))


@pytest.mark.long
def test_two_starts_of_one_run_two_hundred_times(tmp_path):
    trials = started(tmp_path, 200)
    models = [result["model"] for t in trials for result in t["results"] if "model" in result]
    note(
        "two_starts",
        {
            "trials": len(trials),
            "charges": sum(trial["ledger"].count("RESERVED") for trial in trials),
            "models": len(set(models)),
            "refusals": sum("refused" in r for trial in trials for r in trial["results"]),
        },
    )
    judge(trials)
    assert len(trials) == len(set(models)) == 200

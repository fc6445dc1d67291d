"""Jobs are done once: journals, resumption, parallel runs, tables."""

import dataclasses
import json
import subprocess
import sys
import time

import pytest

from dpflows.experiments import running
from dpflows.experiments.running import Experiment, Job, Journal, Measurement, Workspace, run

FIGURE = Measurement(
    dataset="toy", method="ours", epsilon=1.0, delta=1e-5, accountant="pld", fold=1,
    measure="log-likelihood", value=2.0, proven=0.99, replace_one=1.9, paper=1.5, seconds=3.0,
)  # fmt: skip


class Counting(Experiment):
    """Leaves a mark for each job it does."""

    name, title, epsilons, folds = "counting", "A count", (1.0, 2.0), 3

    def jobs(self, folds, epsilons):
        return [Job("toy", "ours", f, (e,)) for f in range(1, folds + 1) for e in epsilons]

    def measure(self, job, workspace):
        with open(workspace.output / "marks", "a") as marks:
            marks.write(job.key + "\n")
        return [dataclasses.replace(FIGURE, fold=job.fold, epsilon=job.epsilons[0])]


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path, tmp_path)


def marks(workspace):
    return (workspace.output / "marks").read_text().splitlines()


@pytest.mark.parametrize("parallel", [1, 2])
def test_every_job_is_done_once_and_found_again(workspace, parallel):
    found = run(Counting(), workspace, folds=2, epsilons=[1.0, 2.0], parallel=parallel)
    assert [(f.fold, f.epsilon) for f in found] == [(1, 1.0), (1, 2.0), (2, 1.0), (2, 2.0)]
    assert sorted(marks(workspace)) == sorted(job.key for job in Counting().jobs(2, (1.0, 2.0)))
    again = run(Counting(), workspace, folds=3, epsilons=[1.0, 2.0], parallel=parallel)
    assert len(again) == 6
    assert len(marks(workspace)) == 6


def test_a_line_that_was_cut_off_is_done_again(workspace):
    run(Counting(), workspace, folds=2, epsilons=[1.0])
    path = workspace.output / "counting.jsonl"
    path.write_text(path.read_text()[:-20])
    assert len(Journal(path).read()) == 1
    assert len(run(Counting(), workspace, folds=2, epsilons=[1.0])) == 2
    assert marks(workspace).count("toy/ours/2/1") == 2
    assert marks(workspace).count("toy/ours/1/1") == 1
    assert len(Journal(path).read()) == 2


SLOW = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_running import Counting
from dpflows.experiments.running import run
from dpflows.experiments.running import Workspace

class Slow(Counting):
    def measure(self, job, desk):
        time.sleep(0.3)
        return super().measure(job, desk)

run(Slow(), Workspace(Path({out!r}), Path({out!r})), folds=10, epsilons=[1.0])
"""


def test_a_killed_run_repeats_no_finished_job(workspace, request):
    here = str(request.path.parent)
    script = SLOW.format(tests=here, out=str(workspace.output))
    process = subprocess.Popen([sys.executable, "-c", script])
    journal = Journal(workspace.output / "counting.jsonl")
    deadline = time.monotonic() + 120
    while len(journal.read()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    finished = set(journal.read())
    assert 2 <= len(finished) < 10
    before = marks(workspace)
    assert len(run(Counting(), workspace, folds=10, epsilons=[1.0])) == 10
    assert not finished & set(marks(workspace)[len(before) :])


def test_progress_tells_what_is_left(workspace):
    told = []
    run(
        Counting(), workspace, folds=1, epsilons=[1.0], progress=lambda *news: told.append(news[:2])
    )
    run(
        Counting(), workspace, folds=2, epsilons=[1.0], progress=lambda *news: told.append(news[:2])
    )
    assert told == [(0, 1), (1, 1), (1, 2), (2, 2)]


def test_cells_average_over_folds_and_nothing_else():
    other = dataclasses.replace(FIGURE, fold=2, value=4.0)
    elsewhere = dataclasses.replace(FIGURE, epsilon=2.0, value=9.0)
    first, second = running.cells([FIGURE, other, elsewhere])
    assert (first["mean"], first["sd"], first["folds"]) == (3.0, 1.0, 2)
    assert (second["mean"], second["sd"], second["folds"]) == (9.0, 0.0, 1)
    for key in ("dataset", "method", "epsilon", "delta", "accountant", "mean", "sd", "folds",
                "paper", "seconds"):  # fmt: skip
        assert key in first


def test_tables_are_written_for_readers_and_for_programs(tmp_path):
    made = running.provenance("dpflows reproduce toy")
    free = dataclasses.replace(FIGURE, method="real-rows", epsilon=None, accountant="none")
    paths = running.write_tables(tmp_path, "toy", "A toy", [FIGURE, free], made)
    document = json.loads(paths[0].read_text())
    assert [cell["method"] for cell in document["cells"]] == ["ours", "real-rows"]
    text = paths[1].read_text()
    assert "| ours | 2.00 (paper 1.50) | 3.0 |" in text
    assert "+0.50" in text
    assert "dpflows reproduce toy" in text


def test_an_infinite_epsilon_is_no_epsilon():
    assert dataclasses.replace(FIGURE, epsilon=float("inf")).epsilon is None

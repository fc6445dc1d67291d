"""What cannot work is refused at once, and an interrupted verb leaves no half of a file."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from dpflows.cli.main import app, run
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.flow import DPFlow


def fit_words(job, folder, *more):
    words = ("fit", job.rows, "--schema", job.schema, "--epsilon", "1")
    return (*words, "--output", folder / "m.dpflow", *more)


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("schema {rows} --output {bad}", "s.toml"),
        ("fit {rows} --schema {schema} --epsilon 1 --output {bad}", "m.dpflow"),
        ("sample {model} --rows 5 --output {bad}", "s.csv"),
        ("score {model} {rows} --output {bad}", "g.csv"),
        ("detect {model} {rows} --output {bad}", "a.csv"),
        ("certificate {model} --force --output {bad}", "c.json"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_at_once(refused, job, tmp_path, verb, name):
    folder = tmp_path / f"folder-{name}"
    folder.mkdir()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / name)
    (tmp_path / "plain").write_text("")
    missing, beneath = tmp_path / "missing" / name, tmp_path / "plain" / name
    odd = (folder, missing, beneath, tmp_path / "pipe" / name, tmp_path / "x.exe", f"a\0{name}")
    for bad in odd:
        words = verb.format(rows=job.rows, schema=job.schema, model=job.model, bad="BAD").split()
        refused(*(bad if word == "BAD" else word for word in words))
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == sorted([folder.name, "pipe", name, "plain"])


def test_no_verb_overwrites_what_it_reads(refused, job, tmp_path):
    rows = tmp_path / "t.csv"
    shutil.copy(job.rows, rows)
    assert "must not be the input file" in refused("score", job.model, rows, "--output", rows)
    assert rows.read_bytes() == job.rows.read_bytes()
    model = tmp_path / "m.dpflow"
    said = refused(*fit_words(job, tmp_path, "--checkpoint", model))
    assert "checkpoint must not be the output" in said


BAD_NUMBERS = [
    *[("--epsilon", value) for value in ("-1", "0", "nan", "1e-300", "1e300")],
    *[("--delta", value) for value in ("0", "nan", "1", "1e-320", "-1")],
    *[("--steps", value) for value in ("0", "-5", str(10**30))],
    *[("--batch-size", value) for value in ("0", "-1", "301", str(10**30))],
    *[("--learning-rate", value) for value in ("-1", "nan", "inf")],
    *[("--noise-multiplier", value) for value in ("0", "nan", "1e-9", "1e300", "-3")],
    *[("--discover", value) for value in ("0", "1", "nan", "-1")],
    *[(f"--{name}", "x") for name in ("accountant", "sampling", "neighbours", "architecture")],
    ("--normalisation", "x"),
    ("--sampling", "shuffle"),
]


@pytest.mark.parametrize(("option", "value"), BAD_NUMBERS)
def test_settings_that_no_run_could_use(refused, job, tmp_path, option, value):
    refused("plan", "--schema", job.schema, "--rows", 300, "--epsilon", 1, option, value)
    refused(*fit_words(job, tmp_path, option, value))
    assert os.listdir(tmp_path) == []


def test_an_accountant_that_cannot_price_random_batches(refused, job):
    words = ("--accountant", "zcdp", "--prior", "none")
    said = refused("plan", "--schema", job.schema, "--rows", 24_000, "--epsilon", 1, *words)
    assert "zcdp" in said


@pytest.mark.parametrize("rows", ["0", "-4", "1", str(10**30), "many"])
def test_numbers_of_rows_that_cannot_be(refused, job, tmp_path, rows):
    refused("plan", "--schema", job.schema, "--epsilon", 1, "--rows", rows)
    if rows in ("0", "-4", "many"):
        refused("sample", job.model, "--rows", rows, "--output", tmp_path / "s.csv")
        refused("sample", job.model, "--rows", 9, "--chunk", rows, "--output", tmp_path / "s.csv")
    assert os.listdir(tmp_path) == []


def test_kinds_that_a_verb_does_not_model(refused, job, tmp_path):
    schema = tmp_path / "s.toml"
    schema.write_text('[columns.sex]\nkind = "categorical"\ncategories = ["F", "M"]\n')
    words = ("--schema", schema, "--epsilon", 1, "--output", "m.dpflow")
    said = refused("ensemble", job.rows, "--epsilon-per-query", 0.1, *words)
    assert "not yet supported" in said
    said = refused("plan", "--schema", schema, "--rows", 300, "--epsilon", 1, "--prior", "mixture")
    assert "prior is not a setting of the model autoregressive" in said


OUTPUTS = [
    ("schema {rows} --force --output {out}", "s.toml"),
    ("sample {model} --rows 5 --force --output {out}", "s.csv"),
    ("sample {model} --rows 5 --force --output {out}", "s.csv.gz"),
    ("sample {model} --rows 5 --force --output {out}", "s.parquet"),
    ("score {model} {rows} --force --output {out}", "g.csv"),
    ("certificate {model} --force --output {out}", "c.txt"),
]


@pytest.mark.parametrize(("verb", "name"), OUTPUTS)
def test_a_full_disk_leaves_the_old_file(refused, job, tmp_path, monkeypatch, verb, name):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    (tmp_path / name).write_bytes(b"old")
    monkeypatch.setattr("dpflows.files.os.fsync", fail)
    said = refused(*verb.format(rows=job.rows, model=job.model, out=tmp_path / name).split())
    assert "No space left on device" in said
    assert (tmp_path / name).read_bytes() == b"old"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz", "s.parquet"])
def test_a_verb_that_fails_between_two_pieces_leaves_nothing(
    dpflows, job, tmp_path, monkeypatch, name
):
    draw, drawn = DPFlow.sample, []

    def sample(self, n_samples):
        if drawn:
            raise KeyboardInterrupt
        drawn.append(n_samples)
        return draw(self, n_samples)

    monkeypatch.setattr(DPFlow, "sample", sample)
    words = ("sample", job.model, "--rows", 20, "--chunk", 10, "--output", tmp_path / name)
    code, out, err = dpflows(*words)
    assert (code, out) == (130, "")
    assert err == "error: interrupted; no incomplete file was left\n"
    assert drawn == [10]
    assert os.listdir(tmp_path) == []


def test_an_interrupted_fit_leaves_nothing(job, tmp_path, monkeypatch, capsys):
    def fit(self, X, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(DensityEstimator, "fit", fit)
    assert run(app, [str(word) for word in fit_words(job, tmp_path)]) == 130
    assert os.listdir(tmp_path) == []


SAMPLING = """
import signal, sys
from dpflows.cli.main import app, run
# A suite that runs in the background passes ignored interrupts on to its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(run(app, sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "left"),
    [pytest.param(signal.SIGINT, 0, marks=pytest.mark.long), (signal.SIGKILL, 1)],
)
def test_a_killed_verb_leaves_no_half_of_an_output(job, tmp_path, number, left):
    """An interrupt cleans up; a kill leaves at most a file under a temporary name."""
    target = tmp_path / "s.csv"
    words = ["sample", job.model, "--rows", "100000000", "--chunk", "1000", "--output", target]
    process = subprocess.Popen(
        [sys.executable, "-c", SAMPLING, *map(str, words)], stderr=subprocess.PIPE
    )
    for _ in range(1200):
        if any(path.stat().st_size > 10_000 for path in tmp_path.glob(".dpflows-*")):
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert not target.exists()
    assert len(os.listdir(tmp_path)) == left

"""Verbs that charge a ledger: what they say, what they refuse, and how they go on."""

import json
import os
import shutil

import pytest

from cli.conftest import SMALL
from dpflows import Budget, load
from dpflows.privacy.ledger import Ledger

CAP = ("--cap-epsilon", 2, "--cap-delta", 1e-5)


def fit_words(job, folder, *more, ledger=True):
    words = ("fit", job.rows, "--schema", job.schema, "--epsilon", 1, *SMALL)
    named = ("--ledger", folder / "c.ledger") if ledger else ()
    return (*words, "--output", folder / "m.dpflow", *named, *more)


@pytest.fixture
def cheap(monkeypatch):
    """Training that makes no step and is counted; everything around it is real."""
    calls = []

    def train(model, rows, plan, *, checkpoints=None, **options):
        calls.append(plan)
        return model

    monkeypatch.setattr("dpflows.pipeline.training.fit_model", train)
    return calls


class Killed(BaseException):
    """Stands for a SIGKILL: nothing handles it, and nothing is cleaned up after it."""


def killed(*args, **options):
    raise Killed


def opened(folder):
    return Ledger(folder / "c.ledger")


def charges(folder):
    return len(opened(folder).odometer())


def test_a_fit_is_charged_published_and_told(dpflows, job, tmp_path, cheap):
    code, out, err = dpflows(*fit_words(job, tmp_path, *CAP))
    assert (code, err) == (0, "")
    receipt, ledger = load(tmp_path / "m.dpflow").receipt_, opened(tmp_path)
    lines = out.splitlines()
    assert f"Charged: entry 2, run {receipt.run}" in lines
    spent = f"epsilon {ledger.spent():.4g} of 2 spent at delta 1e-05 (zero-out)"
    left = "remaining for one further fit: epsilon"
    [line] = [line for line in lines if line.startswith("Ledger: ")]
    assert line.startswith(f"Ledger: {tmp_path / 'c.ledger'}, {spent}, {left} ")
    assert float(line.split()[-1]) == pytest.approx(ledger.remaining(), abs=1e-4)
    assert ledger.state_of(receipt.run).is_released
    assert sorted(os.listdir(tmp_path)) == ["c.ledger", "m.dpflow"]
    shown = dpflows("certificate", tmp_path / "m.dpflow")[1]
    assert f"entry 2 of ledger {ledger.identity}, run {receipt.run}" in shown
    assert receipt.head in shown
    document = json.loads(dpflows("certificate", tmp_path / "m.dpflow", "--json")[1])
    assert document["receipt"] == receipt.to_dict()
    code, out, _ = dpflows(*fit_words(job, tmp_path, "--json", "--force"))
    facts = json.loads(out)["ledger"]
    assert facts["receipt"]["entry"] == 4
    assert facts["cap"] == {"epsilon": 2.0, "delta": 1e-5, "neighbours": "zero-out"}
    assert 0 < facts["remaining"] < float(line.split()[-1])


def test_a_ledger_that_has_not_enough_left_refuses_and_leaves_nothing(refused, job, tmp_path):
    words = fit_words(job, tmp_path, "--cap-epsilon", 0.1, "--cap-delta", 1e-5)
    said = refused(*words, code=3)
    assert "cap is epsilon 0.1" in said
    assert os.listdir(tmp_path) == ["c.ledger"]
    assert opened(tmp_path).spent() == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "--cap-epsilon and --cap-delta"),
        (("--cap-epsilon", 1), "given together"),
        (("--cap-delta", 1e-6), "given together"),
        (("--cap-epsilon", -1, "--cap-delta", 1e-6), "cap_epsilon must lie between"),
        ((*CAP, "--epsilon", "inf"), "NOT PRIVATE"),
        ((*CAP, "--prior", "none", "--normalisation", "paper-not-private"), "NOT PRIVATE"),
        ((*CAP, "--batch-size", 999), "batch_size"),
        ((*CAP, "--neighbours", "add-remove"), "zero-out or replace-one"),
    ],
)
def test_mistakes_make_no_ledger(refused, job, tmp_path, more, message):
    assert message in refused(*fit_words(job, tmp_path, *more))
    assert os.listdir(tmp_path) == []


def test_caps_without_a_ledger_and_other_caps_are_refused(refused, job, tmp_path):
    assert "need --ledger" in refused(*fit_words(job, tmp_path, *CAP, ledger=False))
    Ledger(tmp_path / "c.ledger", cap=Budget(9.0, 1e-5))
    assert "fixed when it was created" in refused(*fit_words(job, tmp_path, *CAP))


@pytest.mark.parametrize("name", ["m.dpflow", "t.csv", "run.part"])
def test_a_ledger_is_a_file_of_its_own(refused, job, tmp_path, name):
    rows = tmp_path / "t.csv"
    shutil.copy(job.rows, rows)
    words = ("fit", rows, "--schema", job.schema, "--epsilon", 1, "--ledger", tmp_path / name)
    more = ("--output", tmp_path / "m.dpflow", "--checkpoint", tmp_path / "run.part", *CAP)
    assert "one of the other files" in refused(*words, *more)


def test_an_interrupted_run_goes_on_and_is_charged_once(dpflows, job, tmp_path, monkeypatch, cheap):
    with monkeypatch.context() as patch:
        patch.setattr("dpflows.pipeline.training.fit_model", killed)
        with pytest.raises(Killed):
            dpflows(*fit_words(job, tmp_path, *CAP))
    assert sorted(os.listdir(tmp_path)) == ["c.ledger", "m.dpflow.run"]
    run = opened(tmp_path).history()[1].run
    assert dpflows(*fit_words(job, tmp_path, *CAP))[0] == 0
    assert load(tmp_path / "m.dpflow").receipt_.run == run
    assert charges(tmp_path) == 1
    assert sorted(os.listdir(tmp_path)) == ["c.ledger", "m.dpflow"]


@pytest.mark.parametrize("where", ["before the mark", "after the mark", "after the name"])
def test_a_kill_at_the_end_is_finished_by_the_same_command(
    dpflows, job, tmp_path, monkeypatch, cheap, where
):
    with monkeypatch.context() as patch:
        if where == "before the mark":
            patch.setattr(Ledger, "release", killed)
        elif where == "after the mark":
            patch.setattr("dpflows.estimators.charging.Payment.deliver", killed)
        else:
            patch.setattr("dpflows.training.checkpoints.Checkpoints.remove", killed)
        with pytest.raises(Killed):
            dpflows(*fit_words(job, tmp_path, *CAP))
    assert (tmp_path / "m.dpflow").exists() == (where == "after the name")
    assert (tmp_path / "m.dpflow.run").exists()
    code, out, _ = dpflows(*fit_words(job, tmp_path, *CAP))
    assert code == 0
    assert "Charged: entry 2" in out
    assert len(cheap) == 1  # the finished model was kept; it is not fitted again
    assert charges(tmp_path) == 1
    assert load(tmp_path / "m.dpflow").receipt_.entry == 2
    assert sorted(os.listdir(tmp_path)) == ["c.ledger", "m.dpflow"]


def test_a_kept_copy_of_a_checkpoint_is_refused_after_the_release(
    dpflows, refused, job, tmp_path, monkeypatch, cheap
):
    kept, copy = tmp_path / "run.part", tmp_path / "copy.part"
    with monkeypatch.context() as patch:
        patch.setattr("dpflows.pipeline.training.fit_model", killed)
        with pytest.raises(Killed):
            dpflows(*fit_words(job, tmp_path, "--checkpoint", kept, *CAP))
    shutil.copy(kept, copy)
    key = shutil.copytree(os.environ["XDG_STATE_HOME"], tmp_path / "state")
    assert dpflows(*fit_words(job, tmp_path, "--checkpoint", kept))[0] == 0
    words = fit_words(job, tmp_path, "--checkpoint", copy)
    assert "its table cannot be checked" in refused(*words)
    monkeypatch.setenv("XDG_STATE_HOME", str(key))
    assert "was already released" in refused(*words)
    assert (charges(tmp_path), copy.exists()) == (1, True)


def test_the_same_command_writes_a_lost_model_again(dpflows, job, tmp_path, monkeypatch, cheap):
    words = fit_words(job, tmp_path, *CAP)
    with monkeypatch.context() as patch:
        patch.setattr("dpflows.training.checkpoints.Checkpoints.remove", lambda self: None)
        assert dpflows(*words)[0] == 0
    content = (tmp_path / "m.dpflow").read_bytes()
    (tmp_path / "m.dpflow").unlink()
    assert dpflows(*words)[0] == 0
    assert (tmp_path / "m.dpflow").read_bytes() == content
    assert (charges(tmp_path), len(cheap)) == (1, 1)


def test_a_checkpoint_without_its_ledger_is_refused(dpflows, refused, job, tmp_path, monkeypatch):
    kept = ("--checkpoint", tmp_path / "run.part")
    with monkeypatch.context() as patch:
        patch.setattr("dpflows.pipeline.training.fit_model", killed)
        with pytest.raises(Killed):
            dpflows(*fit_words(job, tmp_path, *kept, *CAP))
    assert "another ledger" in refused(*fit_words(job, tmp_path, *kept, ledger=False))


def ensemble_words(job, folder, *more):
    words = ["ensemble", job.rows, "--schema", job.schema, "--epsilon", 8, "--parts", 3]
    target = ["--epsilon-per-query", 2, "--output", folder / "e.dpflow"]
    return [*words, *target, "--ledger", folder / "c.ledger", *more]


def test_an_ensemble_is_charged_when_it_answers(dpflows, refused, job, tmp_path):
    cap = ("--cap-epsilon", 7, "--cap-delta", 1e-6)
    code, out, _ = dpflows(*ensemble_words(job, tmp_path, *cap))
    assert code == 0
    named = f"--ledger {tmp_path / 'c.ledger'}"
    assert f"Next: dpflows detect {tmp_path / 'e.dpflow'} rows.csv --output" in out
    assert out.rstrip().endswith(named)
    assert "epsilon 0 of 7 spent" in out
    rows, answers = tmp_path / "few.csv", ("--output", tmp_path / "a.csv")
    rows.write_text("age,dose\n50,4.5\n30,1\n")
    detect = ("detect", tmp_path / "e.dpflow", rows, *answers)
    assert "does not answer without it" in refused(*detect)
    ledger = ("--ledger", tmp_path / "c.ledger")
    assert "there is no ledger" in refused(*detect, "--ledger", tmp_path / "x.ledger")
    code, out, _ = dpflows(*detect, *ledger)
    assert code == 0
    assert "Answers left: 2" in out
    assert "epsilon 4 of 7 spent" in out
    facts = json.loads(dpflows(*ensemble_words(job, tmp_path, "--json", "--force"))[1])
    assert facts["ledger"]["spent"] == pytest.approx(4, abs=0.01)
    # A second ensemble has a budget of its own, but the ledger has room for one answer only.
    assert "cap is epsilon 7" in refused(*detect, *ledger, "--force", code=3)
    assert opened(tmp_path).spent() == pytest.approx(4, abs=0.01)


def test_only_an_ensemble_takes_a_ledger_to_detect(refused, job, tmp_path):
    words = ("detect", job.model, job.rows, "--output", tmp_path / "a.csv")
    assert "remove --ledger" in refused(*words, "--ledger", tmp_path / "c.ledger")
    assert os.listdir(tmp_path) == []

"""``dpflows audit`` says what it found beside what was claimed, and never more."""

import json

import pytest

from dpflows.evaluation.audit import INTERNAL_STAMP, MEANING, Finding

STEP = ("audit", "--way", "step", "--epsilon", 4, "--canaries", 2000)


def test_a_correct_step(dpflows):
    """A false alarm has a chance below one in a million at this confidence."""
    code, out, err = dpflows(*STEP, "--confidence", 0.999999)
    assert (code, err) == (0, "")
    shown = out.splitlines()
    assert [line.split(":")[0] for line in shown[:4]] == [
        "Attack",
        "Lower bound",
        "Upper limit",
        "Claim",
    ]
    assert "(confidence 0.999999)" in shown[1]
    assert shown[3].endswith("not refuted")
    assert shown[4:] == [MEANING]


def test_a_refuted_claim_is_loud_and_fails(dpflows, monkeypatch):
    caught = Finding(
        "step", claimed=4.0, delta=1e-5, bound=9.0, confidence=0.95, largest=64, trials=9
    )
    monkeypatch.setattr("dpflows.evaluation.audit.audit_step", lambda *_, **__: caught)
    code, out, _ = dpflows(*STEP, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["flagged"]
    assert found["verdict"].startswith("FLAGGED")


def test_a_given_table_makes_the_finding_internal(dpflows, job):
    words = ("audit", job.rows, "--schema", job.schema, "--way", "rows", "--canaries", 60)
    code, out, _ = dpflows(*words)
    assert code == 0
    assert out.splitlines()[0] == INTERNAL_STAMP


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--way", "magic"], "way"),
        (["--epsilon", "inf"], "finite"),
        (["--canaries", "1"], "canaries"),
        (["--canaries", "10", "--guesses", "11", "--steps", "1"], "guesses"),
        (["--way", "step", "--confidence", "2", "--canaries", "100"], "confidence"),
        (["rows.csv"], "--way rows"),
        (["rows.csv", "--way", "rows"], "--schema"),
        (["--way", "rows", "--score", "luck"], "score"),
        (["--score", "updates"], "--way rows"),
        (["--way", "step", "--prior", "none"], "--way rows"),
        (["--way", "step", "--guesses", "5"], "--way gradients or rows"),
        (["--way", "step", "--steps", "5"], "--way gradients or rows"),
    ],
)
def test_mistakes_are_one_line(refused, words, hint):
    assert hint in refused("audit", *words)

"""``dpflows sign`` and ``verify``, and what other verbs say of signed files."""

import csv
import json
import shutil
import stat

import numpy as np
import pandas as pd
import pytest

from dpflows import Budget, DPGaussian
from dpflows.privacy.ledger import Ledger
from dpflows.table import Column, Schema
from hostile.making import FILES
from hostile.mutating import opened, sealed

DECEIVING = "age\n(0.1, 1e-9)-differential privacy\x1b[2J\u202e[red]"


@pytest.fixture
def model(tmp_path):
    shutil.copy(FILES / "DPHistogram.dpflow", tmp_path / "m.dpflow")
    return tmp_path / "m.dpflow"


@pytest.fixture
def key(dpflows, tmp_path):
    assert dpflows("sign", "--new-key", tmp_path / "curator")[0] == 0
    return tmp_path / "curator.pem"


def test_from_a_key_to_a_verified_model(dpflows, tmp_path, model):
    code, out, err = dpflows("sign", "--new-key", tmp_path / "curator")
    assert (code, err) == (0, "")
    mark = next(word for word in out.split() if word.startswith("SHA256:"))
    assert stat.S_IMODE((tmp_path / "curator.pem").stat().st_mode) == 0o600
    code, out, _ = dpflows("sign", model, "--key", tmp_path / "curator.pem", "--signer", "Ward 7")
    assert code == 0
    assert mark in out
    code, out, _ = dpflows("verify", model, "--key", tmp_path / "curator.pub.pem")
    assert code == 0
    assert "Signed by Ward 7 at " in out
    assert mark in out
    facts = json.loads(dpflows("verify", model, "--key", tmp_path / "curator.pub.pem", "--json")[1])
    assert facts["verified"] is True
    assert facts["fingerprint"] == mark


def test_the_certificate_says_who_signed_or_that_nobody_did(dpflows, refused, tmp_path, model, key):
    public = tmp_path / "curator.pub.pem"
    assert dpflows("certificate", model)[1].splitlines()[-1].startswith("Not signed: ")
    assert json.loads(dpflows("certificate", model, "--json")[1])["signature"] is None
    assert "is not signed" in refused("certificate", model, "--key", public)
    dpflows("sign", model, "--key", key)
    words = dpflows("certificate", model)[1]
    assert "Signed by curator, key fingerprint SHA256:" in words
    assert "This is the key given with --key." not in words
    assert "This is the key given with --key." in dpflows("certificate", model, "--key", public)[1]
    document = json.loads(dpflows("certificate", model, "--key", public, "--json")[1])
    assert document["signature"]["is_given_key"] is True


def test_a_changed_file_is_refused_by_every_verb(refused, dpflows, tmp_path, model, key):
    dpflows("sign", model, "--key", key)
    changed = bytearray(model.read_bytes())
    changed[-1] ^= 1
    model.write_bytes(changed)
    for words in (
        ("verify", model, "--key", tmp_path / "curator.pub.pem"),
        ("certificate", model),
        ("sample", model, "--rows", 3, "--output", tmp_path / "s.csv"),
        ("sign", model, "--key", key),
    ):
        assert "does not match its digest" in refused(*words)


def test_a_key_with_a_passphrase(dpflows, refused, tmp_path, model):
    (tmp_path / "words.txt").write_text("open sesame\n")
    (tmp_path / "wrong.txt").write_text("open barley\n")
    right = ("--passphrase-file", tmp_path / "words.txt")
    assert dpflows("sign", "--new-key", tmp_path / "locked", *right)[0] == 0
    key = ("--key", tmp_path / "locked.pem")
    said = refused("sign", model, *key, "--passphrase-file", tmp_path / "wrong.txt")
    assert "passphrase" in said
    assert dpflows("sign", model, *key, *right)[0] == 0
    assert dpflows("verify", model, "--key", tmp_path / "locked.pub.pem")[0] == 0


def test_mistakes(refused, tmp_path, model, key):
    assert "never replaced" in refused("sign", "--new-key", tmp_path / "curator")
    assert "sign needs a model and a key" in refused("sign", model)
    assert "sign needs a model and a key" in refused("sign", "--key", key)
    assert "must be given without a model" in refused("sign", model, "--new-key", tmp_path / "x")
    public = tmp_path / "curator.pub.pem"
    for place in (tmp_path, tmp_path / "missing.dpflow"):
        assert "cannot read" in refused("sign", place, "--key", key)
    assert "must be a private key" in refused("sign", model, "--key", public)
    assert "must be a public key" in refused("verify", model, "--key", key)
    assert "must be a file in PEM form" in refused("verify", model, "--key", tmp_path)
    assert "not signed" in refused("verify", model, "--key", public)


@pytest.fixture
def charged(tmp_path):
    """A model that a ledger has marked as released."""
    ledger = Ledger(tmp_path / "c.ledger", cap=Budget(2.0, 1e-5))
    rows = np.random.default_rng().normal(size=(300, 2)).clip(-4, 4)
    DPGaussian(1.0, 1e-5, bounds=(-4, 4)).fit(rows, ledger=ledger).save(tmp_path / "g.dpflow")
    return tmp_path / "g.dpflow"


def test_a_ledger_knows_its_release_after_signing(dpflows, tmp_path, charged, key):
    words = ("budget", "verify", tmp_path / "c.ledger", "--model", charged)
    known = "The file is the one that the ledger records as released"
    assert known in dpflows(*words)[1]
    assert dpflows("sign", charged, "--key", key)[0] == 0
    assert known in dpflows(*words)[1]


def test_a_ledger_tells_a_certificate_with_other_releases(refused, tmp_path, charged):
    """Plan and guarantee forged alike: consistent in itself, but not what was charged."""
    content = opened(charged.read_bytes())
    for events in (content.header["guarantee"]["events"], content.header["plan"]["releases"]):
        for event in events:
            event["noise"] *= 10
    charged.write_bytes(sealed(content))
    said = refused("budget", "verify", tmp_path / "c.ledger", "--model", charged)
    assert "differ from those that the ledger charged" in said


@pytest.fixture
def deceiving(tmp_path):
    """A sound model whose column has a name made to deceive."""
    columns = (
        Column(DECEIVING, "continuous", min=-4, max=4),
        Column("b", "continuous", min=-4, max=4),
    )
    rows = pd.DataFrame(np.random.default_rng().normal(size=(300, 2)).clip(-4, 4))
    rows.columns = [DECEIVING, "b"]
    flow = DPGaussian(1.0, 1e-5, schema=Schema(columns)).fit(rows)
    flow.save(tmp_path / "d.dpflow")
    return tmp_path / "d.dpflow"


def test_a_name_from_a_file_cannot_write_on_the_certificate(dpflows, deceiving, tmp_path):
    sound = FILES / "DPGaussian.dpflow"
    expected = len(dpflows("certificate", sound)[1].splitlines())
    words = dpflows("certificate", deceiving)[1]
    dpflows("certificate", deceiving, "--output", tmp_path / "c.txt")
    for text in (words, (tmp_path / "c.txt").read_text()):
        lines = text.rstrip("\n").split("\n")
        # without a receipt, whose two lines it lacks
        assert len(lines) == expected - 2
        assert all(line.isprintable() for line in lines)
        assert r"age\n(0.1, 1e-9)-differential privacy\x1b[2J\u202e[red] (continuous)" in text


def test_a_name_with_a_line_break_is_quoted_in_tables(dpflows, deceiving, tmp_path):
    target = tmp_path / "s.csv"
    assert dpflows("sample", deceiving, "--rows", 3, "--output", target)[0] == 0
    with target.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == [DECEIVING, "b"]
    assert len(rows) == 4

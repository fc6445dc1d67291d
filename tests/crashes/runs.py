"""One charged run from start to saved model, and what must hold whenever it was stopped."""

import hashlib
import os
from pathlib import Path

import numpy as np

from dpflows import Budget, DPFlow, DPHistogram, load
from dpflows.files import read_model
from dpflows.privacy.ledger import Ledger

ROWS = np.random.default_rng(5).normal(size=(200, 2)).clip(-4, 4)
CAP = Budget(9.0, 1e-4)


def mixture():
    """A flow that a mixture alone serves best: prepared, kept and released like any other."""
    settings = {"bounds": (-4, 4), "prior": "mixture", "prior_share": 1.0}
    return DPFlow(1.0, 1e-4, insecure_test_seed=3, **settings)


def histogram():
    """Large enough to fill many blocks of a disk."""
    return DPHistogram(1.0, 1e-4, bounds=(-4, 4), bins=160, insecure_test_seed=3)


def attempt(folder: Path, make=mixture) -> None:
    """What ``dpflows fit`` does: finish an earlier start, or go on with it, or begin."""
    ledger, kept = Ledger(folder / "c.ledger", cap=CAP), folder / "run.part"
    estimator, model = make(), folder / "m.dpflow"
    if not isinstance(estimator, DPFlow):
        estimator.fit(ROWS, ledger=ledger).save(model)
        return
    estimator.fit(ROWS, ledger=ledger, checkpoint=kept).save(model)


def charges(folder: Path) -> int:
    return len(Ledger(folder / "c.ledger", cap=CAP).odometer())


def content(folder: Path):
    """A model without what tells runs apart."""
    header, arrays = read_model(folder / "m.dpflow")
    header.pop("receipt")
    return header, {name: array.tobytes() for name, array in arrays.items()}


def check(folder: Path) -> None:
    """No release without a charge, no half of a file, a ledger that opens clean."""
    ledger = Ledger(folder / "c.ledger", cap=CAP)
    ledger.verify()
    assert {name for name in os.listdir(folder) if name.endswith((".part", "-journal"))} <= {
        "run.part"
    }
    if (folder / "m.dpflow").exists():
        receipt = load(folder / "m.dpflow").receipt_
        ledger.verify(receipt)
        digest = hashlib.sha256((folder / "m.dpflow").read_bytes()).hexdigest()
        assert ledger.state_of(receipt.run).artefact == digest

"""Every estimator pays before it uses a row, and a new name in ``ESTIMATORS`` is tested at once."""

import contextlib
import copy
import functools
import hashlib
import math
import tempfile
from pathlib import Path

import pytest

from contracts.test_estimators import ROWS, every_estimator, make
from dpflows import Budget, BudgetError, DPGaussian, InputError, Schema
from dpflows.estimators.persistence import load
from dpflows.files import write_model
from dpflows.pipeline.domain import EncodeRows
from dpflows.pipeline.plan import Work
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.ledger import Ledger
from dpflows.privacy.randomness import Entropy


def private(name, **changes):
    return make(name, insecure_test_seed=None, **changes)


def new_ledger(folder, epsilon=1.1, delta=1e-4):
    return Ledger(Path(folder) / "clinic.ledger", cap=Budget(epsilon, delta))


@contextlib.contextmanager
def watched(ledger):
    """The numbers of charges that the ledger held each time rows' values were used."""
    honest, seen = EncodeRows.run, []

    def run(self, work):
        seen.append(len(ledger.odometer()))
        return honest(self, work)

    EncodeRows.run = run
    try:
        yield seen
    finally:
        EncodeRows.run = honest


@functools.cache
def charged(name):
    """One fit with a ledger, and what the ledger held when the rows were used."""
    ledger = new_ledger(tempfile.mkdtemp())
    with watched(ledger) as seen:
        estimator = private(name).fit(ROWS, ledger=ledger)
    return estimator, ledger, tuple(seen)


@every_estimator
def test_the_charge_is_there_before_the_rows_are_used(name):
    estimator, ledger, seen = charged(name)
    assert seen == (1,)
    assert [entry.state for entry in ledger.history()][:2] == ["OPENED", "RESERVED"]
    assert ledger.history()[1].purpose == "fit"
    price = epsilon_of(estimator.plan_.events, delta=1e-4, accountant="pld")
    assert ledger.spent() == estimator.receipt_.epsilon == pytest.approx(price)
    ledger.verify(estimator.receipt_)


def test_the_test_catches_a_charge_that_comes_too_late(tmp_path):
    def late(self, later, X, *, ledger, **options):
        table = self.spec().read(X)
        plan = self.plan(table.rows, len(table.schema.columns))
        self._run(plan, Work(table, Entropy.from_os()))
        ledger.reserve(plan.events, purpose="fit")
        return self

    ledger = new_ledger(tmp_path)
    with pytest.MonkeyPatch.context() as patch, watched(ledger) as seen:
        patch.setattr(DPGaussian, "fit_with", late)
        private("DPGaussian").fit(ROWS, ledger=ledger)
    assert seen == [0]


@every_estimator
def test_a_refused_charge_leaves_nothing(name, tmp_path):
    ledger, estimator = new_ledger(tmp_path, epsilon=0.1), private(name)
    with watched(ledger) as seen, pytest.raises(BudgetError, match="cap is epsilon 0.1"):
        estimator.fit(ROWS, ledger=ledger)
    assert (seen, ledger.spent()) == ([], 0.0)
    assert [key for key in vars(estimator) if key.endswith("_") or key.startswith("_")] == []


@every_estimator
@pytest.mark.parametrize(
    "changes", [{"insecure_test_seed": 1}, {"epsilon": math.inf, "insecure_test_seed": None}]
)
def test_what_has_no_price_is_refused(name, changes, tmp_path):
    ledger, estimator = new_ledger(tmp_path), make(name, **changes)
    with watched(ledger) as seen, pytest.raises(InputError, match="NOT PRIVATE") as caught:
        estimator.fit(ROWS, ledger=ledger)
    assert "\n" not in str(caught.value)
    assert (seen, ledger.spent(), hasattr(estimator, "density_")) == ([], 0.0, False)


@every_estimator
def test_the_receipt_lasts_and_the_file_is_marked(name, tmp_path):
    estimator, ledger, _ = charged(name)
    twin = copy.deepcopy(estimator)
    estimator.save(tmp_path / "model.dpflow")
    content = (tmp_path / "model.dpflow").read_bytes()
    state = ledger.state_of(estimator.receipt_.run)
    assert (state.name, state.artefact) == ("RELEASED", hashlib.sha256(content).hexdigest())
    again = load(tmp_path / "model.dpflow")
    assert again.receipt_ == estimator.receipt_
    # The same model once more, a copy of it, and one that was read: all are paid for.
    for number, model in enumerate((estimator, twin, again)):
        model.save(tmp_path / f"{number}.dpflow")
        assert load(tmp_path / f"{number}.dpflow").receipt_ == estimator.receipt_
    assert (tmp_path / "0.dpflow").read_bytes() == content
    assert len(ledger.odometer()) == 1


def test_without_a_ledger_there_is_no_receipt(tmp_path):
    estimator = private("DPGaussian").fit(ROWS)
    estimator.save(tmp_path / "model.dpflow")
    assert estimator.receipt_ is None
    assert load(tmp_path / "model.dpflow").receipt_ is None


@pytest.mark.filterwarnings("ignore::dpflows.errors.RepeatedFitWarning")
def test_a_second_fit_is_a_second_charge_and_forgets_the_first(tmp_path):
    ledger, estimator = new_ledger(tmp_path, epsilon=5.0), private("DPGaussian")
    first = estimator.fit(ROWS, ledger=ledger).receipt_
    assert estimator.fit(ROWS, ledger=ledger).receipt_.entry > first.entry
    assert len(ledger.odometer()) == 2
    assert estimator.fit(ROWS).receipt_ is None


def test_bounds_that_were_read_from_the_rows_have_no_price(tmp_path):
    schema = Schema.from_dict(
        Schema.from_bounds([-4, -4], [4, 4]).to_dict() | {"values_read": True}
    )
    ledger = new_ledger(tmp_path)
    with pytest.raises(InputError, match="bounds were read from the rows"):
        private("DPGaussian", schema=schema, bounds=None).fit(ROWS, ledger=ledger)
    assert ledger.spent() == 0


@pytest.mark.parametrize("receipt", [7, "text", [], {}, {"ledger": "x"}])
def test_forged_receipts_are_refused(receipt, tmp_path):
    header, arrays = private("DPGaussian").fit(ROWS).to_file()
    forged = header | {"estimator": "DPGaussian", "receipt": receipt}
    write_model(tmp_path / "forged.dpflow", header=forged, arrays=arrays)
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        load(tmp_path / "forged.dpflow")


def test_files_of_older_versions_have_no_receipt(tmp_path):
    header, arrays = private("DPGaussian").fit(ROWS).to_file()
    header.pop("receipt")
    write_model(tmp_path / "old.dpflow", header=header | {"estimator": "DPGaussian"}, arrays=arrays)
    assert load(tmp_path / "old.dpflow").receipt_ is None

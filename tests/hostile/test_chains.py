"""What an estimator raises about bad rows holds no cell: not in words, notes, causes or contexts.

A cell that does not fit is planted in every kind of table and given to everything that
reads rows. ``clinging`` follows an error's whole chain, hidden parts included.
"""

import secrets

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpflows import (
    Budget,
    DPAnomalyDetector,
    DPAutoregressive,
    DPEnsembleDetector,
    DPGaussian,
    Schema,
)
from dpflows.errors import InputError, unchained, unquoted
from dpflows.table import Encoding
from dpflows.table.reading import MixedEncoding

NUMBERS = {
    "columns": {
        "age": {"kind": "integer", "min": 0, "max": 120},
        "dose": {"kind": "continuous", "min": 0, "max": 9},
    }
}
MIXED = {
    "columns": NUMBERS["columns"]
    | {
        "sex": {"kind": "categorical", "categories": ["F", "M"]},
        "born": {"kind": "date", "min": "1900-01-01", "max": "2020-01-01"},
    }
}
ROWS = 60


def clinging(error: BaseException | None) -> str:
    """All words of an error and of everything that it is chained to, shown or not."""
    if error is None:
        return ""
    own = [str(error), repr(error), repr(vars(error))]
    return "\n".join([*own, clinging(error.__cause__), clinging(error.__context__)])


def _frame(columns: list[str]) -> pd.DataFrame:
    rng = np.random.default_rng()
    every = {
        "age": rng.integers(0, 100, ROWS),
        "dose": rng.uniform(0, 9, ROWS),
        "sex": rng.choice(["F", "M"], ROWS),
        "born": rng.choice(["1970-01-01", "1999-12-31"], ROWS),
    }
    return pd.DataFrame({name: every[name] for name in columns})


def _numbers() -> pd.DataFrame:
    return _frame(list(NUMBERS["columns"]))


def _with(frame: pd.DataFrame, column: str, cell: object) -> pd.DataFrame:
    planted = frame.astype(object)
    planted.loc[ROWS // 2, column] = cell
    return planted


def _file(frame: pd.DataFrame, folder) -> str:
    path = folder / "t.csv"
    frame.to_csv(path, index=False)
    return str(path)


FORMS = {
    "pandas": lambda frame, folder: frame,
    "arrow": lambda frame, folder: pa.table({n: frame[n].astype(str).tolist() for n in frame}),
    "numpy": lambda frame, folder: frame.to_numpy(),
    "list": lambda frame, folder: frame.to_numpy().tolist(),
    "csv": _file,
}


@pytest.fixture(scope="module")
def fitted():
    """Whatever reads rows once it is fitted."""
    budget, numbers = Budget(1.0, 1e-6), Schema.from_dict(NUMBERS)
    mixed = _frame(list(MIXED["columns"]))
    gaussian = DPGaussian(1.0, 1e-5, schema=numbers)
    flow = DPAutoregressive(1.0, 1e-5, schema=Schema.from_dict(MIXED), steps=1, batch_size=9).fit(
        mixed
    )
    ensemble = DPEnsembleDetector(
        3, DPGaussian(schema=numbers), epsilon_per_query=0.5, total_budget=budget
    )
    return {
        "density": gaussian.fit(_numbers()).score_samples,
        "mixed density": flow.score_samples,
        "detector": DPAnomalyDetector(DPGaussian(1.0, 1e-5, schema=numbers))
        .fit(_numbers())
        .predict,
        "ensemble": ensemble.fit(_numbers()).predict,
        "a fit": DPGaussian(1.0, 1e-5, schema=numbers).fit,
        "a fit of mixed kinds": DPAutoregressive(1.0, 1e-5, schema=Schema.from_dict(MIXED)).fit,
        "a fit of a detector": DPAnomalyDetector(DPGaussian(1.0, 1e-5, schema=numbers)).fit,
        "a fit of an ensemble": ensemble.fit,
    }


READERS = (
    "density",
    "mixed density",
    "detector",
    "ensemble",
    "a fit",
    "a fit of mixed kinds",
    "a fit of a detector",
    "a fit of an ensemble",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_no_cell_clings_to_what_is_raised(fitted, tmp_path, reader, form):
    columns = list((MIXED if "mixed" in reader else NUMBERS)["columns"])
    # a label that is not declared is no error: it counts as one that was never seen
    for column in [name for name in columns if name != "sex"]:
        cell = f"person-{secrets.token_hex(6)}"
        table = FORMS[form](_with(_frame(columns), column, cell), tmp_path)
        with pytest.raises(InputError) as caught:
            fitted[reader](table)
        assert cell not in clinging(caught.value)


@pytest.mark.parametrize("place", [Encoding, MixedEncoding])
def test_what_a_library_quotes_is_withheld(monkeypatch, place):
    """A library that fails with the cell in its words, in the midst of a fit."""

    def quoting(*args, **kwargs):
        raise KeyError("patient-4711")

    monkeypatch.setattr(place, "encode", quoting)
    is_mixed = place is MixedEncoding
    schema = Schema.from_dict(MIXED if is_mixed else NUMBERS)
    estimator = (DPAutoregressive if is_mixed else DPGaussian)(1.0, 1e-5, schema=schema)
    with pytest.raises(InputError, match="KeyError in .*test_chains:[0-9]+, whose") as caught:
        estimator.fit(_frame(list(schema.names)))
    assert "4711" not in clinging(caught.value)


def test_the_search_finds_what_is_hidden():
    def careless():
        try:
            float("patient-4711")
        except ValueError:
            raise InputError("age must be a number") from None

    with pytest.raises(InputError) as caught:
        careless()
    assert "4711" in clinging(caught.value)
    for guard in (unchained, unquoted):
        with pytest.raises(InputError, match="age must be") as caught:
            guard(careless)()
        assert "4711" not in clinging(caught.value)


def test_errors_that_quote_nothing_are_left_alone():
    def raising(error):
        raise error

    for error in (MemoryError("too large"), UserWarning("slow"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            unquoted(raising)(error)
        assert caught.value is error

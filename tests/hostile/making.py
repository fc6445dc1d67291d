"""One small file of every estimator and detector, and of each way of its own, to be mutated.

The files beside the tests were made by ``python tests/hostile/making.py``: fitting them
anew takes longer than a thousand mutations. The full-size run fits its own.
"""

import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: A flow over tables of mixed kinds; what stands before the dash is the class.
#: The classes whose file holds a model of mixed rows.
MIXED = ("DPAutoregressive", "DPDensity")
FILES = Path(__file__).parent / "files"
BOUNDS = (-4, 4)
BUDGET = {"epsilon": 3.0, "delta": 1e-4, "bounds": BOUNDS}


def names() -> list[str]:
    """All classes that a file can hold."""
    from dpflows.anomaly.persistence import DETECTORS
    from dpflows.estimators.persistence import ESTIMATORS

    return [*ESTIMATORS, *DETECTORS]


def make(name: str) -> Any:
    """An unfitted estimator or detector that is quickly fitted and loaded."""
    return MAKERS.get(name, lambda: _estimator(name))()


def write(folder: Path, wanted: list[str]) -> None:
    """Fit, charge and save, so that the files carry receipts."""
    from dpflows import Budget
    from dpflows.privacy.ledger import Ledger

    ledger = Ledger(Path(tempfile.mkdtemp()) / "l.ledger", cap=Budget(99.0, 1e-2))
    numbers = np.random.default_rng().normal(size=(60, 2)).clip(*BOUNDS)
    for name in wanted:
        rows = _mixed_rows(numbers) if name in MIXED else numbers
        (folder / f"{name}.dpflow").unlink(missing_ok=True)
        make(name).fit(rows, ledger=ledger).save(folder / f"{name}.dpflow")


def _estimator(name: str, **settings: Any) -> Any:
    from dpflows.estimators.persistence import ESTIMATORS

    return getattr(importlib.import_module(ESTIMATORS[name]), name)(**BUDGET, **settings)


def _flow() -> Any:
    from dpflows.models.architectures import Architecture

    small = Architecture("nsf", width=2, depth=1, blocks=1, knots=2)
    return _estimator("DPFlow", architecture=small, normalisation="bounds", steps=1, batch_size=2)


def _mixed(name: str, **settings: Any) -> Any:
    import dpflows
    from dpflows.table import Column, Schema

    columns = (
        Column("ward", "categorical", categories=("north", "south"), nullable=True),
        Column("days", "integer", min=0, max=30),
        Column("cost", "continuous", min=-4, max=4, spikes=(0.0,)),
    )
    return getattr(dpflows, name)(3.0, 1e-4, schema=Schema(columns), **settings)


def _mixed_rows(numbers: np.ndarray) -> pd.DataFrame:
    wards = np.where(numbers[:, 0] > 0, "north", "south")
    days = np.arange(len(numbers)) % 30
    return pd.DataFrame({"ward": wards, "days": days, "cost": numbers[:, 1].clip(0)})


def _threshold() -> Any:
    from dpflows import DPAnomalyDetector

    return DPAnomalyDetector(_estimator("DPGaussian"), contamination=0.1)


def _ensemble() -> Any:
    from dpflows import Budget, DPEnsembleDetector, DPGaussian

    settings = {"epsilon_per_query": 2.0, "total_budget": Budget(6.0, 1e-6)}
    return DPEnsembleDetector(2, DPGaussian(bounds=BOUNDS), contamination=0.1, **settings)


MAKERS: dict[str, Callable[[], Any]] = {
    "DPFlow": _flow,
    "DPAutoregressive": lambda: _mixed("DPAutoregressive", steps=1, batch_size=2),
    "DPDensity": lambda: _mixed("DPDensity"),
    "DPKernelDensity": lambda: _estimator("DPKernelDensity", bandwidth=0.2),
    "DPAnomalyDetector": _threshold,
    "DPEnsembleDetector": _ensemble,
}

if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    write(FILES, sys.argv[1:] or names())

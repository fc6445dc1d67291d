"""One file per detector or density, read back without running code.

A detector says what it is in a JSON header and named arrays; this module only finds
the class again. A new detector is one line in ``DETECTORS``.
"""

import importlib
import os
from typing import Any

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.persistence import VERSION, explained, rebuilt
from dpflows.files import read_model, write_model

DETECTORS: dict[str, str] = {
    "DPAnomalyDetector": "dpflows.anomaly.threshold",
    "DPEnsembleDetector": "dpflows.anomaly.ensemble",
}


def save(detector: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted detector, its guarantee included."""
    header, arrays = detector.to_file()
    named = {"detector": type(detector).__name__, "dpflows": VERSION}
    write_model(path, header={**header, **named}, arrays=arrays, overwrite=overwrite)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a fitted detector or density; its class need not be known.

    Example:
        >>> load("missing.dpflow")
        Traceback (most recent call last):
        dpflows.errors.InputError: ...
    """
    header, arrays = read_model(path)
    with explained():
        if "detector" not in header:
            return rebuilt(header, arrays)
        detector = _detector(header["detector"]).from_file(header, arrays)
    opened = getattr(detector, "opened_from", None)
    if opened is not None:
        opened(path)
    return detector


def density_of(model: Any) -> DensityEstimator:
    """The density of a loaded model, which may be sampled from and asked for scores.

    Guarantee:
        Refuses an ensemble: its members are fitted without privacy, and nothing but its
        metered answers may leave.
    """
    if isinstance(model, DensityEstimator):
        return model
    density = getattr(model, "estimator_", None)
    if isinstance(density, DensityEstimator):
        return density
    raise InputError(
        "the model is an ensemble, whose members are not private: only answers of "
        "dpflows detect may leave it"
    )


def _detector(name: Any) -> Any:
    if name not in DETECTORS:
        raise InputError(f"the file holds an unknown detector; known: {', '.join(DETECTORS)}")
    return getattr(importlib.import_module(DETECTORS[name]), name)

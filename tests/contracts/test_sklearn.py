"""scikit-learn's own checks of estimators and detectors, with the exceptions that are meant."""

import importlib
import math

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from dpflows.anomaly.threshold import DPAnomalyDetector
from dpflows.estimators.gaussian import DPGaussian
from dpflows.estimators.persistence import ESTIMATORS
from dpflows.models.architectures import Architecture

#: What an estimator does differently on purpose.
MEANT = {
    "check_estimators_pickle": "models are saved as safe files; pickle runs code when it is read",
    "check_classifier_data_not_an_array": "tables are of a kind that is known, or converted first",
    "check_dtype_object": "arrays of objects are refused: numbers must be numbers",
    "check_estimators_empty_data_messages": "refused in our own words",
    "check_fit2d_1sample": "a table of one row is refused: nobody can hide in it",
    "check_do_not_raise_errors_in_init_or_set_params": "the suite itself checks annotations",
    "check_array_api_input": "needs a switch of scipy that is off",
}
FLOW = {
    "architecture": Architecture("nsf", width=8, depth=1, blocks=1, knots=4),
    "steps": 2,
    "batch_size": 5,
}
SETTINGS = {"DPFlow": FLOW, "DPAutoregressive": {"steps": 2, "batch_size": 5}}
#: A kernel density takes two columns at most; the checks use ten.
FEW_COLUMNS = "DPKernelDensity"
#: Left to the long suite: a flow is compiled anew for every fit, a histogram has many cells.
SLOW = ("DPAutoregressive", "DPDensity", "DPFlow", "DPHistogram")


def cases():
    yield from detector_cases()
    for name, module in ESTIMATORS.items():
        if name == FEW_COLUMNS:
            continue
        cls = getattr(importlib.import_module(module), name)
        estimator = cls(1.0, 1e-4, bounds=(-1000, 1000), **SETTINGS.get(name, {}))
        yield from checks_of(name, estimator, [pytest.mark.long] if name in SLOW else [])


def detector_cases():
    # the suite fits twice and compares, as it would with a fixed random_state
    density = DPGaussian(50.0, 1e-4, bounds=(-1000, 1000), insecure_test_seed=1)
    for case in checks_of("DPAnomalyDetector", DPAnomalyDetector(density, threshold=-20.0)):
        detector, check = case.values
        yield pytest.param(exact() if "outliers" in case.id else detector, check, id=case.id)


def exact():
    """Calls an exact share of the training rows anomalies, which only no privacy allows."""
    density = DPGaussian(math.inf, 1e-4, bounds=(-1000, 1000))
    return DPAnomalyDetector(density, threshold="bought")


def checks_of(name, estimator, marks=()):
    for _, check in estimator_checks_generator(estimator):
        label = f"{name}-{check.func.__name__}"
        if check.func.__name__ not in MEANT:
            yield pytest.param(estimator, check, id=label, marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), list(cases()))
def test_manners(estimator, check):
    check(estimator)

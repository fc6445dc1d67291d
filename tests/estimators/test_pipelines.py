"""Steps before an estimator that learn from the rows are named; fixed ones are not."""

import warnings

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)

from dpflows import Budget, DPAnomalyDetector, DPEnsembleDetector, DPGaussian
from dpflows.errors import RepeatedFitWarning, UnpaidTransformerWarning

BOX = {"bounds": (-4, 4)}
HALF = FunctionTransformer(lambda cells: cells / 2)


def rows():
    return np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)


def warned(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnpaidTransformerWarning)
        warnings.simplefilter("ignore", RepeatedFitWarning)
        work()
    return [str(one.message) for one in caught if one.category is UnpaidTransformerWarning]


def columns(step):
    return ColumnTransformer([("all", step, [0, 1])])


def density():
    return DPGaussian(1.0, 1e-5, **BOX)


@pytest.mark.parametrize(
    "step",
    [StandardScaler(), columns(StandardScaler()), FeatureUnion([("a", StandardScaler())])],
    ids=["scaler", "columns", "union"],
)
def test_a_step_that_learned_is_named(step):
    (message,) = warned(lambda: make_pipeline(step, density()).fit(rows()))
    assert type(step).__name__ in message
    assert "declared bounds" in message


@pytest.mark.parametrize(
    "step",
    [HALF, Normalizer(), columns(HALF), "passthrough"],
    ids=["function", "norm", "columns", "nothing"],
)
def test_a_fixed_step_is_not(step):
    assert warned(lambda: make_pipeline(step, density()).fit(rows())) == []


def test_a_step_that_knows_the_shape_alone_is_not():
    shape = PolynomialFeatures(degree=1, include_bias=False)
    assert warned(lambda: make_pipeline(shape, density()).fit(rows())) == []


def test_pipelines_in_searches_and_around_detectors_are_found():
    detectors = (
        DPAnomalyDetector(density()),
        DPEnsembleDetector(
            5, DPGaussian(**BOX), epsilon_per_query=0.5, total_budget=Budget(1.0, 1e-5)
        ),
    )
    for detector in detectors:
        assert len(warned(lambda d=detector: make_pipeline(StandardScaler(), d).fit(rows()))) == 1
    nested = make_pipeline(make_pipeline(StandardScaler()), density())
    assert len(warned(lambda: cross_val_score(nested, rows(), cv=2))) == 2


def test_an_estimator_by_itself_is_not_warned_of():
    assert warned(lambda: density().fit(StandardScaler().fit_transform(rows()))) == []

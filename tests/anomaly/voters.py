"""Small ensembles for the tests of answers and charges."""

import dataclasses

import numpy as np

from dpflows import Budget, DPEnsembleDetector, DPGaussian
from dpflows.privacy.accounting import epsilon_of

BOUNDS = (-4, 4)


def normal_rows(count=600):
    return np.random.default_rng().normal(size=(count, 2)).clip(*BOUNDS)


def ensemble(k=5, **settings):
    """Five Gaussians whose answers are nearly free, so that there are many of them."""
    known = {"epsilon_per_query": 0.01, "total_budget": Budget(1.0, 1e-6)}
    return DPEnsembleDetector(k, DPGaussian(bounds=BOUNDS), **(known | settings))


def cost_of(answers):
    """The budget that has room for so many answers of ``ensemble()`` and no more."""
    event = dataclasses.replace(ensemble().plan().event, count=answers)
    return epsilon_of([event], delta=1e-6, neighbours="zero-out")

"""Density models with exact likelihoods, for one row at a time; no data and no privacy here."""

from dpflows.models.architectures import ARCHITECTURES, Architecture, Recipe
from dpflows.models.density import (
    Defended,
    Density,
    gaussian,
    gaussian_mixture,
    uniform_box,
    wide_gaussian,
)
from dpflows.models.normalisers import Curve, Curves, Normaliser, Scaling, normaliser_from

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Defended",
    "Density",
    "Curve",
    "Curves",
    "Normaliser",
    "Scaling",
    "normaliser_from",
    "Recipe",
    "gaussian",
    "gaussian_mixture",
    "uniform_box",
    "wide_gaussian",
]

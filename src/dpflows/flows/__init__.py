"""Exact-likelihood maps of one row. Knows no data and no privacy."""

from dpflows.flows.architectures import ARCHITECTURES, Architecture, Recipe
from dpflows.flows.base import gaussian, gaussian_mixture, uniform_box, wide_gaussian
from dpflows.flows.density import Defended, Density
from dpflows.flows.normalisers import Curve, Curves, Normaliser, Scaling, normaliser_from

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

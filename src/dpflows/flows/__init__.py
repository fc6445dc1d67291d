"""Exact-likelihood maps of one row. Knows no data and no privacy."""

from dpflows.flows.architectures import ARCHITECTURES, Architecture, Recipe
from dpflows.flows.base import gaussian, gaussian_mixture, uniform_box, wide_gaussian
from dpflows.flows.density import Defended, Density, Normaliser

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Defended",
    "Density",
    "Normaliser",
    "Recipe",
    "gaussian",
    "gaussian_mixture",
    "uniform_box",
    "wide_gaussian",
]

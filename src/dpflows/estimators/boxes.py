"""The density over a box of numbers in a model file."""

from typing import Any

import numpy as np

from dpflows.flows.density import Defended, Density
from dpflows.flows.normalisers import Normaliser
from dpflows.table.encoding import Encoding


def describe_density(density: Density) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a file must hold of a density beside its model."""
    header = {"log_inside": density.log_inside, "background_weight": density.model.weight}
    return header, density.normaliser.arrays()


def read_density(
    header: dict[str, Any], normaliser: Normaliser, model: Defended, encoding: Encoding
) -> Density:
    """The density that ``describe_density`` described; the content may be hostile."""
    weighted = Defended(model.flow, model.background, float(header["background_weight"]))
    inside = float(header["log_inside"])
    return Density(normaliser, weighted, encoding.low, encoding.high, inside)

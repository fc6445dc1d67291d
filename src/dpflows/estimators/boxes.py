"""The density over a box of numbers in a model file."""

from typing import Any

import numpy as np

from dpflows.flows.density import Defended, Density
from dpflows.flows.normalisers import Normaliser
from dpflows.pipeline.stage import Work, jax_key, needed
from dpflows.table.encoding import Encoding


def released_density(model: Defended, work: Work) -> Density:
    """A released model over the box; the mass inside is found from the model alone."""
    density = Density(needed(work.normaliser), model, *work.box)
    return density.with_inside_mass(jax_key(work.entropy, "sampling", step=1))


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

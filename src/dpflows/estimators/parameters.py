"""A flow's trained numbers by name, and a flow filled with them again."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.errors import InputError
from dpflows.estimators.persistence import fill
from dpflows.flows.architectures import Architecture
from dpflows.training.taps import take_apart

Model = TypeVar("Model")
#: How the names of trained arrays begin.
PARAMETER = "parameter-"


def require_room(architecture: Architecture, columns: int, arrays: dict[str, np.ndarray]) -> None:
    """Refuse a file that names a flow far larger than what it holds, before building it."""
    # Masks count in the size but are not stored: at most one for each number that is.
    if architecture.size(columns) > 2 * sum(a.size for a in arrays.values()) + 1000:
        raise InputError("the file's parameters do not fit its architecture")


def parameter_arrays(model: Any) -> dict[str, np.ndarray]:
    """A model's trained arrays by name; weights that a mask hides are zero."""
    parameters, blueprint = take_apart(model)
    dense = tuple(
        layer._replace(weight=layer.weight if mask is None else jnp.where(mask, layer.weight, 0))
        for layer, mask in zip(parameters.dense, blueprint.masks, strict=True)
    )
    leaves = jax.tree.leaves(parameters._replace(dense=dense))
    return {f"{PARAMETER}{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def with_parameters(template: Model, arrays: dict[str, np.ndarray]) -> Model:
    """The template with the arrays that ``parameter_arrays`` gave."""
    parameters, blueprint = take_apart(template)
    values = fill(parameter_arrays(template), arrays)
    leaves = [jnp.asarray(value) for value in values]
    return blueprint.assemble(jax.tree.unflatten(jax.tree.structure(parameters), leaves))

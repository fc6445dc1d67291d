"""A flow's trained numbers by name, and a flow filled with them again."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.errors import InputError
from dpflows.estimators.persistence import fill
from dpflows.estimators.preparing import Prepared
from dpflows.flows.architectures import Architecture
from dpflows.flows.base import uniform_box
from dpflows.flows.density import Defended
from dpflows.table.encoding import Encoding
from dpflows.training.plan import Plan
from dpflows.training.taps import take_apart

Model = TypeVar("Model")
#: How the names of trained arrays begin.
PARAMETER = "parameter-"


def fresh_model(
    plan: Plan,
    prepared: Prepared,
    encoding: Encoding,
    key_words: np.ndarray,
    *,
    trainable_prior: bool = False,
) -> Defended:
    """An untrained flow over a box, defended by the uniform background on that box.

    Where the plan trains nothing, the prior itself stands in for the flow.
    """
    base = prepared.base(trainable=trainable_prior)
    if plan.steps > 0 or base is None:
        key = jax.random.wrap_key_data(jnp.asarray(key_words))
        base = _flow(plan).build(len(encoding.low), key=key, base=base)
    box = (encoding.low, encoding.high)
    corners = (prepared.normaliser.apply(corner[None])[0] for corner in box)
    return Defended(base, uniform_box(*(corner.tolist() for corner in corners)))


def _flow(plan: Plan) -> Architecture:
    if not isinstance(plan.architecture, Architecture):
        raise InputError("the plan is for a table of mixed kinds")
    return plan.architecture


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

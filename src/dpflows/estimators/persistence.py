"""Model files: estimators are written to one file and read back without running code.

A model describes itself by a JSON header and named arrays, trained parameters among them; this
module writes them and finds the class again. A new estimator is one line in ``ESTIMATORS``.
"""

import contextlib
import importlib
import os
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.errors import InputError
from dpflows.files import read_model, write_model
from dpflows.models.architectures import Architecture
from dpflows.privacy.accounting.certificates import Misstated
from dpflows.training.ghost_clipping import take_apart

VERSION = metadata.version("dpflows")

ESTIMATORS: dict[str, str] = {
    "DPAutoregressive": "dpflows.estimators.autoregressive",
    "DPDensity": "dpflows.estimators.density",
    "DPFlow": "dpflows.estimators.flow",
    "DPGaussian": "dpflows.estimators.gaussian",
    "DPGaussianMixture": "dpflows.estimators.mixture",
    "DPHistogram": "dpflows.estimators.histogram",
    "DPKernelDensity": "dpflows.estimators.kernel",
}


#: Names on the command line besides those that ``short_name`` gives.
ALIASES = {"mixture": "DPGaussianMixture", "kernel": "DPKernelDensity"}


@runtime_checkable
class Stored(Protocol):
    """A fitted model that can describe itself."""

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-ready header and the arrays that together are the model."""


def short_name(estimator: str) -> str:
    """The name of an estimator on the command line.

    Example:
        >>> short_name("DPGaussianMixture")
        'gaussian-mixture'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", estimator.removeprefix("DP")).lower()


def estimator_class(name: str) -> type[Any]:
    """The estimator of a name, whole or as on the command line.

    Example:
        >>> estimator_class("flow").__name__
        'DPFlow'
    """
    whole = {short_name(one): one for one in ESTIMATORS} | {one: one for one in ESTIMATORS}
    whole |= ALIASES
    if name not in whole:
        known = ", ".join(sorted(map(short_name, ESTIMATORS)))
        raise InputError(f"model must be one of {known}; got {name!r}")
    return class_named(whole[name], ESTIMATORS, "estimator")


#: No training comes near such numbers, and sums of larger ones overflow.
LARGEST = 1e12
#: What a file can cause that was made to; errors of memory come as RuntimeError from JAX.
_CAUSED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def save(
    model: Stored, path: str | os.PathLike[str], *, role: str = "estimator", overwrite: bool = False
) -> None:
    """Write a fitted model, its guarantee included."""
    header, arrays = file_content(model, role=role)
    write_model(path, header=header, arrays=arrays, overwrite=overwrite)


def file_content(
    model: Stored, *, role: str = "estimator"
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a model's file."""
    header, arrays = described(model, role=role)
    return {**header, "dpflows": VERSION}, arrays


def load(path: str | os.PathLike[str]) -> Any:
    """Read a fitted estimator of any class from a file.

    Example:
        >>> load("missing.dpflow")
        Traceback (most recent call last):
        dpflows.errors.InputError: ...
    """
    header, arrays = read_model(path)
    with explained():
        return rebuilt(header, arrays)


def described(
    model: Stored, *, role: str = "estimator"
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A header that names the model's class, and arrays; together they are the model.

    Args:
        model: A fitted estimator or detector.
        role: Under which key the header names the class: ``estimator`` or ``detector``.
    """
    header, arrays = model.to_file()
    return {**header, role: type(model).__name__}, arrays


def rebuilt(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The fitted estimator that ``described`` described; the content may be hostile."""
    return class_named(header.get("estimator"), ESTIMATORS, "estimator").from_file(header, arrays)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn any error caused by hostile content into one line that quotes none of it."""
    try:
        with np.errstate(all="ignore"):
            yield
    except Misstated as refusal:
        # Its words are ours, and the reader must know that it is no damage.
        raise InputError(str(refusal)) from None
    except _CAUSED:
        # An InputError too: what it quotes was not said by the caller but by the file.
        raise InputError(
            "the file is not a model of this version of dpflows "
            f"({VERSION}): its content is inconsistent"
        ) from None


def class_named(name: Any, known: Mapping[str, str], role: str) -> Any:
    """The class of a name that a file holds, imported from its module."""
    if name not in known:
        raise InputError(f"the file holds an unknown {role}; known: {', '.join(known)}")
    return getattr(importlib.import_module(known[name]), name)


def fill(template: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arrays in the template's order, each of the template's shape, all finite."""
    for name, expected in template.items():
        found = arrays.get(name)
        if found is None or found.shape != expected.shape or found.dtype.kind != "f":
            raise InputError("the file's parameters do not fit its architecture")
        if not (np.abs(found.astype(expected.dtype)) <= LARGEST).all():
            raise InputError("the file's parameters are not finite or too large")
    return [arrays[name].astype(expected.dtype) for name, expected in template.items()]


Model = TypeVar("Model")
#: How the names of trained arrays begin.
PARAMETER = "parameter-"


def require_room(architecture: Architecture, columns: int, arrays: dict[str, np.ndarray]) -> None:
    """Refuse a file that names a far larger flow than it holds, before building it."""
    # Masks count in the size but are not stored: at most one for each number that is.
    if architecture.size(columns) > 2 * sum(a.size for a in arrays.values()) + 1000:
        raise InputError("the file's parameters do not fit its architecture")


def parameter_arrays(model: Any) -> dict[str, np.ndarray]:
    """A model's trained arrays by name; masked weights are zero."""
    parameters, blueprint = take_apart(model)
    dense = tuple(
        layer._replace(weight=layer.weight if mask is None else jnp.where(mask, layer.weight, 0))
        for layer, mask in zip(parameters.dense, blueprint.masks, strict=True)
    )
    leaves = jax.tree.leaves(parameters._replace(dense=dense))
    return {f"{PARAMETER}{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def with_parameters(template: Model, arrays: dict[str, np.ndarray]) -> Model:
    """The template with the arrays from ``parameter_arrays``."""
    parameters, blueprint = take_apart(template)
    values = fill(parameter_arrays(template), arrays)
    leaves = [jnp.asarray(value) for value in values]
    return blueprint.assemble(jax.tree.unflatten(jax.tree.structure(parameters), leaves))

"""Shared refusals of mechanisms: public parameters only, never a private value."""

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError

Column = Float64[np.ndarray, " rows"]


def check_edges(edges: Float64[np.ndarray, " edges"]) -> None:
    """Refuse bin edges that are not finite and strictly increasing."""
    if len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise InputError("edges must be at least two finite, strictly increasing numbers")


def check_fraction(name: str, value: float) -> None:
    """Refuse anything outside the open unit interval."""
    if not 0 < value < 1:
        raise InputError(f"{name} must be in (0, 1), got {value}")

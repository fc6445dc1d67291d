"""Differentially private densities, synthetic tables and anomaly detectors.

The public names are loaded on first use, so that importing the package is
instant and pulls in no plotting, table or mechanism library.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dpflows.errors import BudgetError, InputError
    from dpflows.estimators.flow import DPFlow
    from dpflows.estimators.persistence import load
    from dpflows.privacy.guarantee import Budget, Guarantee

_HOMES = {
    "Budget": "dpflows.privacy.guarantee",
    "BudgetError": "dpflows.errors",
    "DPFlow": "dpflows.estimators.flow",
    "Guarantee": "dpflows.privacy.guarantee",
    "InputError": "dpflows.errors",
    "load": "dpflows.estimators.persistence",
}

__all__ = [
    "Budget",
    "BudgetError",
    "DPFlow",
    "Guarantee",
    "InputError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpflows' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

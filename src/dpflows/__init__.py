"""Differentially private density estimation, synthetic tables and anomaly detection.

Public names are imported on first use, so importing the package is fast and loads no
plotting, table or mechanism library.
"""

import importlib

# not typing's: an import of it would be most of what importing this package takes
TYPE_CHECKING = False

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from dpflows.anomaly.ensemble import DPEnsembleDetector
    from dpflows.anomaly.persistence import load, sign, verify
    from dpflows.anomaly.threshold import DPAnomalyDetector
    from dpflows.errors import BudgetError, InputError, PrivacyWarning
    from dpflows.estimators.autoregressive import DPAutoregressive
    from dpflows.estimators.density import DPDensity
    from dpflows.estimators.flow import DPFlow
    from dpflows.estimators.gaussian import DPGaussian
    from dpflows.estimators.histogram import DPHistogram
    from dpflows.estimators.kernel import DPKernelDensity
    from dpflows.estimators.mixture import DPGaussianMixture
    from dpflows.estimators.select import DPSelect
    from dpflows.privacy.guarantee import Budget, Guarantee
    from dpflows.privacy.ledger import Ledger
    from dpflows.table.schema import Schema

_HOMES = {
    "Budget": "dpflows.privacy.guarantee",
    "BudgetError": "dpflows.errors",
    "DPAnomalyDetector": "dpflows.anomaly.threshold",
    "DPAutoregressive": "dpflows.estimators.autoregressive",
    "DPDensity": "dpflows.estimators.density",
    "DPEnsembleDetector": "dpflows.anomaly.ensemble",
    "DPFlow": "dpflows.estimators.flow",
    "DPGaussian": "dpflows.estimators.gaussian",
    "DPGaussianMixture": "dpflows.estimators.mixture",
    "DPHistogram": "dpflows.estimators.histogram",
    "DPKernelDensity": "dpflows.estimators.kernel",
    "DPSelect": "dpflows.estimators.select",
    "Guarantee": "dpflows.privacy.guarantee",
    "InputError": "dpflows.errors",
    "Ledger": "dpflows.privacy.ledger",
    "PrivacyWarning": "dpflows.errors",
    "Schema": "dpflows.table.schema",
    "load": "dpflows.anomaly.persistence",
    "sign": "dpflows.anomaly.persistence",
    "verify": "dpflows.anomaly.persistence",
}

__all__ = [
    "Budget",
    "BudgetError",
    "DPAnomalyDetector",
    "DPAutoregressive",
    "DPDensity",
    "DPEnsembleDetector",
    "DPFlow",
    "DPGaussian",
    "DPGaussianMixture",
    "DPHistogram",
    "DPKernelDensity",
    "DPSelect",
    "Guarantee",
    "InputError",
    "Ledger",
    "PrivacyWarning",
    "Schema",
    "__version__",
    "load",
    "sign",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpflows' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Accountants, calibration and privacy filters.

The only package that imports the accounting library.
"""

from dpflows.privacy.accounting.base import Accountant, Profile
from dpflows.privacy.accounting.calibration import (
    Run,
    View,
    calibrate_noise,
    calibrate_steps,
    strength,
)
from dpflows.privacy.accounting.filters import PrivacyFilter, StepFilter
from dpflows.privacy.accounting.registry import ACCOUNTANTS, delta_of, epsilon_of, guarantee_for

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "PrivacyFilter",
    "Profile",
    "Run",
    "StepFilter",
    "View",
    "calibrate_noise",
    "calibrate_steps",
    "delta_of",
    "epsilon_of",
    "guarantee_for",
    "strength",
]

"""Accountants, calibration and privacy filters.

The only package that imports the accounting library.
"""

from dpflows.privacy.accounting.filters import PrivacyFilter, StepFilter
from dpflows.privacy.accounting.privacy_profiles import Accountant, Profile
from dpflows.privacy.accounting.registry import (
    ACCOUNTANTS,
    Run,
    View,
    calibrate_noise,
    calibrate_steps,
    delta_of,
    epsilon_of,
    guarantee_for,
    noise_of_share,
    strength,
)

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
    "noise_of_share",
    "strength",
]

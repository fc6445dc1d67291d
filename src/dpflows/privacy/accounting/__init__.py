"""What releases cost: accountants, calibration and filters.

The only package that talks to the accounting library.
"""

from dpflows.privacy.accounting.base import Accountant, Profile
from dpflows.privacy.accounting.calibration import calibrate_noise, calibrate_steps, strength
from dpflows.privacy.accounting.filters import PrivacyFilter, StepFilter
from dpflows.privacy.accounting.pricing import ACCOUNTANTS, delta_of, epsilon_of, guarantee_for
from dpflows.privacy.accounting.survey import Run, View

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

"""Releases that are not gradients: counts, quantiles, categories, moments, choices, votes.

Each returns its value together with the event to charge. Noise is sampled exactly.
"""

from dpflows.privacy.mechanisms.categories import discover_categories
from dpflows.privacy.mechanisms.choosing import exponential_mechanism, report_noisy_max
from dpflows.privacy.mechanisms.counting import noisy_count, noisy_histogram
from dpflows.privacy.mechanisms.covariances import SecondMoments, noisy_covariance
from dpflows.privacy.mechanisms.grids import noisy_grid
from dpflows.privacy.mechanisms.kernels import KernelAxis, noisy_kernel_sum
from dpflows.privacy.mechanisms.marginals import noisy_marginals
from dpflows.privacy.mechanisms.moments import Moments, clipped_moments
from dpflows.privacy.mechanisms.quantiles import private_bounds, private_quantile
from dpflows.privacy.mechanisms.release import Release
from dpflows.privacy.mechanisms.sparse import SparseVector
from dpflows.privacy.mechanisms.trees import noisy_distributions
from dpflows.privacy.mechanisms.tuning import noisy_mean_score, select_best, selection_event
from dpflows.privacy.mechanisms.voting import noisy_vote

__all__ = [
    "KernelAxis",
    "Moments",
    "Release",
    "SecondMoments",
    "SparseVector",
    "clipped_moments",
    "discover_categories",
    "exponential_mechanism",
    "noisy_count",
    "noisy_covariance",
    "noisy_distributions",
    "noisy_grid",
    "noisy_histogram",
    "noisy_kernel_sum",
    "noisy_marginals",
    "noisy_mean_score",
    "noisy_vote",
    "private_bounds",
    "private_quantile",
    "report_noisy_max",
    "select_best",
    "selection_event",
]

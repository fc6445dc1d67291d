"""Mechanisms other than DP-SGD: counts, quantiles, categories, moments, selection, votes.

Each returns its value together with the event to charge. Noise is sampled exactly.
"""

from dpflows.privacy.events import Release
from dpflows.privacy.mechanisms.selection import (
    SparseVector,
    exponential_mechanism,
    noisy_mean_score,
    noisy_vote,
    private_bounds,
    private_quantile,
    report_noisy_max,
    select_best,
    selection_event,
)
from dpflows.privacy.mechanisms.statistics import (
    KernelAxis,
    Moments,
    SecondMoments,
    clipped_moments,
    discover_categories,
    noisy_count,
    noisy_covariance,
    noisy_distributions,
    noisy_grid,
    noisy_histogram,
    noisy_kernel_sum,
    noisy_marginals,
)

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

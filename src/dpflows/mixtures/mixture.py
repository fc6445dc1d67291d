"""A mixture of Gaussians as plain numbers: what every fit in this room returns."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from dpflows.errors import InputError

Rows = Float64[np.ndarray, "n d"]
Scores = Float64[np.ndarray, " n"]

_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Weights that sum to one, means, and lower Cholesky factors of the covariances.

    Example:
        >>> mixture = Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
        >>> round(float(mixture.log_prob(np.zeros((1, 2)))[0]), 3)
        -1.838
        >>> mixture.sample(3, np.random.default_rng()).shape
        (3, 2)
    """

    weights: Float64[np.ndarray, " k"]
    means: Float64[np.ndarray, "k d"]
    factors: Float64[np.ndarray, "k d d"]

    def __post_init__(self) -> None:
        if not (self.weights >= 0).all() or not math.isclose(self.weights.sum(), 1, rel_tol=1e-6):
            raise InputError("weights must be at least zero and sum to one; divide by their sum")
        if not (np.diagonal(self.factors, axis1=1, axis2=2) > 0).all():
            raise InputError("factors must be lower Cholesky factors with positive diagonals")

    def log_prob(self, rows: Rows) -> Scores:
        """The log-density of each row."""
        parts = [self._log_prob(chunk) for chunk in _chunks(rows)]
        return np.concatenate(parts) if parts else np.empty(0)

    def sample(self, n: int, rng: np.random.Generator) -> Rows:
        """``n`` independent rows."""
        which = rng.choice(len(self.weights), size=n, p=self.weights / self.weights.sum())
        normal = rng.standard_normal((n, self.means.shape[1]))
        return self.means[which] + np.einsum("nij,nj->ni", self.factors[which], normal)

    def scaled(
        self, scale: Float64[np.ndarray, " d"], shift: Float64[np.ndarray, " d"]
    ) -> "Mixture":
        """The mixture of ``scale * x + shift`` when x follows this one; scales are positive."""
        factors = scale[:, None] * self.factors
        return Mixture(self.weights, scale * self.means + shift, factors)

    def _log_prob(self, rows: Rows) -> Scores:
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights)
        parts = zip(logs, self.means, self.factors, strict=True)
        scores = [log + _gaussian(rows, mean, factor) for log, mean, factor in parts]
        return np.asarray(logsumexp(np.stack(scores), axis=0))


def _gaussian(
    rows: Rows, mean: Float64[np.ndarray, " d"], factor: Float64[np.ndarray, "d d"]
) -> Scores:
    local = solve_triangular(factor, (rows - mean).T, lower=True, check_finite=False)
    constant = np.log(np.diagonal(factor)).sum() + len(mean) * math.log(2 * math.pi) / 2
    return -0.5 * np.einsum("dn,dn->n", local, local) - constant


def _chunks(rows: Rows) -> Iterator[Rows]:
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))

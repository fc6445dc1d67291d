"""Growing a mixture: the heaviest components are cut in two across their longest axis."""

import numpy as np
from jaxtyping import Float64, Int

from dpflows.mixtures.frames import Components
from dpflows.mixtures.gains import Matrices, State, Vectors
from dpflows.mixtures.recipe import Recipe


def split(state: State, target: int, recipe: Recipe, block: int) -> State:
    """The state with ``target`` components, or twice as many as now if that is less.

    A half keeps ``split_left`` of the variance along the cut and starts ``split_at``
    deviations from the old mean, so the pair has about the moments of the whole.

    Example:
        >>> whole = Components(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)))
        >>> halves = split(State.fresh(whole, Recipe()), 2, Recipe(), 1).components
        >>> halves.weights.tolist(), halves.means.ravel().tolist()
        ([0.5, 0.5], [0.8, -0.8])
    """
    old = state.components
    chosen = np.argsort(-old.weights, kind="stable")[: max(target - len(old), 0)]
    across = longest_axes(old.factors[chosen], block)
    shift = recipe.split_at * np.einsum("kij,kj->ki", old.factors[chosen], across)
    fresh = State.fresh(_halves(old, chosen, across, shift, recipe.split_left), recipe)
    touched = np.concatenate([np.isin(np.arange(len(old)), chosen), np.ones(len(chosen), bool)])
    kept = np.concatenate([np.arange(len(old)), chosen])
    return State(
        fresh.components,
        np.where(touched, fresh.weight, state.weight[kept]),
        np.where(touched, fresh.mean, state.mean[kept]),
        np.where(touched, fresh.shape, state.shape[kept]),
    )


def with_scout(state: State, wide: Components, weight: float) -> State:
    """The state and a wide component, last, that looks for rows which no other covers.

    Nothing is known about it, so it may follow its first moments wherever they lead.
    """
    old = state.components
    joined = Components(
        np.append(old.weights * (1 - weight), weight),
        np.concatenate([old.means, wide.means]),
        np.concatenate([old.factors, wide.factors]),
    )
    doubts = (np.append(variance, 1.0) for variance in (state.weight, state.mean, state.shape))
    return State(joined, *doubts)


def without_idle_scout(state: State, weight: float) -> State:
    """The state without its last component if that found fewer rows than ``weight`` of all."""
    if len(state.components) < 2 or state.components.weights[-1] >= weight:
        return state
    old = state.components
    rest = Components(old.weights[:-1] / old.weights[:-1].sum(), old.means[:-1], old.factors[:-1])
    return State(rest, state.weight[:-1], state.mean[:-1], state.shape[:-1])


def _halves(
    old: Components, chosen: Int[np.ndarray, " s"], across: Vectors, shift: Vectors, left: float
) -> Components:
    outer = across[:, :, None] * across[:, None, :]
    inner = np.eye(across.shape[1]) - (1 - left) * outer
    weights, means, factors = old.weights.copy(), old.means.copy(), old.factors.copy()
    weights[chosen] /= 2
    means[chosen] += shift
    factors[chosen] = factors[chosen] @ np.linalg.cholesky(inner)
    return Components(
        np.concatenate([weights, weights[chosen]]),
        np.concatenate([means, old.means[chosen] - shift]),
        np.concatenate([factors, factors[chosen]]),
    )


def longest_axes(factors: Matrices, block: int) -> Vectors:
    """Unit directions, each in its component's frame, of the longest axis the shape allows.

    A covariance that is full in the first ``block`` columns and diagonal beyond keeps
    that form only if the cut lies inside the block or along a single column.
    """
    covariances = factors @ np.swapaxes(factors, 1, 2)
    squares = np.diagonal(covariances, axis1=1, axis2=2)
    inside, lengths = _leading(covariances, block)
    single = np.argmax(squares, axis=1)
    alone = np.take_along_axis(squares, single[:, None], axis=1)[:, 0] > lengths
    best = np.where(alone[:, None], np.eye(factors.shape[1])[single], inside)
    local = np.linalg.solve(factors, best[:, :, None])[:, :, 0]
    return local / np.linalg.norm(local, axis=1, keepdims=True)


def _leading(covariances: Matrices, block: int) -> tuple[Vectors, Float64[np.ndarray, " k"]]:
    k, d, _ = covariances.shape
    if block < 2 or k == 0:
        return np.zeros((k, d)), np.zeros(k)
    values, vectors = np.linalg.eigh(covariances[:, :block, :block])
    padded = np.zeros((k, d))
    padded[:, :block] = vectors[:, :, -1]
    # the margin keeps rounding from preferring a single column to the same axis
    return padded, values[:, -1] * (1 + 1e-9)

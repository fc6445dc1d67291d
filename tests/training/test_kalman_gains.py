"""Gains weigh noise against doubt, and the cut's shrinkage is undone."""

import numpy as np
import pytest

from dpflows.training.local_frames import (
    Background,
    Channel,
    Components,
    Recipe,
    State,
    limited,
    local_sums,
    response,
    statistic_for,
    updated,
)

ROWS = 200_000
NOWHERE = Background(0.0, 0.0)


def cut(rows, clip):
    radius = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, clip / radius)


def is_response(d, clip, value, name):
    """Compare with 200,000 draws; a correct value fails with less than one in a million."""
    rng = np.random.default_rng(d)
    rows = rng.normal(size=(ROWS, d))
    step = 0.05
    wide = np.sqrt(1 + step)
    stretch = np.ones(d)
    stretch[0], stretch[-1] = wide, np.sqrt(1 - step)
    # the same draws before and after the stretch, so that their own spread cancels
    moved = cut(rows * stretch, clip) ** 2 - cut(rows, clip) ** 2
    samples = {
        "mean": (cut(rows + step, clip) - cut(rows - step, clip))[:, 0] / (2 * step),
        "level": cut(rows, clip)[:, 0] ** 2,
        "shape": (moved[:, 0] - moved[:, -1]) / (2 * step),
        "size": (cut(rows * wide, clip)[:, 0] ** 2 - cut(rows / wide, clip)[:, 0] ** 2)
        / (wide**2 - wide**-2),
    }[name]
    error = samples.std() / np.sqrt(ROWS)
    # five standard errors and the curvature that the step leaves
    return abs(samples.mean() - value) < 5 * error + 0.003


@pytest.mark.parametrize("name", ["mean", "level", "shape", "size"])
@pytest.mark.parametrize("d", [2, 10])
def test_the_response_to_the_cut_is_right(name, d):
    clip = np.sqrt(d) + 0.1
    value = getattr(response(d, float(clip)), name)
    assert is_response(d, clip, value, name)
    assert not is_response(d, clip, value * 1.15, name)


def one_step(rows, recipe, noise=1e-9, factor=1.0):
    d = rows.shape[1]
    statistic = statistic_for(columns=d, block=d)
    parts = Components(np.ones(1), np.zeros((1, d)), factor * np.eye(d)[None])
    sums = local_sums(rows, parts, statistic, NOWHERE)
    channel = Channel(statistic, noise, float(len(rows)), recipe)
    return updated(State.fresh(parts, recipe), sums, channel)


def test_a_small_move_of_mean_and_covariance_is_found_in_one_step():
    rng = np.random.default_rng(1)
    mixing = np.array([[1.05, 0.0], [0.08, 0.97]])
    rows = rng.normal(size=(ROWS, 2)) @ mixing.T + [0.05, -0.03]
    after = one_step(rows, Recipe(gains=False)).components
    assert after.means[0] == pytest.approx([0.05, -0.03], abs=0.015)
    assert after.factors[0] @ after.factors[0].T == pytest.approx(mixing @ mixing.T, abs=0.03)


def test_noise_damps_the_step_and_leaves_the_doubt():
    rows = np.random.default_rng(2).normal(size=(500, 2)) + 0.3
    trusted, doubted = (one_step(rows, Recipe(), noise=noise) for noise in (1e-3, 100.0))
    assert np.linalg.norm(doubted.components.means) < 0.7 * np.linalg.norm(trusted.components.means)
    assert doubted.mean[0] > 5 * trusted.mean[0]
    assert doubted.mean[0] < Recipe().mean_variance + Recipe().drift


def test_eigenvalues_are_limited():
    values = np.linalg.eigvalsh(limited(np.diag([-1.0, 1.0, 100.0])[None], 0.25, 4.0))[0]
    assert values == pytest.approx([0.25, 1.0, 4.0])

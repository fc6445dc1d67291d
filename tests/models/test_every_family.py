"""Densities of every family behind a normaliser, a background and bounds."""

import jax.random as jr
import numpy as np
import pytest

from dpflows.models import (
    ARCHITECTURES,
    Architecture,
    Defended,
    Density,
    Scaling,
    uniform_box,
    wide_gaussian,
)
from models.perturbing import perturbed

HOSTILE = (0.0, -4.0, 4.0, 1e3, -1e3, 1e6, -1e6)
SMALL = {name: Architecture(name, width=16, depth=1, blocks=2, knots=4) for name in ARCHITECTURES}


def _bounded_density(name, dim):
    flow = perturbed(SMALL[name].build(dim, key=jr.key(7)), seed=5)
    normaliser = Scaling(np.full(dim, 10.0), np.full(dim, 2.0))
    low, high = np.full(dim, 8.0), np.full(dim, 15.0)
    box = uniform_box(normaliser.apply(low[None])[0], normaliser.apply(high[None])[0])
    density = Density(normaliser, Defended(flow, box), low, high)
    return density.with_inside_mass(jr.key(1))


def _check_bounded(name, dim):
    """False-alarm rate below 1e-4: the share inside has a standard error below 0.002."""
    density = _bounded_density(name, dim)
    side = {1: 4000, 2: 128}[dim]
    axis = 8 + 7 * (np.arange(side) + 0.5) / side
    grid = np.stack([mesh.ravel() for mesh in np.meshgrid(*[axis] * dim)], axis=1)
    mass = np.exp(density.log_prob(grid)).sum() * (7 / side) ** dim
    assert mass == pytest.approx(1, abs=0.02)
    rows = density.sample(jr.key(2), 500)
    assert rows.shape == (500, dim)
    assert ((rows >= 8) & (rows <= 15)).all()


@pytest.mark.parametrize(("name", "dim"), [("nsf", 1), ("maf", 2)])
def test_bounded_density_integrates_to_one(name, dim):
    _check_bounded(name, dim)


@pytest.mark.long
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_bounded_density_integrates_to_one(name, dim):
    _check_bounded(name, dim)


@pytest.mark.long
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_full_size_flows_stay_finite_when_defended(name, dim):
    flow = perturbed(Architecture(name, width=64, blocks=5).build(dim, key=jr.key(0)), seed=1)
    model = Defended(flow, wide_gaussian(dim))
    density = Density(Scaling.identity(dim), model)
    hostile = np.outer(HOSTILE, np.ones(dim))
    assert np.isfinite(density.log_prob(hostile)).all()
    assert np.isfinite(density.sample(jr.key(1), 1000)).all()

"""The paper's figures and its recipe."""

import numpy as np
import pytest

from dpflows.experiments.methods import METHODS, paper_box
from dpflows.experiments.paper import published
from dpflows.experiments.tables import RealTable
from dpflows.experiments.trajectory import recipe_flow, recipe_models, recipe_steps


@pytest.mark.parametrize(
    ("accountant", "steps"),
    [("gdp-clt", (3_556, 12_565, 43_746, 147_897)), ("ma", (508, 2_198, 8_909, 34_015))],
)
def test_the_recipe_stops_where_the_papers_accountants_do(accountant, steps):
    for epsilon, expected in zip((0.5, 1.0, 2.0, 4.0), steps, strict=True):
        got = recipe_steps(accountant, epsilon, rows=24_059, delta=1.52e-5)
        assert got == pytest.approx(expected, rel=5e-4)


def test_one_run_serves_several_claims(monkeypatch):
    """Each model is the one that a run of that length would have given."""
    from dpflows.experiments import trajectory

    monkeypatch.setattr(trajectory, "MOST_STEPS", 75)
    monkeypatch.setattr(trajectory, "recipe_flow", seeded)
    rows = np.random.default_rng(0).normal(size=(400, 2))
    box = (np.full(2, -6.0), np.full(2, 6.0))
    claims = [("ma", 8.0), ("gdp-clt", 8.0)]
    monkeypatch.setattr(
        trajectory, "recipe_steps", lambda name, *_, **__: 30 if name == "ma" else 80
    )
    models = {claim: model for claim, model, _ in recipe_models(rows, box, 1e-5, claims)}
    short, long = models["ma", 8.0], models["gdp-clt", 8.0]
    assert (short.plan_.steps, long.plan_.steps) == (25, 75)
    alone = seeded(8.0, 1e-5, box).set_params(steps=25).fit(rows)
    np.testing.assert_allclose(short.score_samples(rows), alone.score_samples(rows), atol=0.02)
    # or the comparison above would pass for any two models
    assert np.abs(short.score_samples(rows) - long.score_samples(rows)).max() > 0.05
    assert any("standardised" in stamp for stamp in short.guarantee_.stamps)
    assert short.guarantee_.epsilon < long.guarantee_.epsilon


def seeded(epsilon, delta, box):
    flow = recipe_flow(epsilon, delta, box)
    from dpflows.flows.architectures import Architecture

    small = Architecture("maf", width=8, depth=1, blocks=2)
    return flow.set_params(insecure_test_seed=5, architecture=small)


def test_the_best_private_figure_stands_beside_ours():
    assert published("pinwheel", "ours", "pld", 4.5) == -2.47
    assert published("pinwheel", "public-prior", "pld", 4.5) == -1.87
    assert published("power", "paper-recipe", "gdp-clt", 1.75) is None


def test_the_recipe_claims_what_the_paper_prints():
    recipe = METHODS["paper-recipe"]
    assert len(recipe.settings("power", [1.25, 1.75, 2.25])) == 4
    assert len(recipe.settings("power", [7.0])) == 2


def test_the_papers_box_holds_every_row():
    rows = np.random.default_rng(0).normal(size=(500, 3)) * [1, 10, 100] + 7
    table = RealTable(rows, rows.min(0), rows.max(0), 1e-5, np.ones(500))
    low, high = paper_box(table, rows)
    inside = 2 * (rows - low) / (high - low) - 1
    assert np.linalg.norm(inside, axis=1).max() == pytest.approx(1, abs=0.01)

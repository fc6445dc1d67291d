"""The paper's figures and its recipe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpflows.estimators.persistence import load
from dpflows.experiments.data import RealTable
from dpflows.experiments.methods import METHODS, paper_box
from dpflows.experiments.paper_recipe import (
    CHOSEN_STAMP,
    _Watch,
    published,
    recipe_flow,
    recipe_models,
    recipe_steps,
)
from dpflows.models.architectures import Architecture
from dpflows.models.density import Defended, uniform_box
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_sgd import State
from dpflows.training.ghost_clipping import take_apart

BOX = (np.full(2, -60.0), np.full(2, 60.0))
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("accountant", "steps"),
    [("gdp-clt", (3_556, 12_565, 43_746, 147_897)), ("ma", (508, 2_198, 8_909, 34_015))],
)
def test_the_recipe_stops_where_the_papers_accountants_do(accountant, steps):
    for epsilon, expected in zip((0.5, 1.0, 2.0, 4.0), steps, strict=True):
        got = recipe_steps(accountant, epsilon, rows=24_059, delta=1.52e-5)
        assert got == pytest.approx(expected, rel=5e-4)


def test_one_run_serves_several_claims(monkeypatch, tmp_path):
    """Each model is the best that the run passed before the claim's stop."""
    from dpflows.experiments import paper_recipe

    monkeypatch.setattr(paper_recipe, "recipe_flow", small_flow)
    monkeypatch.setattr(
        paper_recipe, "recipe_steps", lambda name, *_, **__: 30 if name == "ma" else 5000
    )
    monkeypatch.setattr(paper_recipe, "MOST_STEPS", 500)
    rows = np.random.default_rng(0).normal(size=(400, 2)) ** 3
    claims = [("ma", 8.0), ("gdp-clt", 8.0)]
    found = recipe_models(
        rows, rows, BOX, 1e-5, claims, standardised=False, entropy=Entropy.insecure(5)
    )
    models = {claim: model for claim, model, _ in found}
    short, long = models["ma", 8.0], models["gdp-clt", 8.0]
    assert (short.plan_.steps, long.plan_.steps) == (25, 500)
    assert short.score(rows) < long.score(rows)
    assert short.density_.model.weight == 0
    assert CHOSEN_STAMP in short.guarantee_.stamps
    assert short.guarantee_.epsilon < long.guarantee_.epsilon
    long.save(tmp_path / "long.dpflow")
    assert load(tmp_path / "long.dpflow").score(rows) == pytest.approx(long.score(rows), rel=1e-4)


def test_a_run_that_goes_astray_keeps_its_best_state():
    flow = Architecture("maf", width=4, blocks=1).build(2, key=KEY)
    model = Defended(flow, uniform_box((-9.0, -9.0), (9.0, 9.0)), 0.0)
    parameters, _ = take_apart(model)
    watch = _Watch(model, jnp.zeros((5, 2)), [25, 50])
    watch.look(at(25, parameters))
    watch.look(at(50, jax.tree.map(lambda a: a + 3.0, parameters)))
    assert watch.at[50][0] is watch.at[25][0]


def at(step, parameters):
    return State(parameters, None, parameters, jnp.asarray(step))


def small_flow(epsilon, delta, box):
    small = Architecture("maf", width=8, depth=1, blocks=2)
    return recipe_flow(epsilon, delta, box).set_params(architecture=small, learning_rate=0.01)


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

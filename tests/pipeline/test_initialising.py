"""ActNorm layers start where the noisy moments say, for what that costs."""

import jax
import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.models.architectures import ARCHITECTURES, Architecture
from dpflows.models.bijections import act_norms, with_act_norms
from dpflows.pipeline import initialisation as initialising
from dpflows.pipeline.initialisation import INITIALISATIONS, plan_initialisation
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy

ROWS = np.random.default_rng(5).normal([2.0, -1.0], [0.5, 1.5], size=(4000, 2))
BUDGET = Budget(2.0, 1e-5)


def flow(name="maf", dim=2):
    arch = Architecture(name, width=8, depth=1, blocks=2, knots=4)
    return arch, arch.build(dim, key=jax.random.key(1))


#: Each family costs a compilation: half of them are left to the long suite.
FAMILIES = [
    pytest.param(name, marks=pytest.mark.long) if at % 2 else name
    for at, name in enumerate(ARCHITECTURES)
    if ARCHITECTURES[name].act_norms or ARCHITECTURES[name].last
]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_counts_and_sets_its_layers(name):
    arch, fresh = flow(name)
    seen = []

    def choose(rows, layer):
        seen.append(layer)
        return rows.mean(axis=0), rows.std(axis=0)

    moved = with_act_norms(fresh, ROWS, choose)
    assert seen == list(range(arch.act_norms)) == list(range(act_norms(fresh)))
    assert jax.tree.structure(moved) == jax.tree.structure(fresh)
    before, after = (jax.vmap(f.log_prob)(ROWS[:500]).mean() for f in (fresh, moved))
    assert after > before + 1


def test_the_identity_is_free_and_changes_nothing():
    plan = plan_initialisation("identity", BUDGET, layers=2, columns=2)
    _, fresh = flow()
    assert plan.events == ()
    assert plan.start(fresh, ROWS, entropy=Entropy.from_os()) is fresh


def test_the_private_start_releases_its_events(monkeypatch):
    released = []
    real = initialising.clipped_moments
    monkeypatch.setattr(
        initialising,
        "clipped_moments",
        lambda *args, **options: released.append(real(*args, **options)) or released[-1],
    )
    plan = plan_initialisation("private", BUDGET, layers=2, columns=2)
    _, fresh = flow()
    moved = plan.start(fresh, ROWS, entropy=Entropy.from_os())
    assert tuple(release.event for release in released) == plan.events
    assert jax.vmap(moved.log_prob)(ROWS).mean() > jax.vmap(fresh.log_prob)(ROWS).mean()


def test_rows_move_the_private_start_no_further_than_claimed():
    """The sums released for one layer, on neighbouring tables, in units of the claim."""
    from dpflows.privacy.mechanisms.statistics import moments_sensitivity, unit_sums

    edge = np.full(2, initialising.CLIP)
    rng = np.random.default_rng(6)
    for _ in range(200):
        row = rng.normal(size=2) * 10.0 ** rng.uniform(-2, 3)
        with_row, without = (
            unit_sums(rows, -edge, edge) for rows in (np.vstack([ROWS[:20], row]), ROWS[:20])
        )
        moved = np.linalg.norm(with_row - without)
        assert moved <= moments_sensitivity(2).under("zero-out") * (1 + 1e-12)


def test_the_papers_deviation_moves_further_than_its_formula_says():
    """One row moves the deviation of a constant column by c / sqrt(n), not c / n."""
    still = np.zeros((10_000, 1))
    moved = still.copy()
    moved[0] = initialising.CLIP
    claimed = 2 * initialising.CLIP / len(still)
    assert abs(moved.std() - still.std()) > 40 * claimed


def test_an_unknown_start_is_refused():
    assert "identity" in INITIALISATIONS
    with pytest.raises(InputError, match="initialisation must be one of"):
        plan_initialisation("guess", BUDGET, layers=1, columns=1)

"""A delta at or above one over the number of rows: refused, or accepted and stated."""

import numpy as np
import pytest

from dpflows import Budget, DPEnsembleDetector, DPGaussian, DPSelect, InputError, load
from dpflows.anomaly.ensemble import UNCOMPARED_DELTA
from dpflows.estimators.persistence import ESTIMATORS
from dpflows.privacy.guarantee import large_delta_caveats, require_small_delta

ROWS = np.random.default_rng().uniform(-1, 1, size=(50, 2))
BOX = {"bounds": (-1, 1)}


@pytest.mark.parametrize("delta", [1 / 50, 0.2])
def test_one_over_rows_is_too_much(delta):
    with pytest.raises(InputError, match="smaller delta.*allow_large_delta=True"):
        require_small_delta(Budget(1.0, delta), 50)
    require_small_delta(Budget(1.0, delta), 50, allowed=True)
    require_small_delta(Budget(float("inf"), delta), 50)
    assert len(large_delta_caveats(Budget(1.0, delta), 50)) == 1


def test_less_is_fine():
    require_small_delta(Budget(1.0, np.nextafter(1 / 50, 0)), 50)
    assert large_delta_caveats(Budget(1.0, 0.0199), 50) == ()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_refuses_it_in_its_plan(name):
    import dpflows

    estimator = getattr(dpflows, name)(1.0, 0.02, **BOX)
    with pytest.raises(InputError, match="1 / rows = 0.02"):
        estimator.plan(50, 2)
    with pytest.raises(InputError, match="1 / rows = 0.02"):
        estimator.fit(ROWS)
    assert estimator.set_params(allow_large_delta=True).plan(50, 2).rows == 50


def test_an_accepted_one_is_in_the_certificate(tmp_path):
    fitted = DPGaussian(1.0, 0.02, allow_large_delta=True, **BOX).fit(ROWS)
    (caveat,) = fitted.guarantee_.caveats
    assert "not below one over the number of rows (50)" in caveat
    assert fitted.guarantee_.is_private
    assert f"Caveat: {caveat}" in fitted.privacy_statement()
    fitted.save(tmp_path / "model.dpflow")
    assert load(tmp_path / "model.dpflow").guarantee_.caveats == (caveat,)


def test_selections_and_ensembles_refuse_and_state_it_too():
    search = DPSelect(DPGaussian(1.0, 0.02, **BOX), [{"radius": 3.0}])
    with pytest.raises(InputError, match="1 / rows"):
        search.plan(50, 2)
    assert len(search.set_params(allow_large_delta=True).caveats(50)) == 1
    voters = DPEnsembleDetector(
        2, DPGaussian(**BOX), epsilon_per_query=0.5, total_budget=Budget(1.0, 0.02)
    )
    with pytest.raises(InputError, match="1 / rows"):
        voters.fit(ROWS)
    fitted = voters.set_params(allow_large_delta=True, insecure_test_seed=1).fit(ROWS)
    assert len(fitted.guarantee_.caveats) == 1


def test_a_private_number_of_rows_is_not_compared():
    voters = DPEnsembleDetector(
        2,
        DPGaussian(**BOX),
        epsilon_per_query=0.5,
        total_budget=Budget(1.0, 0.02, "add-remove"),
        insecure_test_seed=1,
    )
    assert voters.fit(ROWS).guarantee_.caveats == (UNCOMPARED_DELTA,)

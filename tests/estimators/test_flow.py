"""DPFlow keeps scikit-learn manners, pays for what it reads and survives a file."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dpflows import DPFlow, InputError, load
from dpflows.files import write_model
from dpflows.flows.architectures import Architecture
from dpflows.privacy.accounting import epsilon_of

ROWS = np.random.default_rng(3).normal(size=(400, 2)).clip(-4, 4)
SMALL = Architecture("nsf", width=8, depth=1, blocks=1, knots=4)


def small(**changes):
    settings = {
        "epsilon": 1.0,
        "delta": 1e-4,
        "bounds": (-4, 4),
        "architecture": SMALL,
        "steps": 5,
        "batch_size": 50,
        "insecure_test_seed": 1,
    }
    return DPFlow(**(settings | changes))


@pytest.fixture(scope="module")
def fitted():
    return small().fit(ROWS)


def test_parameters_are_only_stored():
    flow = small(bounds="anything")
    assert clone(flow).get_params() == flow.get_params()


def test_samples_lie_inside_the_declared_bounds(fitted):
    rows = fitted.sample(2000)
    assert rows.shape == (2000, 2)
    assert np.abs(rows).max() <= 4


def test_the_guarantee_is_what_the_events_cost(fitted):
    promise = fitted.guarantee_
    priced = epsilon_of(promise.events, delta=promise.delta, neighbours=promise.neighbours)
    assert priced <= promise.epsilon <= 1.0
    assert promise.replace_one_epsilon > promise.epsilon


def test_a_test_seed_is_stamped(fitted):
    assert not fitted.guarantee_.is_private
    assert fitted.privacy_statement().startswith("NOT PRIVATE")


def test_without_a_seed_the_guarantee_stands_and_runs_differ():
    first, second = (small(insecure_test_seed=None).fit(ROWS) for _ in range(2))
    assert first.guarantee_.is_private
    assert not np.array_equal(first.score_samples(ROWS), second.score_samples(ROWS))


def test_infinite_epsilon_is_stamped_and_adds_no_noise():
    flow = small(epsilon=float("inf"), insecure_test_seed=None).fit(ROWS)
    assert flow.plan_.noise_multiplier == 0
    assert "NOT PRIVATE" in flow.privacy_statement()


def test_a_saved_model_comes_back_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model.dpflow")
    again = load(tmp_path / "model.dpflow")
    np.testing.assert_allclose(again.score_samples(ROWS), fitted.score_samples(ROWS), rtol=1e-6)
    assert again.guarantee_ == fitted.guarantee_
    again.save(tmp_path / "again.dpflow")
    assert load(tmp_path / "again.dpflow").guarantee_ == fitted.guarantee_


def forged(fitted, tmp_path, change):
    """A file whose content was changed after the fit."""
    header, arrays = copy.deepcopy(fitted.to_file())
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    write_model(tmp_path / "forged.dpflow", header=header | {"estimator": "DPFlow"}, arrays=arrays)
    return tmp_path / "forged.dpflow"


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: header["plan"]["architecture"].update(width=8192, blocks=200),
        lambda header, arrays: header["plan"]["architecture"].update(depth=10**9),
        lambda header, arrays: header["schema"]["columns"].pop(),
        lambda header, arrays: header["plan"].pop("steps"),
        lambda header, arrays: arrays.pop("parameter-0"),
        lambda header, arrays: arrays["parameter-0"].fill(np.nan),
        lambda header, arrays: header.pop("guarantee"),
    ],
)
def test_forged_files_are_refused_before_they_cost_anything(fitted, tmp_path, change):
    with pytest.raises(InputError):
        load(forged(fitted, tmp_path, change))


def test_frames_in_frames_out(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["weight", "height"])
    flow = small().fit(frame)
    flow.save(tmp_path / "model.dpflow")
    for model in (flow, load(tmp_path / "model.dpflow")):
        assert list(model.sample(3).columns) == ["weight", "height"]


def test_the_plan_is_what_fit_does(fitted):
    assert fitted.plan(*ROWS.shape) == fitted.plan_


def test_noise_without_steps_runs_as_long_as_the_budget_lasts():
    plan = small(noise_multiplier=4.0, steps=None).plan(400, 2)
    more = small(noise_multiplier=4.0, steps=plan.steps + 5).plan(400, 2)
    assert plan.steps > 5
    assert more.steps == plan.steps
    assert plan.guarantee().epsilon <= 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": None}, "bounds are not declared"),
        ({"bounds": (1, 1)}, "low below high"),
        ({"bounds": (0, 1, 2)}, "bounds must be"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"delta": 0.0}, "delta must be in"),
        ({"neighbours": "friends"}, "neighbours must be"),
        ({"architecture": "gan"}, "name must be one of"),
        ({"sampling": "shuffle"}, "sampling must be"),
        ({"steps": 0}, "steps must be a positive"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a positive"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"accountant": "guess"}, "accountant must be"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        small(**changes).fit(ROWS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros(5), "rows and columns"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "must be filled"),
        (np.array([["secret", "1"], ["2", "3"]]), "categorical: not yet supported"),
        (np.zeros((1, 2)), "rows must be at least 2"),
    ],
)
def test_bad_tables_are_refused_without_quoting_them(table, message):
    with pytest.raises(InputError, match=message) as caught:
        small().fit(table)
    assert "secret" not in str(caught.value)


def test_rows_beyond_the_bounds_do_not_stretch_them():
    outlier = np.vstack([ROWS, [[1e300, -1e300]]])
    flow = small().fit(outlier)
    assert np.isfinite(flow.score_samples(ROWS)).all()


def test_a_neighbouring_table_leaves_the_public_part_alone(tmp_path):
    neighbour = ROWS.copy()
    neighbour[0] = [4.0, -4.0]
    headers = [small().fit(table).to_file()[0] for table in (ROWS, neighbour)]
    private = {"log_inside"}
    for header in headers:
        for name in private:
            header.pop(name)
    assert headers[0] == headers[1]


def test_wrong_number_of_columns_is_refused(fitted):
    with pytest.raises(InputError, match="expected 2 columns"):
        fitted.score_samples(np.zeros((3, 5)))


@pytest.mark.parametrize("count", [0, -3])
def test_impossible_sample_sizes_are_refused(fitted, count):
    with pytest.raises(InputError, match="n_samples must be at least 1"):
        fitted.sample(count)

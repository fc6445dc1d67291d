"""What only a flow does; what every estimator does is tested in the contract suite."""

import copy

import numpy as np
import pytest

from dpflows import DPFlow, InputError, load
from dpflows.files import write_model
from dpflows.models.architectures import Architecture

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


def test_infinite_epsilon_adds_no_noise():
    plan = small(epsilon=float("inf")).plan(400, 2)
    assert plan.noise_multiplier == 0
    assert plan.events == ()


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


def test_noise_without_steps_runs_as_long_as_the_budget_lasts():
    plan = small(noise_multiplier=4.0, steps=None).plan(400, 2)
    more = small(noise_multiplier=4.0, steps=plan.steps + 5).plan(400, 2)
    assert plan.steps > 5
    assert more.steps == plan.steps
    assert plan.guarantee().epsilon <= 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gan"}, "name must be one of"),
        ({"sampling": "shuffle"}, "sampling must be"),
        ({"steps": 0}, "steps must be a positive"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a positive"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        small(**changes).fit(ROWS)
    assert "\n" not in str(caught.value)

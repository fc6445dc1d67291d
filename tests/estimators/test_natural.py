"""Flows trained by natural gradient, from plan to file."""

import numpy as np
import pytest

from dpflows import DPDensity, DPFlow
from dpflows.errors import InputError
from dpflows.estimators.persistence import load
from dpflows.pipeline.initialisation import UNPAID_STAMP
from dpflows.training.dp_sgd import Callbacks, Optimizer
from dpflows.training.natural_gradient import Natural, NaturalGradient

RNG = np.random.default_rng(4)
ROWS = (RNG.normal(size=(400, 1)) + 0.3 * RNG.normal(size=(400, 4))).clip(-4, 4)
QUICK = NaturalGradient(samples=128)


def flow(**settings):
    given = {"optimizer": QUICK, "steps": 4, "bounds": (-4, 4)}
    return DPFlow(2.0, 1e-4, **given | settings)


def purposes(plan):
    return list(dict.fromkeys(event.purpose for event in plan.events))


@pytest.mark.parametrize(
    ("rows", "columns", "bought"),
    [
        (24_000, 2, ["mixture"]),
        (24_000, 10, ["Gaussian", "training", "progress checks"]),
        (1_500, 21, ["Gaussian", "training", "progress checks"]),
        (900_000, 6, ["normalisation", "Gaussian", "training", "progress checks"]),
    ],
)
def test_the_rule_reads_rows_columns_and_budget(rows, columns, bought):
    plan = DPDensity(1.0, 1e-7, bounds=(-4, 4)).plan(rows, columns)
    assert purposes(plan) == bought
    assert plan.guarantee().epsilon <= 1.0


def test_first_order_methods_stay_by_name():
    for name in ("adam", "sgd"):
        plan = DPFlow(1.0, 1e-6, bounds=(-4, 4), prior=None, optimizer=name).plan(24_000, 10)
        assert isinstance(plan.optimizer, Optimizer)
        assert plan.optimizer.name == name


def test_whoever_fixes_the_training_gets_adam():
    fixed = ({"steps": 9}, {"learning_rate": 0.01}, {"architecture": "maf"}, {"averaging": 0.9})
    for setting in fixed:
        plan = DPFlow(1.0, 1e-6, bounds=(-4, 4), prior=None, **setting).plan(5_000, 4)
        assert plan.optimizer.name == "adam"


@pytest.mark.parametrize("name", ["learning_rate", "averaging"])
def test_settings_that_nothing_would_read_are_refused(name):
    flow = DPFlow(1.0, 1e-6, bounds=(-4, 4), optimizer="natural", **{name: 0.1})
    with pytest.raises(InputError, match=f"{name} must be None"):
        flow.plan(5000, 4)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(InputError, match="optimizer must be"):
        DPFlow(1.0, 1e-6, bounds=(-4, 4), optimizer="newton").plan(500, 2)


@pytest.mark.parametrize("prior", [None, "auto", "mixture"])
@pytest.mark.parametrize("optimizer", ["auto", "natural", "adam"])
def test_an_unpaid_normaliser_is_stamped_whatever_follows_it(prior, optimizer):
    settings = {"prior": prior, "optimizer": optimizer, "normalisation": "paper-not-private"}
    assert UNPAID_STAMP in DPFlow(1.0, 1e-6, bounds=(-4, 4), **settings).stamps()


@pytest.fixture(scope="module")
def fitted():
    return flow().fit(ROWS)


def test_a_fit_costs_what_its_plan_says(fitted):
    assert fitted.guarantee_.events == flow().plan(400, 4).events
    assert purposes(fitted.plan_) == ["Gaussian", "training", "progress checks"]
    assert fitted.guarantee_.epsilon <= 2.0


def test_a_file_gives_the_same_density_again(fitted, tmp_path):
    fitted.save(tmp_path / "m.dpflow")
    again = load(tmp_path / "m.dpflow")
    np.testing.assert_allclose(again.score_samples(ROWS[:20]), fitted.score_samples(ROWS[:20]))
    assert again.plan_.optimizer == QUICK


def test_a_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    steps, release = [], Natural.release

    def counted(self, *arguments, step):
        steps.append(step)
        return release(self, *arguments, step=step)

    def interrupt(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Natural, "release", counted)
    with pytest.raises(KeyboardInterrupt):
        flow().fit(ROWS, checkpoint=tmp_path / "run", callbacks=Callbacks(on_progress=interrupt))
    first = list(steps)
    steps.clear()
    ended = flow().fit(ROWS, checkpoint=tmp_path / "run")
    assert first == [0, 1]
    assert steps[0] in (1, 2)
    assert steps[-1] == 3
    assert np.isfinite(ended.score(ROWS))

"""A plan is what runs: nothing that changes after the charge changes what is released.

Every fit below is seeded, so that two runs of one plan release the same numbers. In the second,
the schema file, the estimator's attributes or the public rules are changed when the charge is
made; each change alone would give other events or other numbers, which the twins show.
"""

import dataclasses

import numpy as np
import pytest

from dpflows import (
    DPAutoregressive,
    DPDensity,
    DPFlow,
    DPGaussian,
    DPGaussianMixture,
    DPHistogram,
    DPKernelDensity,
    Schema,
)
from dpflows.errors import UnplannedReleaseError
from dpflows.estimators import base
from dpflows.models.architectures import Architecture
from dpflows.pipeline import defaults, initialisation, marginals
from dpflows.pipeline.plan import Plan, Stage, Work
from dpflows.privacy.events import GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import clipped_moments, moments_sensitivity
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column

RNG = np.random.default_rng(6)
ROWS = RNG.normal(size=(300, 2)).clip(-4, 4)
PEOPLE = [[("F", "M")[i % 2], int(age)] for i, age in enumerate(RNG.integers(20, 80, 300))]
SMALL = Architecture("maf", width=4, depth=1, blocks=1)
TRAINED = {"steps": 2, "batch_size": 50}

#: An estimator for every stage: what it is called with.
FITS = {
    "discovery": (DPGaussian, {"discover": 0.6, "bounds": None, "epsilon": 8.0}),
    "frames and covariance": (DPGaussian, {}),
    "histogram": (DPHistogram, {}),
    "kernels": (DPKernelDensity, {}),
    "EM": (DPGaussianMixture, {"components": 2}),
    "normaliser": (DPFlow, {"architecture": SMALL, "normalisation": "moments", **TRAINED}),
    "prior": (DPFlow, {"architecture": SMALL, "prior": "mixture", **TRAINED}),
    "initialisation": (DPFlow, {"architecture": SMALL, "initialisation": "private", **TRAINED}),
    "training": (DPFlow, {"architecture": SMALL, "normalisation": "bounds", **TRAINED}),
    "marginals": (DPAutoregressive, {"bounds": None, **TRAINED}),
    "the rule": (DPDensity, {}),
}


@pytest.fixture
def schema_file(tmp_path):
    path = tmp_path / "schema.toml"
    sex = Column("x0", "categorical", categories=("F", "M"))
    Schema((sex, Column("x1", "integer", min=0, max=99))).write(path)
    return path


def other_schema(path):
    """The same columns with another domain."""
    sex = Column("x0", "categorical", categories=("F", "M", "X"))
    path.unlink()
    Schema((sex, Column("x1", "integer", min=0, max=200))).write(path)


def estimator(kind, settings, schema_file):
    given = {"epsilon": 2.0, "delta": 1e-4, "bounds": (-4, 4), "insecure_test_seed": 5}
    if kind is DPAutoregressive:
        given["schema"] = schema_file
    return kind(**given | settings)


def fitted(kind, settings, schema_file, meanwhile=lambda model: None):
    """A fit, with something else done the moment it is charged."""
    model, honest = estimator(kind, settings, schema_file), base.charge

    def charge(*args, **options):
        payment = honest(*args, **options)
        meanwhile(model)
        return payment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "charge", charge)
        rows = PEOPLE if kind is DPAutoregressive else ROWS
        return model.fit(rows)


def same(one, two):
    assert one.guarantee_.events == two.guarantee_.events
    first, second = (model._file_content() for model in (one, two))
    assert first[0] == second[0]
    for name, array in first[1].items():
        np.testing.assert_array_equal(array, second[1][name])


def changed_attributes(model):
    """Every setting but the seed becomes another."""
    model.epsilon, model.delta, model.bounds, model.discover = 100.0, 1e-2, (-9, 9), 0.9
    model.accountant, model.neighbours, model.schema = "rdp", "replace-one", None
    others = {
        "steps": 9,
        "prior": None,
        "normalisation": "histograms",
        "initialisation": "identity",
        "architecture": "nsf",
        "trainable_prior": True,
        "bins": 3,
        "components": 7,
        "bandwidth": 0.2,
        "radius": 1.0,
        "variant": "faithful",
        "batch_size": 7,
    }
    for name in vars(model).keys() & others.keys():
        setattr(model, name, others[name])


def changed_rules(patch):
    """The public rules and shares become others."""
    patch.setattr(initialisation, "NORMALISER_SHARE", 0.5)
    patch.setattr(initialisation, "START_SHARE", 0.5)
    patch.setattr(initialisation, "_LEAST_SHARE", 0.5)
    patch.setattr(defaults, "_FEWEST_STEPS", 1)
    patch.setattr(marginals, "BIN_SHARE", 0.5)
    patch.setattr(marginals, "MERGED_SHARE", 0.5)


@pytest.mark.filterwarnings("ignore::dpflows.errors.RepeatedFitWarning")
@pytest.mark.parametrize("name", FITS)
def test_what_changes_after_the_charge_changes_nothing(name, schema_file):
    kind, settings = FITS[name]
    alone = fitted(kind, settings, schema_file)
    with pytest.MonkeyPatch.context() as patch:

        def meanwhile(model):
            changed_attributes(model)
            changed_rules(patch)
            other_schema(schema_file)

        disturbed = fitted(kind, settings, schema_file, meanwhile)
    same(alone, disturbed)


@pytest.mark.parametrize("name", ["EM", "histogram", "training"])
def test_the_same_changes_before_the_charge_change_the_fit(name, schema_file):
    """The twin: a fit that looked at its attributes later would be seen."""
    kind, settings = FITS[name]
    model = estimator(kind, settings, schema_file)
    before = model.plan(*ROWS.shape).to_dict()
    changed_attributes(model)
    model.delta = 1e-4
    assert model.plan(*ROWS.shape).to_dict() != before


def test_the_schema_file_is_read_once(schema_file, monkeypatch):
    calls, honest = [], Schema.read

    def read(path):
        calls.append(path)
        return honest(path)

    monkeypatch.setattr(Schema, "read", read)
    fitted(*FITS["marginals"], schema_file)
    assert len(calls) == 1


@dataclasses.dataclass(frozen=True)
class Greedy(Stage):
    """A stage that releases what it does not list: the moments twice, or with less noise."""

    times: int
    noise: float

    @property
    def events(self):
        unit = moments_sensitivity(2)
        return (GaussianEvent(noise=50.0, sensitivity=unit, purpose="moments"),)

    def run(self, work):
        low, high = np.full(2, -4.0), np.full(2, 4.0)
        for _ in range(self.times):
            clipped_moments(
                ROWS, low, high, noise=self.noise, entropy=work.entropy, purpose="moments"
            )
        return work


def run_alone(stage):
    """Run a stage as the only one of a plan."""
    plan = Plan(Budget(1.0, 1e-5), "pld", 300, 2, (stage,))
    table = DPGaussian(bounds=(-4, 4)).spec().read(ROWS)
    return plan.run(Work(table, Entropy.from_os()))


def test_a_release_that_no_event_lists_fails_before_it_is_returned():
    run_alone(Greedy(1, 50.0))
    with pytest.raises(UnplannedReleaseError, match="'moments' is not among the planned"):
        run_alone(Greedy(2, 50.0))
    with pytest.raises(UnplannedReleaseError, match="nothing was returned"):
        run_alone(Greedy(1, 5.0))

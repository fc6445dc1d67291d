"""The threshold detector: four threshold_rules, honest prices, and files that last."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import chi2

from dpflows import DPAnomalyDetector, DPFlow, DPGaussian, DPGaussianMixture, DPHistogram, load
from dpflows.anomaly import threshold_rules
from dpflows.anomaly.threshold_rules import (
    RULES,
    FindThreshold,
    Tail,
    Threshold,
    ThresholdSettings,
    contamination_threshold,
)
from dpflows.errors import BudgetError, InputError, UnplannedReleaseError
from dpflows.estimators.base import NON_PRIVATE_STAMP
from dpflows.files import write_model
from dpflows.privacy.accounting import epsilon_of, guarantee_for
from dpflows.privacy.events import BoundedRangeEvent, GaussianEvent, Sensitivity, only_these
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import TEST_SEED_STAMP

_RNG = np.random.default_rng(5)
ROWS = _RNG.normal(size=(3000, 2)).clip(-6, 6)
FAR = _RNG.uniform(-6, 6, size=(300, 2))
FAR = FAR[(FAR**2).sum(1) > 9]
PUBLIC = (np.vstack([ROWS[:200], FAR]), np.repeat([1, -1], [200, len(FAR)]))


def density(**changes):
    return DPGaussian(**({"epsilon": 1.0, "delta": 1e-5, "bounds": (-6, 6)} | changes))


def detector(**changes):
    return DPAnomalyDetector(density(insecure_test_seed=1), **changes)


@pytest.fixture(scope="module")
def fitted():
    return detector().fit(ROWS)


@pytest.fixture(scope="module")
def free():
    return detector(threshold="samples").fit(ROWS)


def test_the_default_is_bought_and_flags_about_the_share_it_was_told(fitted):
    """Noise of 17 rows on each count of 3,000 rows; the seed fixes it."""
    assert (fitted.predict(ROWS) == -1).mean() == pytest.approx(0.1, abs=0.02)
    assert fitted.threshold_rule_.rule == "bought"
    assert fitted.guarantee_.events[-1].purpose == "threshold"


def test_the_models_own_samples_flag_about_the_share_they_were_told(free):
    """The density is near the rows' own: the share is off by less than 4 in a hundred."""
    assert (free.predict(ROWS) == -1).mean() == pytest.approx(0.1, abs=0.04)
    assert free.threshold_rule_.rows == 20_000
    assert free.guarantee_ == free.estimator_.guarantee_


def test_predictions_scores_and_offset_agree(fitted):
    rows = np.vstack([ROWS[:50], FAR, [[7.0, 0.0]]])
    decision = fitted.decision_function(rows)
    np.testing.assert_array_equal(decision, fitted.score_samples(rows) - fitted.offset_)
    np.testing.assert_array_equal(fitted.predict(rows), np.where(decision >= 0, 1, -1))
    assert decision[-1] == -np.inf


def test_rows_whose_density_is_no_number_are_anomalies(fitted, monkeypatch):
    monkeypatch.setattr(type(fitted.estimator_), "score_samples", lambda self, X: X[:, 0] * np.nan)
    assert (fitted.predict(ROWS[:3]) == -1).all()


def test_a_number_is_taken_as_it_is():
    found = detector(threshold=-7).fit(ROWS)
    assert found.offset_ == -7.0
    assert found.threshold_rule_.sentence == "threshold: -7, as given (free)"


@pytest.mark.parametrize("rule", ["accuracy", "youden"])
def test_labelled_public_rows_give_the_best_threshold(rule):
    found = detector(threshold=rule, public=PUBLIC).fit(ROWS)
    judged = found.predict(PUBLIC[0])
    assert (judged == PUBLIC[1]).mean() > 0.9
    assert found.threshold_rule_.rows == len(PUBLIC[1])
    assert "labelled rows that are public (free)" in found.privacy_statement()


def test_a_bought_threshold_is_paid_inside_the_budget():
    found = detector(threshold="bought", threshold_share=0.3).fit(ROWS)
    promise = found.guarantee_
    assert promise.events == (*found.estimator_.guarantee_.events, promise.events[-1])
    assert promise.events[-1].purpose == "threshold"
    assert found.estimator_.guarantee_.epsilon < promise.epsilon <= 1.0
    priced = epsilon_of(promise.events, delta=1e-5, accountant="pld")
    assert promise.epsilon == priced
    assert TEST_SEED_STAMP in promise.stamps
    alone = epsilon_of(promise.events[-1:], delta=1e-5, accountant="pld")
    assert found.threshold_rule_.epsilon == alone
    assert f"released with epsilon {alone:.3g}" in found.privacy_statement()


ESTIMATORS = {
    "Gaussian": DPGaussian,
    "mixture": DPGaussianMixture,
    "Laplace counts": DPHistogram,
    "sampled steps": lambda *budget, **rest: DPFlow(*budget, steps=2, batch_size=100, **rest),
}


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_density_and_threshold_together_use_the_budget_and_no_more(kind, accountant):
    estimator = ESTIMATORS[kind](1.0, 1e-5, bounds=(-6, 6), accountant=accountant)
    promise = DPAnomalyDetector(estimator).fit(ROWS).guarantee_
    assert 0.985 < promise.epsilon <= 1.0
    assert promise.epsilon == epsilon_of(promise.events, delta=1e-5, accountant=accountant)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_share_is_one_of_the_squared_gaussian_budget(neighbours, share):
    estimator = density(neighbours=neighbours, epsilon=2.0)
    promise = DPAnomalyDetector(estimator, threshold_share=share).fit(ROWS).guarantee_
    *others, bought = [(e.sensitivity.under(neighbours) / e.noise) ** 2 for e in promise.events]
    assert promise.neighbours == neighbours
    assert bought / (bought + sum(others)) == pytest.approx(share, rel=2e-3)
    assert promise.epsilon <= 2.0


@pytest.mark.parametrize(("rate", "share"), [(0.5, 0.05), (0.1, 0.05), (0.01, 0.172)])
def test_by_default_the_share_follows_what_is_asked(rate, share):
    """Noise of three tenths of the 30 rows to flag, or a twentieth of the budget."""
    promise = DPAnomalyDetector(density(), contamination=rate).fit(ROWS).guarantee_
    *others, bought = [(e.sensitivity.zero_out / e.noise) ** 2 for e in promise.events]
    assert bought / (bought + sum(others)) == pytest.approx(share, rel=0.01)


def test_a_threshold_that_leaves_no_room_is_refused_before_the_fit(monkeypatch):
    monkeypatch.setattr("dpflows.anomaly.threshold.together", lambda *_: 2.0)
    monkeypatch.setattr(DPGaussian, "fit_with", lambda *_, **__: pytest.fail("rows were read"))
    with pytest.raises(BudgetError, match="decrease threshold_share or choose"):
        detector().fit(ROWS)


def test_what_was_bought_gives_every_other_rate_for_nothing(fitted, tmp_path):
    rates = [0.01, 0.05, 0.1, 0.3, 0.5]
    found = [fitted.with_contamination(rate) for rate in rates]
    assert np.diff([each.offset_ for each in found]).min() > 0
    assert found[2].offset_ == fitted.offset_  # the seed draws the same samples again
    for rate, each in zip(rates, found, strict=True):
        assert each.guarantee_ is fitted.guarantee_
        assert (each.threshold_rule_.rule, each.contamination) == ("bought", rate)
        assert (each.predict(ROWS) == -1).mean() == pytest.approx(rate, abs=0.02)
    found[0].save(tmp_path / "d.dpflow")
    again = load(tmp_path / "d.dpflow").with_contamination(0.3)
    assert (again.predict(ROWS) == -1).mean() == pytest.approx(0.3, abs=0.03)


def test_where_nothing_was_bought_other_rates_come_from_samples(free):
    found = free.with_contamination(0.3)
    assert (found.threshold_rule_.rule, found.contamination) == ("samples", 0.3)
    assert found.guarantee_ == free.estimator_.guarantee_
    with pytest.raises(InputError, match="contamination must be in"):
        free.with_contamination(0.7)


def test_the_rows_that_are_counted_are_the_ones_that_are_flagged(fitted):
    """With next to no noise the share beyond an edge is off by a few of 3,000 rows."""
    scores = fitted.score_samples(ROWS)
    settings = ThresholdSettings("bought", 0.1)
    stage = FindThreshold(settings, Budget(1.0, 1e-5), "pld", (_loud(0.5),))
    found = settings.rule.find(stage, fitted.estimator_, scores)
    for depth in found.tail.depths[1:4]:
        threshold = threshold_rules.moved(found, fitted.estimator_, math.exp(-depth))
        flagged = (scores < threshold.value).sum()
        assert flagged == pytest.approx(3000 * math.exp(-depth), abs=5)


def _loud(noise):
    return GaussianEvent(noise=noise, sensitivity=threshold_rules.COUNTS, purpose="threshold")


def test_without_privacy_the_plain_quantile_is_stamped():
    found = DPAnomalyDetector(density(epsilon=math.inf), threshold="bought").fit(ROWS)
    assert (found.predict(ROWS) == -1).mean() == pytest.approx(0.1)
    assert NON_PRIVATE_STAMP in found.guarantee_.stamps
    assert found.guarantee_.events == ()
    assert "NOT PRIVATE: read without noise" in found.privacy_statement()
    assert found.privacy_statement().startswith("NOT PRIVATE")


class Ruler(DPGaussian):
    """A released density by which the log-density of a row is its own first cell."""

    def score_samples(self, X):
        return X[:, 0]

    def sample(self, n_samples=1):
        return np.linspace(-8.0, 0.0, n_samples)[:, None]


#: Four hundred rows, nothing but whole log-densities.
VALUES = np.repeat(np.arange(-8.0, 0.0), 50)[:, None] + 0.5
NOISE, RUNS = 30.0, 300


def bought_counts(rows, monkeypatch, *, planted=1.0):
    """The noisy counts behind thresholds that are bought many times over."""
    seen = []
    monkeypatch.setattr(
        threshold_rules, "fitted_tail", lambda counts, *_, **__: seen.append(counts) or LINE
    )
    settings, budget = ThresholdSettings("bought", 0.1, share=0.2), Budget(1.0, 1e-6)
    stage = FindThreshold(settings, budget, "pld", (_loud(NOISE),))
    monkeypatch.setattr(
        threshold_rules,
        "noisy_marginals",
        lambda *a, noise, **k: RELEASED(*a, noise=noise * planted, **k),
    )
    for _ in range(RUNS):
        with only_these(stage.events) if planted == 1 else contextlib.nullcontext():
            settings.rule.find(stage, Ruler(), rows[:, 0])
    return np.array(seen)


LINE, RELEASED = Tail((1.0,), (1.0,)), threshold_rules.noisy_marginals


def surprise(counts, rows):
    """The chance of squares as far from those of the stated noise, on both sides."""
    edges = threshold_rules.edges_for(len(rows), NOISE)
    own = threshold_rules.Rarity.among(np.linspace(-8.0, 0.0, 20_000))
    right = np.bincount(
        threshold_rules.bins_of(own.of(rows[:, 0]), edges), minlength=len(edges) + 1
    )
    squares = (((counts - right) / NOISE) ** 2).sum()
    tail = chi2.sf(squares, counts.size)
    return 2 * min(tail, 1 - tail)


def test_counts_have_the_noise_that_is_charged(monkeypatch):
    """False alarms: one in a million runs."""
    assert surprise(bought_counts(VALUES, monkeypatch), VALUES) > 1e-6


def test_the_test_of_the_noise_rejects_four_fifths_of_it(monkeypatch):
    counts = bought_counts(VALUES, monkeypatch, planted=0.8)
    assert surprise(counts, VALUES) < 1e-6


def test_a_threshold_with_less_noise_than_was_charged_is_never_returned(monkeypatch):
    monkeypatch.setattr(
        threshold_rules, "noisy_marginals", lambda *a, noise, **k: RELEASED(*a, noise=1.0, **k)
    )
    with pytest.raises(UnplannedReleaseError, match="'threshold' is not among the planned"):
        detector(threshold="bought").fit(ROWS)


def test_what_changes_after_the_charge_changes_no_threshold(monkeypatch):
    alone, found = (detector(threshold="bought") for _ in range(2))
    alone.fit(ROWS)

    def meanwhile(*_, **__):
        monkeypatch.setattr(threshold_rules, "_SHARES", (0.5, 0.5))
        monkeypatch.setattr(found, "contamination", 0.4)
        monkeypatch.setattr(found, "threshold", "samples")

    monkeypatch.setattr("dpflows.estimators.base._note", meanwhile)
    assert found.fit(ROWS).threshold_rule_ == alone.threshold_rule_


def test_around_a_fitted_density_costs_nothing():
    fitted = density(insecure_test_seed=1).fit(ROWS)
    found = DPAnomalyDetector.around(fitted, contamination=0.25)
    assert found.estimator_ is fitted
    assert found.guarantee_ is fitted.guarantee_
    generated = found.predict(fitted.sample(2000))
    assert (generated == -1).mean() == pytest.approx(0.25, abs=0.05)  # the seed fixes both
    assert DPAnomalyDetector.around(fitted, threshold="youden", public=PUBLIC).offset_ < 0


def test_around_cannot_buy():
    with pytest.raises(InputError, match=r"fit a DPAnomalyDetector .* or choose 'samples'"):
        DPAnomalyDetector.around(density().fit(ROWS), threshold="bought")


def test_the_default_density_is_a_flow():
    with pytest.raises(InputError, match="bounds are not declared"):
        DPAnomalyDetector().fit(ROWS)


def test_a_fitted_prior_stays_fitted(monkeypatch):
    """A clone would lose what was fitted already, and so what it cost."""
    seen = []

    def fit(self, later, X, **options):
        seen.append(self)
        raise InputError("far enough")

    monkeypatch.setattr(DPFlow, "fit_with", fit)
    prior = DPGaussianMixture(0.5, 1e-5, bounds=(-6, 6), insecure_test_seed=1).fit(ROWS)
    with pytest.raises(InputError, match="far enough"):
        DPAnomalyDetector(DPFlow(1.0, 1e-5, bounds=(-6, 6), prior=prior)).fit(ROWS)
    assert seen[0].prior is prior


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": "guess"}, "threshold must be a number or one of auto, samples, accuracy"),
        ({"threshold": "given"}, "threshold must be a number"),
        ({"threshold": True}, "threshold must be a number"),
        ({"threshold": math.nan}, "threshold must be a finite number"),
        ({"contamination": 0.7}, "contamination must be in"),
        ({"threshold": "bought", "threshold_share": 1.0}, "threshold_share must be"),
        ({"threshold": "accuracy"}, "public must be a pair"),
        ({"threshold": "youden", "public": (ROWS, [0] * 9)}, r"\+1 for normal"),
        ({"threshold": "youden", "public": (ROWS[:2], [1, 1])}, "both kinds"),
        ({"threshold": "youden", "public": (ROWS[:3], [1, -1])}, "one label for each row"),
        ({"estimator": object()}, "estimator must be a density estimator"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        detector().set_params(**changes).fit(ROWS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("accountant", ["gdp", "gdp-clt", "zcdp", "rdp"])
def test_every_accountant_of_the_density_prices_the_threshold(accountant):
    promise = detector().set_params(estimator=density(accountant=accountant)).fit(ROWS).guarantee_
    assert (promise.accountant, promise.epsilon <= 1.0) == (accountant, True)


@pytest.mark.parametrize("settings", [{}, {"threshold": "samples"}, {"threshold": -6.5}])
def test_a_saved_detector_comes_back_the_same(settings, tmp_path):
    found = detector(**settings).fit(ROWS)
    found.save(tmp_path / "d.dpflow")
    again = load(tmp_path / "d.dpflow")
    assert type(again) is DPAnomalyDetector
    assert again.threshold_rule_ == found.threshold_rule_
    assert again.guarantee_ == found.guarantee_
    assert again.estimator_.guarantee_ == found.estimator_.guarantee_
    assert again.privacy_statement() == found.privacy_statement()
    np.testing.assert_array_equal(again.predict(FAR), found.predict(FAR))
    again.save(tmp_path / "again.dpflow")
    assert (tmp_path / "again.dpflow").read_bytes() == (tmp_path / "d.dpflow").read_bytes()


def test_without_privacy_a_bought_threshold_is_saved_as_such(tmp_path):
    found = DPAnomalyDetector(density(epsilon=math.inf), threshold="bought").fit(ROWS)
    found.save(tmp_path / "d.dpflow")
    assert load(tmp_path / "d.dpflow").threshold_rule_.epsilon == math.inf


def _file_of_0_1(**changes):
    """A detector as 0.1 wrote it: its threshold is an exponential mechanism, without a tail."""
    part = density(epsilon=0.9, insecure_test_seed=1).fit(ROWS)
    event = BoundedRangeEvent(epsilon=Sensitivity.uniformly(0.1), purpose="threshold")
    header, arrays = DPAnomalyDetector.around(part).to_file()
    promise = guarantee_for(
        (*part.guarantee_.events, event),
        budget=Budget(1.0, 1e-5),
        stamps=part.guarantee_.stamps,
    )
    kept = {"rule": "bought", "value": -5.0, "contamination": 0.1, "rows": None, "epsilon": 0.1}
    named = {"detector": "DPAnomalyDetector", "guarantee": promise.to_dict()}
    return header | named | {"threshold": kept | changes}, arrays


def test_files_of_0_1_are_read(tmp_path):
    header, arrays = _file_of_0_1()
    write_model(tmp_path / "old.dpflow", header=header, arrays=arrays)
    found = load(tmp_path / "old.dpflow")
    assert (found.offset_, found.threshold_rule_.epsilon) == (-5.0, 0.1)
    assert found.with_contamination(0.05).threshold_rule_.rule == "samples"
    found.save(tmp_path / "again.dpflow")
    assert load(tmp_path / "again.dpflow").guarantee_ == found.guarantee_


def test_a_file_that_claims_too_little_for_its_threshold_is_refused(fitted, tmp_path):
    header, arrays = _file_of_0_1(epsilon=0.01)
    write_model(tmp_path / "old.dpflow", header=header, arrays=arrays)
    header, arrays = fitted.to_file()
    header["threshold"]["epsilon"] /= 2
    write_model(
        tmp_path / "new.dpflow", header=header | {"detector": "DPAnomalyDetector"}, arrays=arrays
    )
    for name in ("old", "new"):
        with pytest.raises(InputError, match="claims a smaller epsilon for its threshold"):
            load(tmp_path / f"{name}.dpflow")


def test_a_plain_density_is_loaded_too(tmp_path):
    density().fit(ROWS).save(tmp_path / "m.dpflow")
    assert type(load(tmp_path / "m.dpflow")) is DPGaussian


FORGERIES = {
    "no threshold": lambda header: header.pop("threshold"),
    "no density": lambda header: header.pop("density"),
    "no guarantee": lambda header: header.pop("guarantee"),
    "a density that is a text": lambda header: header.update(density="DPFlow"),
    "an unknown density": lambda header: header["density"].update(estimator="os.system"),
    "an unknown rule": lambda header: header["threshold"].update(rule="guess"),
    "a threshold that is a text": lambda header: header["threshold"].update(value="low"),
    "a threshold that is too large": lambda header: header["threshold"].update(value="1e999"),
    "a share that is a list": lambda header: header["threshold"].update(contamination=[1]),
    "a tail that is a list": lambda header: header["threshold"].update(tail=[1.0]),
    "a tail without depths": lambda header: header["threshold"]["tail"].pop("depths"),
    "a tail that falls": lambda header: header["threshold"]["tail"].update(edges=[2.0, 1.0]),
    "a tail of texts": lambda header: header["threshold"]["tail"].update(depths=["deep"]),
    "a tail without end": lambda header: header["threshold"].update(
        tail={"edges": ["inf"], "depths": [1.0]}
    ),
    "a bought threshold that nobody paid": lambda header: header.update(
        guarantee=header["density"]["guarantee"]
    ),
    "rows that are a text": lambda header: header["threshold"].update(rows="many"),
    "an unknown detector": lambda header: header.update(detector="os.system"),
    "a detector that is a list": lambda header: header.update(detector=["DPAnomalyDetector"]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_files_are_refused_in_one_line(fitted, forgery, tmp_path):
    header, arrays = fitted.to_file()
    forged = {**header, "detector": "DPAnomalyDetector", "density": dict(header["density"])}
    FORGERIES[forgery](forged)
    write_model(tmp_path / "forged.dpflow", header=forged, arrays=arrays)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "forged.dpflow")
    assert "\n" not in str(caught.value)
    assert "os.system" not in str(caught.value)


def test_files_with_damaged_or_missing_arrays_are_refused(fitted, tmp_path):
    header, arrays = fitted.to_file()
    named = {**header, "detector": "DPAnomalyDetector"}
    for damaged in arrays:
        for content in (None, np.full_like(arrays[damaged], np.nan)):
            forged = {k: v for k, v in arrays.items() if k != damaged}
            forged |= {} if content is None else {damaged: content}
            write_model(tmp_path / "forged.dpflow", header=named, arrays=forged)
            with pytest.raises(InputError):
                load(tmp_path / "forged.dpflow")


def test_every_rule_describes_what_it_found():
    for name in RULES:
        sentence = Threshold(name, -1.0, 0.1, 20_000, 0.25).sentence
        assert sentence.startswith("threshold: ")
        assert ("free" in sentence) == (not RULES[name].is_paid)


def test_a_density_with_few_heights_keeps_its_share():
    """Rows of one cell are judged alike, however the batch rounds their density."""
    histogram = DPHistogram(5.0, 1e-5, bounds=(-6, 6)).fit(ROWS)
    found = DPAnomalyDetector.around(histogram, contamination=0.1)
    scores = histogram.score_samples(ROWS)
    assert (np.abs(scores - found.offset_) > 1e-7).all()
    assert contamination_threshold(scores, 0.1) == pytest.approx(found.offset_, abs=1.5)


def test_records_are_frozen(fitted):
    with pytest.raises(dataclasses.FrozenInstanceError):
        fitted.threshold_rule_.value = 0.0

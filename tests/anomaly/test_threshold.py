"""The threshold detector: four rules, honest prices, and files that last."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import chi2

from dpflows import DPAnomalyDetector, DPFlow, DPGaussian, DPGaussianMixture, DPHistogram, load
from dpflows.anomaly.rules import RULES, Task, Threshold, Wish, quantile_scale
from dpflows.anomaly.thresholds import contamination_threshold, generated_scores, places_for
from dpflows.errors import InputError
from dpflows.estimators.base import NON_PRIVATE_STAMP
from dpflows.files import write_model
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.quantiles import quantile_scores
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


def test_the_default_flags_about_the_share_it_was_told(fitted):
    """The density is near the rows' own: the share is off by less than 4 in a hundred."""
    flagged = (fitted.predict(ROWS) == -1).mean()
    assert flagged == pytest.approx(0.1, abs=0.04)
    assert fitted.threshold_rule_.rows == 20_000
    assert fitted.guarantee_ == fitted.estimator_.guarantee_


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
    assert promise.events[-1].epsilon.zero_out == pytest.approx(0.3)
    assert found.estimator_.guarantee_.epsilon <= 0.7
    assert found.estimator_.guarantee_.epsilon < promise.epsilon <= 1.0
    priced = epsilon_of(promise.events, delta=1e-5, accountant="pld")
    assert promise.epsilon == priced
    assert TEST_SEED_STAMP in promise.stamps
    assert "bought with epsilon 0.3" in found.privacy_statement()


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("contamination", [0.02, 0.5])
def test_the_noise_follows_the_neighbours(neighbours, contamination):
    estimator = density(neighbours=neighbours, epsilon=2.0)
    settings = {"threshold": "bought", "contamination": contamination}
    promise = DPAnomalyDetector(estimator, **settings).fit(ROWS).guarantee_
    assert promise.neighbours == neighbours
    assert promise.events[-1].epsilon.under(neighbours) == pytest.approx(0.2)
    assert promise.epsilon <= 2.0


def test_a_bought_threshold_is_near_the_rows_own_quantile():
    """The exponential mechanism is off by more than the stated rows once in a million runs."""
    found = detector(threshold="bought", contamination=0.2).fit(ROWS)
    flagged = (found.predict(ROWS) == -1).sum()
    reach = quantile_scale(0.1, 0.2, Budget(1.0, 1e-5)) * math.log(1e6 * 1004)
    assert abs(flagged - 600) <= reach + 30  # places lie about 0.1% apart


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
        return np.resize(np.array([[-2.0], [4.0], [8.0], [12.0], [16.0], [30.0]]), (n_samples, 1))


#: Thirty rows, and their neighbour without the last, which is blank.
VALUES = np.arange(30.0)[:, None]
NEIGHBOUR = np.append(VALUES[:-1], [[np.nan]], axis=0)
SHARE, EPSILON, RUNS = 0.2, 0.5, 1500


def bought(rows, *, paid=EPSILON):
    """Thresholds bought many times over with a fifth of ``5 * paid``."""
    budget = Budget(5 * paid, 1e-6)
    task = Task(Wish("bought", SHARE, None, 0.2), Ruler(), budget, rows)
    return np.array([RULES["bought"].find(task)[0].value for _ in range(RUNS)])


def law(rows, epsilon):
    """The chances of all places at which the odds move by epsilon at most."""
    places = places_for(generated_scores(Ruler()))
    scores = quantile_scores(rows[:, 0], places, SHARE)
    weights = np.exp(scores * epsilon / (2 * max(SHARE, 1 - SHARE)))
    return places, weights / weights.sum()


def surprise(found, rows, epsilon):
    """The chance of counts as unlike the law as those found; chi-square, rare places joined."""
    places, chances = law(rows, epsilon)
    counts = np.array([(found == place).sum() for place in places])
    rare = chances * RUNS < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = RUNS * np.append(chances[~rare], chances[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))


@pytest.mark.long
def test_the_odds_of_a_bought_threshold():
    """Drawn with the chances that cost what is charged, on a table and its neighbour.

    False alarms: one in a million runs for each of the two tables.
    """
    for rows in (VALUES, NEIGHBOUR):
        assert surprise(bought(rows), rows, EPSILON) > 1e-6
    odds = np.log(law(VALUES, EPSILON)[1] / law(NEIGHBOUR, EPSILON)[1])
    assert np.ptp(odds) <= EPSILON  # bounded range, and so pure with the same epsilon


@pytest.mark.long
def test_the_odds_test_rejects_half_the_noise():
    """A scale that forgets the factor 2 costs twice what it claims."""
    assert surprise(bought(VALUES, paid=2 * EPSILON), VALUES, EPSILON) < 1e-6


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

    def fit(self, X, ledger, **options):
        seen.append(self)
        raise InputError("far enough")

    monkeypatch.setattr(DPFlow, "_fit", fit)
    prior = DPGaussianMixture(0.5, 1e-5, bounds=(-6, 6))
    prior.guarantee_ = density().fit(ROWS).guarantee_
    with pytest.raises(InputError, match="far enough"):
        DPAnomalyDetector(DPFlow(1.0, 1e-5, bounds=(-6, 6), prior=prior)).fit(ROWS)
    assert seen[0].prior is prior


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": "guess"}, "threshold must be a number or one of samples, accuracy"),
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


def test_an_accountant_that_cannot_price_the_threshold_is_refused_before_the_fit(monkeypatch):
    monkeypatch.setattr(DPGaussian, "fit", lambda self, X: pytest.fail("rows were read"))
    with pytest.raises(InputError, match="accountant|gdp"):
        DPAnomalyDetector(density(accountant="gdp"), threshold="bought").fit(ROWS)


@pytest.mark.parametrize("settings", [{}, {"threshold": "bought"}, {"threshold": -6.5}])
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

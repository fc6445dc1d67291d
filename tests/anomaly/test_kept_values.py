"""No cell, and no log-density of a training row, is in the file of a threshold detector.

A value is sought as text and as the eight bytes of its float64, neither of which is met by
chance: the false-alarm rate is below 1e-6.
"""

import dataclasses

import numpy as np
import pytest

from cli.test_sentinels import hits
from dpflows import DPAnomalyDetector, DPGaussian, load

RULES = {
    "samples": {"threshold": "samples"},
    "bought": {"threshold": "bought", "threshold_share": 0.5},
    "youden": {"threshold": "youden"},
}


def _detector(rows, **settings):
    public = (np.vstack([rows[:5].round(), [[9e7, 1e7]]]), [1, 1, 1, 1, 1, -1])
    density = DPGaussian(5.0, 1e-5, bounds=(0.0, 1e8))
    return DPAnomalyDetector(density, public=public, **settings).fit(rows)


@pytest.fixture
def rows():
    """Cells of fourteen digits and more."""
    return np.random.default_rng().uniform(1e7, 1e8, size=(500, 2))


def _private(detector, rows):
    return [repr(float(value)) for value in (*rows.ravel(), *detector.score_samples(rows))]


@pytest.mark.parametrize("rule", RULES)
def test_no_private_value_is_in_the_file(rule, rows, tmp_path):
    detector = _detector(rows, **RULES[rule])
    detector.save(tmp_path / "d.dpflow")
    assert hits((tmp_path / "d.dpflow").read_bytes(), _private(detector, rows)) == set()


def test_the_search_has_power(rows, tmp_path):
    """A threshold that is a training row's own log-density, and a cell in the header."""
    detector = _detector(rows)
    private = _private(detector, rows)
    leaked = dataclasses.replace(detector.threshold_rule_, value=float(private[-1]))
    detector.threshold_rule_ = dataclasses.replace(leaked, contamination=float(private[0]))
    detector.save(tmp_path / "d.dpflow")
    assert hits((tmp_path / "d.dpflow").read_bytes(), private) == {private[0], private[-1]}
    assert load(tmp_path / "d.dpflow").offset_ == float(private[-1])

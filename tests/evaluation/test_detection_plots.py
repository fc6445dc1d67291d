"""Pictures of detection are right about areas and places, whole, and say NOT PRIVATE."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dpflows.errors import InputError
from dpflows.evaluation import plots
from dpflows.evaluation.plots import decision_map, roc, roc_figure, score_histograms

SIDE = (-3.0, 3.0)
RNG = np.random.default_rng(2)
NORMAL = np.arange(300) < 200
SCORES = np.where(NORMAL, 1.0, 0.0) + RNG.normal(size=300)


def test_the_area_is_that_of_scikit_learn():
    assert roc(SCORES, NORMAL)[2] == pytest.approx(roc_auc_score(NORMAL, SCORES))


def test_infinite_scores_and_ties_are_in_order():
    scores = np.array([-np.inf, np.nan, -5.0, -5.0, 2.0, np.inf])
    normal = np.array([False, False, False, True, True, True])
    finite = np.array([-9.0, -9.0, -5.0, -5.0, 2.0, 9.0])
    assert roc(scores, normal)[2] == pytest.approx(roc_auc_score(normal, finite))


def test_anomalies_are_what_is_found():
    """Swapped kinds or a swapped sign would give less than half."""
    alarms, found, area = roc(SCORES, NORMAL)
    assert area > 0.7
    assert (found >= alarms - 0.05).all()


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written."""
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))
    return figures


def test_curves_have_their_area_in_the_legend_and_families_a_style(drawn):
    names = ["flow (epsilon 1)", "flow (epsilon 2)", "flow, no privacy", "mixture"]
    roc_figure({name: (SCORES, NORMAL) for name in names}, "unused.png")
    axis = drawn[0].axes[0]
    lines = axis.get_lines()[1:]
    area = roc_auc_score(NORMAL, SCORES)
    assert [line.get_label() for line in lines] == [f"{name}: {area:.3f}" for name in names]
    assert len({line.get_linestyle() for line in lines[:3]}) == 1
    assert lines[3].get_linestyle() != lines[0].get_linestyle()
    assert len({line.get_marker() for line in lines}) == 4
    assert "NOT PRIVATE" in axis.get_title()


def test_shades_differ_in_grey(drawn):
    roc_figure({str(i): (SCORES, NORMAL) for i in range(5)}, "unused.png")
    colours = np.array([line.get_color()[:3] for line in drawn[0].axes[0].get_lines()[1:]])
    assert (np.diff(colours @ [0.299, 0.587, 0.114]) > 0.05).all()


def test_histograms_hold_every_row_inside_and_count_the_others(drawn):
    scores = np.append(SCORES, [-np.inf, -1e6])
    score_histograms(scores, np.append(NORMAL, [False, True]), -1.0, "unused.png")
    figure, axis = drawn[0], drawn[0].axes[0]
    shares = [patch.get_data().values.sum() for patch in axis.patches]
    assert shares == pytest.approx([1.0, 100 / 101])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["normal (201)", "anomaly (101), 1 outside the bounds", "threshold -1"]
    assert "NOT PRIVATE" in axis.get_title()


def test_no_threshold_no_line(drawn):
    score_histograms(SCORES, NORMAL, None, "unused.png")
    assert len(drawn[0].axes[0].get_lines()) == 0


def test_the_map_is_the_right_way_round():
    """Only the right half is normal, and only the upper half there."""
    places = np.linspace(*SIDE, 11)
    decided = plots._decisions(
        lambda z: np.where((z[:, 0] > 0) & (z[:, 1] > 0), 1.0, -np.inf), places, places
    )
    assert (decided[6:, 6:] > 0).all()
    assert (decided[:5] < 0).all()
    assert (decided[:, :5] < 0).all()
    assert np.isfinite(decided).all()


def test_a_decision_that_is_no_number_is_an_anomaly():
    places = np.linspace(*SIDE, 3)
    assert (plots._decisions(lambda z: z[:, 0] * np.nan, places, places) < 0).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_map_may_be_of_one_kind_alone(drawn, sign):
    rows = np.zeros((4, 2))
    decide = lambda z: np.full(len(z), sign)  # noqa: E731
    decision_map(decide, rows, rows + 1, (SIDE, SIDE), "unused.png")
    assert "NOT PRIVATE" in drawn[0].axes[0].get_title()


def test_files_are_whole_pictures(tmp_path):
    rows = RNG.normal(size=(50, 2))
    roc_figure({"ours": (SCORES, NORMAL)}, tmp_path / "a.png")
    score_histograms(SCORES, NORMAL, 0.0, tmp_path / "b.png")
    decision_map(lambda z: 1 - (z**2).sum(1), rows, rows, (SIDE, SIDE), tmp_path / "c.png")
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "c.png"]
    assert all((tmp_path / n).read_bytes().startswith(b"\x89PNG") for n in os.listdir(tmp_path))


@pytest.mark.parametrize(
    "bad",
    [
        lambda path: roc_figure({}, path),
        lambda path: roc_figure({"ours": (SCORES, NORMAL[:5])}, path),
        lambda path: score_histograms(SCORES, np.ones(300, bool), None, path),
        lambda path: score_histograms(np.full(300, -np.inf), NORMAL, None, path),
    ],
)
def test_what_cannot_be_drawn_is_explained_and_leaves_no_file(bad, tmp_path):
    # sizes that differ are refused by the type checker of the suite already
    with pytest.raises((InputError, TypeError)):
        bad(tmp_path / "a.png")
    assert os.listdir(tmp_path) == []


def test_importing_the_module_does_not_import_matplotlib():
    code = "import sys, dpflows.evaluation.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

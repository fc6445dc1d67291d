"""Every measure on tables with columns of every kind and missing cells."""

import dataclasses

import numpy as np
import pytest

from dpflows.evaluation import fidelity
from dpflows.evaluation.fidelity import correlation, cramers_v, random_subsets, subset_errors
from dpflows.evaluation.measures import reference_codings
from dpflows.evaluation.private import bins_of, plan_evaluation
from dpflows.evaluation.report import MEASURES, evaluate
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from evaluation.mixed import SCHEMA, fresh_rows, judged

OS = Entropy.from_os()


@pytest.fixture(scope="module")
def found():
    return evaluate(judged(fresh_rows(4000)))


def test_rows_of_the_same_law_are_close(found):
    """False alarms below 1e-6: each limit is more than six standard errors away."""
    assert max(found["kolmogorov"].values()) < 0.06
    assert max(found["total-variation"].values()) < 0.12
    assert max(found["correlations"].values()) < 0.1
    assert max(found["pair-cells"].values()) < 0.12
    assert max(found["triple-cells"].values()) < 0.2
    assert abs(found["detection"]["auc"] - 0.5) < 0.06
    assert abs(found["prediction"]["auc"] - found["prediction"]["auc_of_real_rows"]) < 0.1


def test_every_figure_is_a_finite_number_of_a_pair_or_column(found):
    assert list(found) == list(MEASURES)
    assert all(np.isfinite(value) for figures in found.values() for value in figures.values())
    assert len(found["pair-cells"]) == len(found["correlations"]) == 15
    assert len(found["triple-cells"]) == 20
    for name, figures in found.items():
        assert MEASURES[name].line(figures).startswith(MEASURES[name].title)


def without(columns, name, share=0.5):
    cells = columns[name].copy()
    lost = np.random.default_rng().random(len(cells)) < share
    cells[lost] = "NaT" if cells.dtype.kind == "M" else None
    return columns | {name: cells}


def shuffled(columns, name):
    return columns | {name: np.random.default_rng().permutation(columns[name])}


def relabelled(columns, name):
    cells = columns[name].copy()
    cells[::3] = "zebra"
    return columns | {name: cells}


@pytest.mark.parametrize(
    ("change", "name", "noticed", "figure"),
    [
        (without, "dose", "total-variation", "dose"),
        (without, "ill", "kolmogorov", "ill"),
        (without, "city", "total-variation", "city"),
        (relabelled, "sex", "total-variation", "sex"),
        (relabelled, "city", "kolmogorov", "city"),
        (shuffled, "ill", "correlations", "sex, ill"),
        (shuffled, "dose", "correlations", "age, dose"),
        (shuffled, "ill", "pair-cells", "sex, ill"),
        (shuffled, "ill", "triple-cells", "sex, ill, "),
    ],
)
def test_each_measure_notices_the_change_it_is_for(change, name, noticed, figure):
    """The twins: rows of another law are far, in the column or pair that was changed."""
    figures = MEASURES[noticed].of(judged(change(fresh_rows(4000), name)))
    worst = max(figures, key=figures.get)
    assert worst.startswith(figure)
    assert figures[worst] > 0.15


def test_rows_with_undeclared_labels_are_counted_and_left_out():
    measure = MEASURES["log-likelihood"]
    found = measure.of(judged(relabelled(fresh_rows(300), "sex")))
    assert (found["mean"], found["rows_of_density_zero"]) == (-1.0, 100)
    assert "excluding 100 rows of density zero" in measure.line(found)
    rows = fresh_rows(5)
    nothing = measure.of(judged(rows | {"sex": np.full(5, "zebra", dtype=object)}))
    assert "mean" not in nothing
    assert measure.line(nothing).endswith("none; excluding 5 rows of density zero")


def test_without_a_target_nothing_is_predicted():
    plain = dataclasses.replace(SCHEMA, target=None)
    found = evaluate(judged(fresh_rows(200), plain))
    assert "prediction" not in found
    assert "detection" in found


def test_small_tables_have_no_ceiling_and_a_handful_no_detection():
    found = evaluate(judged(fresh_rows(5)))
    assert "detection" not in found
    assert "auc_of_real_rows" not in found.get("prediction", {})


def test_mixed_rows_are_evaluated_privately():
    """False alarms below 1e-6: more than ten times what noise shows on average."""
    rows = fresh_rows(5000)
    subject, changed = judged(rows), judged(without(relabelled(rows, "sex"), "dose"))
    plan = plan_evaluation(Budget(2.0, 1e-6), rows=5000, columns=6, bins=bins_of(subject))
    near, far = plan.release(subject, OS), plan.release(changed, OS)
    assert set(near) == {"log-likelihood", "kolmogorov", "total-variation"}
    exact = MEASURES["total-variation"].of(subject)
    for name, value in near["total-variation"].items():
        assert abs(value - exact[name]) < 10 * plan.noise_distance
    assert far["total-variation"]["sex"] > 0.2
    assert far["total-variation"]["dose"] > 0.2
    assert np.isfinite(far["log-likelihood"]["mean"])


def test_sets_of_columns_differ_and_are_bounded():
    names = [f"c{i}" for i in range(30)]
    chosen = random_subsets(names, 3, 100, OS)
    assert len(set(chosen)) == 100
    assert all(len(set(one)) == 3 and list(one) == sorted(one, key=names.index) for one in chosen)


def test_millions_of_cells_are_counted_alike(monkeypatch):
    real, own = fresh_rows(500), fresh_rows(500)
    codings = reference_codings(real, SCHEMA)
    few = subset_errors(real, own, codings, 3)
    monkeypatch.setattr(fidelity, "MOST_CELLS", 1)
    assert subset_errors(real, own, codings, 3) == pytest.approx(few)


def test_strengths_of_known_tables():
    assert correlation(np.array([1.0, 1.0]), np.array([0.0, 1.0])) == 0
    assert correlation(np.array([np.nan]), np.array([1.0])) == 0
    assert cramers_v(np.array([[9.0, 0.0], [0.0, 0.0]])) == 0
    independent = np.outer([100.0, 300.0], [200.0, 200.0])
    assert cramers_v(independent) == 0
    assert 0.4 < cramers_v(np.array([[75.0, 25.0], [25.0, 75.0]])) < 0.6

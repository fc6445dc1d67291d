"""The same rows fitted again in one process: found in parts too, and composed."""

import time
import warnings

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

from dpflows import Budget, DPEnsembleDetector, DPGaussian, Ledger
from dpflows.errors import RepeatedFitWarning
from dpflows.estimators.charging import REMEMBERED, SAMPLE, Sketch, untracked
from dpflows.privacy.accounting import epsilon_of

BOX = {"bounds": (-4, 4)}


def rows(count=1000, columns=2):
    return np.random.default_rng().normal(size=(count, columns)).clip(-4, 4)


def model(**changes):
    return DPGaussian(**({"epsilon": 1.0, "delta": 1e-5} | BOX | changes))


def warned(work):
    """The messages of repeated fits that some work causes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RepeatedFitWarning)
        work()
    return [str(one.message) for one in caught if one.category is RepeatedFitWarning]


def sketch(matrix):
    return Sketch.of([matrix[:, at] for at in range(matrix.shape[1])])


def test_a_second_fit_is_told_the_composed_total():
    table = rows()
    first = model().fit(table)
    (message,) = warned(lambda: model(epsilon=0.5).fit(table))
    events = (*first.guarantee_.events, *model(epsilon=0.5).plan(1000, 2).events)
    total = epsilon_of(events, delta=1e-5, accountant="rdp")
    assert "fit number 2 in this process" in message
    assert f"epsilon {total:.4g} at delta 1e-05 (zero-out)" in message
    assert message.startswith("INTERNAL")
    assert "ledger" in message
    assert "DPSelect" in message
    assert 1.0 < total < 1.5


def test_the_total_is_never_above_the_plain_sum():
    table = rows()
    told = warned(lambda: [model(epsilon=0.01).fit(table) for _ in range(3)])
    stated = [float(line.split("epsilon ")[1].split(" ")[0]) for line in told]
    assert stated[0] <= 0.02
    assert stated[1] <= 0.03


def test_cross_validation_and_grid_search_are_caught():
    table = rows()
    told = warned(lambda: cross_val_score(model(), table, cv=5))
    assert [f"fit number {k} " in line for k, line in enumerate(told, 2)] == [True] * 4
    table = rows()
    told = warned(lambda: GridSearchCV(model(), {"radius": [4.0, 6.0]}, cv=3).fit(table))
    assert "fit number 7 " in told[-1]


def test_other_people_are_no_repetition():
    table = rows(2000)
    assert warned(lambda: [model().fit(part) for part in np.split(table, 4)]) == []
    assert warned(lambda: model().fit(rows())) == []


@pytest.mark.parametrize(
    "changes", [{"epsilon": float("inf")}, {"insecure_test_seed": 3}], ids=["inf", "seed"]
)
def test_fits_that_promise_nothing_add_nothing(changes):
    table = rows()
    assert warned(lambda: [model(**changes).fit(table) for _ in range(2)]) == []


def test_a_ledger_counts_better(tmp_path):
    table, ledger = rows(), Ledger(tmp_path / "a.ledger", cap=Budget(5.0, 1e-4))
    assert warned(lambda: [model().fit(table, ledger=ledger) for _ in range(2)]) == []
    assert "fit number 3 " in warned(lambda: model().fit(table))[0]


def test_ensembles_count_too():
    table = rows()
    model().fit(table)
    detector = DPEnsembleDetector(
        5, DPGaussian(**BOX), epsilon_per_query=0.5, total_budget=Budget(1.0, 1e-5)
    )
    assert len(warned(lambda: detector.fit(table))) == 1


def test_public_rows_may_be_fitted_at_will():
    table = rows()

    def work():
        with untracked():
            model().fit(table)
            model().fit(table)

    assert warned(work) == []


def test_a_warning_that_is_an_error_stops_before_anything_is_released():
    table = rows()
    model().fit(table)
    with pytest.raises(RepeatedFitWarning):
        again = model().fit(table)
    again = model()
    with pytest.raises(RepeatedFitWarning):
        again.fit(table)
    assert not hasattr(again, "density_")


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.1])
@pytest.mark.parametrize("count", [500, 60_000])
def test_parts_are_recognised(count, share):
    """Missed once in ten thousand trials at most: 0.1 of 500 rows is 50 where 25 suffice."""
    table = rows(count)
    kept = sketch(table)
    part = np.random.default_rng().permutation(table)[: round(share * count)]
    assert kept.overlaps(sketch(np.vstack([part, rows(count - len(part))])))
    assert kept.overlaps(sketch(part))
    assert not kept.overlaps(sketch(rows(count)))


def test_a_few_common_values_are_no_evidence_but_a_whole_table_is():
    labels = [np.random.default_rng().integers(0, 3, size=(600, 2)).astype(float) for _ in range(2)]
    assert not sketch(labels[0]).overlaps(sketch(labels[1]))
    assert sketch(labels[0]).overlaps(sketch(labels[0][::-1]))


def test_the_sketch_is_small_fast_and_keyed():
    table = rows(100_000, 5)
    sketch(table)
    began = time.perf_counter()
    kept = sketch(table)
    # 4 ms on an idle core
    assert time.perf_counter() - began < 0.2
    assert kept.hashes.nbytes * REMEMBERED <= SAMPLE * 8 * REMEMBERED <= 4 * 2**20
    assert "hash" not in repr(model().fit(rows())).lower()


def test_texts_and_missing_cells_are_hashed():
    names = np.array(["a", None, "b", "a"] * 300, dtype=object)
    numbers = np.random.default_rng().normal(size=1200)
    one, two = Sketch.of([names, numbers]), Sketch.of([names[:900], numbers[:900]])
    assert one.overlaps(two)
    assert not one.overlaps(Sketch.of([names, numbers + 1.0]))

"""Learners on rows: right where the law is known, whatever the kinds of the columns."""

import dataclasses

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.evaluation.learners import detection_auc, learn_auc, thinned
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from dpflows.table.schema import Schema
from evaluation.mixed import SCHEMA, fresh_rows

OS = Entropy.from_os()
DOSE = Column("dose", "continuous", min=0, max=1)


def scrambled(columns, name):
    """The twin of good rows: one column no longer goes with the others."""
    return columns | {name: np.random.default_rng().permutation(columns[name])}


def test_a_learner_finds_what_goes_with_the_target():
    """The best AUC of this law is .85; false alarms below 1e-6 by ten standard errors."""
    rows, test = fresh_rows(3000), fresh_rows(2000)
    good = learn_auc(rows, test, SCHEMA)
    assert good > 0.75
    assert learn_auc(scrambled(rows, "ill"), test, SCHEMA) < good - 0.15


def test_a_numeric_target_is_explained():
    schema = dataclasses.replace(SCHEMA, target="dose")
    rows, test = fresh_rows(1500), fresh_rows(1000)
    assert learn_auc(rows, test, schema) > 0.8
    assert learn_auc(scrambled(rows, "dose"), test, schema) < 0.2


def test_a_date_is_explained_by_nothing_here():
    schema = dataclasses.replace(SCHEMA, target="seen")
    assert learn_auc(fresh_rows(800), fresh_rows(500), schema) < 0.2


def labelled(count, labels):
    """A few common labels and many rare ones, told by the dose."""
    names = tuple(f"label {i}" for i in range(labels))
    code = np.floor(labels * np.random.default_rng().random(count) ** 6).astype(int)
    schema = Schema((Column("of", "categorical", categories=names), DOSE), target="of")
    return schema, {"of": np.array(names, dtype=object)[code], "dose": code / labels}


def test_many_classes_are_bounded():
    """Three hundred forests of trees would take a minute."""
    schema, rows = labelled(1000, 300)
    assert len(set(rows["of"].tolist())) > 100
    assert learn_auc(rows, rows, schema) > 0.6


def test_many_labels_are_no_obstacle():
    schema, rows = labelled(3000, 600)
    assert len(set(rows["of"].tolist())) > 256
    schema = dataclasses.replace(schema, target="dose")
    assert learn_auc(rows, rows, schema) > 0.5


def test_one_class_cannot_be_told_apart():
    rows, test = fresh_rows(100), fresh_rows(100)
    alone = test | {"ill": np.full(100, True, dtype=object)}
    assert np.isnan(learn_auc(rows, alone, SCHEMA))
    assert learn_auc(rows | {"ill": alone["ill"]}, test, SCHEMA) == 0.5


def test_a_target_must_be_declared():
    with pytest.raises(InputError, match="target"):
        learn_auc(fresh_rows(9), fresh_rows(9), dataclasses.replace(SCHEMA, target=None))


def test_rows_of_one_law_cannot_be_told_apart():
    """False alarms below 1e-6: the area's standard error is .01."""
    auc = detection_auc(fresh_rows(1500), fresh_rows(3000), SCHEMA, entropy=OS)
    assert abs(auc - 0.5) < 0.06


def test_rows_of_another_law_are_told_apart():
    """The twin: only the pair of sex and illness was changed."""
    other = scrambled(fresh_rows(1500), "ill")
    assert detection_auc(other, fresh_rows(1500), SCHEMA, entropy=OS) > 0.6


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="rows"):
        detection_auc(fresh_rows(5), fresh_rows(50), SCHEMA, entropy=OS)


def test_thinning_keeps_rows_whole():
    rows = {"a": np.arange(50), "b": np.arange(50) * 2}
    few = thinned(rows, 20, OS)
    assert len(set(few["a"].tolist())) == 20
    np.testing.assert_array_equal(few["b"], 2 * few["a"])

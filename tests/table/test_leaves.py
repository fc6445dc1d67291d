"""Every declared value has one leaf, and leaves give values back."""

import numpy as np

from dpflows.table.columns import Column
from dpflows.table.leaves import leaves_of


def test_whole_numbers_have_leaves_of_their_own():
    leaves = leaves_of(Column("age", "integer", min=0, max=120, nullable=True))
    ages = np.array([0.0, 17.0, 120.0, np.nan])
    found = leaves.find(ages)
    assert found.tolist() == [0, 17, 120, 121]
    np.testing.assert_array_equal(leaves.draw(found, np.zeros), ages)


def test_labels_have_leaves_of_their_own():
    leaves = leaves_of(Column("sex", "categorical", categories=("F", "M"), nullable=True))
    sexes = np.array(["M", None, "F"], dtype=object)
    found = leaves.find(sexes)
    assert found.tolist() == [1, 2, 0]
    assert leaves.draw(found, np.zeros).tolist() == ["M", None, "F"]

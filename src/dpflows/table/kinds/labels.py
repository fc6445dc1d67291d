"""Columns of labels: declared categories, and truth values."""

import abc
import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.table.bins import Bins, LabelBins
from dpflows.table.kinds.base import (
    CATEGORIES,
    KEYS,
    MAX_NAME_LENGTH,
    Kind,
    Reader,
    Reading,
    fine,
    is_storable,
    marked,
    trimmed,
)
from dpflows.table.raw import NUMBER, TEXT, TRUTH, TextFormat, to_numpy

MAX_CATEGORIES = 10_000

_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")
#: From here on neighbouring whole numbers share a float, so that they are no labels.
_MOST_LABEL = 2.0**53


class Labelled(Kind):
    """Kinds of a few values, each of which is a bin by itself."""

    dtype = object
    nothing = None
    has_labels = True

    @abc.abstractmethod
    def bins(self) -> LabelBins:
        """One bin per label."""

    @property
    def log_size(self) -> float:
        """How many labels there are."""
        return math.log(self.bins().filled)

    def cut(self, cuts: tuple[float, ...]) -> Bins:
        """One bin per label, whatever cuts are wanted."""
        return self.bins()


@final
class Categorical(Labelled):
    """Labels of text."""

    name = "categorical"
    fields = ("categories", "other")
    discovers = CATEGORIES
    is_ordinal = False
    precedence = 90
    operand_form = "a label or a column of labels"

    def checked(self) -> dict[str, Any]:
        """Categories as a tuple."""
        super().checked()
        labels = None if self.column.categories is None else self._labels()
        if self.column.other is not None:
            self._check_other(labels)
        return {"categories": labels}

    def _labels(self) -> tuple[str, ...]:
        labels = tuple(self.column.categories or ())
        if not 1 <= len(labels) <= MAX_CATEGORIES:
            raise self.column.refuse(f"categories must hold 1 to {MAX_CATEGORIES} labels")
        if not all(isinstance(label, str) and is_storable(label) for label in labels):
            raise self.column.refuse("categories must be labels of text")
        if len(set(labels)) != len(labels):
            raise self.column.refuse("categories must not repeat a label")
        return labels

    def _check_other(self, labels: tuple[str, ...] | None) -> None:
        other = self.column.other
        if labels is not None and other not in labels:
            raise self.column.refuse("other must be one of the categories")
        if not (other and is_storable(other)):
            raise self.column.refuse(f"other must be a label of 1 to {MAX_NAME_LENGTH} characters")

    @property
    def lacks(self) -> tuple[str, ...]:
        """Categories."""
        return KEYS[CATEGORIES] if self.column.categories is None else ()

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Text, whole numbers as digits, and truth values."""
        return {TEXT: self._of_text, NUMBER: _label_of_number, TRUTH: _label_of_truth}

    def _of_text(self, cells: Any, text: TextFormat) -> Reading:
        """Text without blanks around it, but for labels that are declared with them."""
        declared = self.column.categories or ()
        exact = pc.is_in(cells, value_set=pa.array(declared, cells.type))
        labels = pc.if_else(exact, cells, trimmed(cells, text, declared))
        return fine(to_numpy(labels).astype(object))

    def expected(self, text: TextFormat) -> str:
        """Labels."""
        return "labels of text"

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Which labels are not declared."""
        if self.column.categories is None:
            return np.zeros(len(values), dtype=bool)
        known = {*self.column.categories, None}
        return np.array([value not in known for value in values.tolist()], dtype=bool)

    def bins(self) -> LabelBins:
        """One bin per category; labels that are not declared count as ``other``."""
        labels, other = self.labels, self.column.other
        unknown = labels.index(other) if other in labels else -1
        return LabelBins(self.column.name, labels, nullable=self.column.nullable, unknown=unknown)

    @property
    def labels(self) -> tuple[str, ...]:
        """The categories."""
        return self.column.categories or ()

    @property
    def is_open(self) -> bool:
        """If no category counts for labels that are not declared."""
        return self.column.other is None

    @classmethod
    def proposed_by_type(cls, dtype: pa.DataType) -> dict[str, Any] | None:
        """All types that no other kind knows."""
        return {}

    @classmethod
    def proposed_by_text(cls, cells: pa.ChunkedArray, text: TextFormat) -> dict[str, Any] | None:
        """Any text."""
        return {}

    def domain(self, present: np.ndarray) -> dict[str, Any]:
        """The different labels, if they are not too many."""
        labels = tuple(sorted(set(present)))
        return {"categories": labels} if len(labels) <= MAX_CATEGORIES else {}

    def operand(self, text: str) -> str:
        """A declared label."""
        if text not in self.labels:
            raise InputError(
                f"column {self.column.name!r} is compared with a label that its categories do "
                "not hold; declare it"
            )
        return text

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Text."""
        return pa.array(values, pa.large_string())

    @property
    def pandas_type(self) -> str:
        """Text."""
        return "str"


@final
class Boolean(Labelled):
    """Truth values."""

    name = "boolean"
    precedence = 30
    operand_form = "true, false or a column of truth values"

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Truth values, the usual words for them, and one and zero."""
        return {TRUTH: _truth_of_truth, TEXT: _truth_of_text, NUMBER: _truth_of_number}

    def expected(self, text: TextFormat) -> str:
        """Truth values."""
        return "booleans"

    def filled(self, values: np.ndarray) -> np.ndarray:
        """As a vector of booleans."""
        return values.astype(bool)

    def numbers(self, values: np.ndarray) -> Float64[np.ndarray, " rows"]:
        """Zero and one."""
        return np.array([np.nan if v is None else float(v) for v in values.tolist()])

    def bins(self) -> LabelBins:
        """False and true."""
        return LabelBins(self.column.name, (False, True), dtype=bool, nullable=self.column.nullable)

    @property
    def labels(self) -> tuple[str, ...]:
        """No and yes."""
        return ("no", "yes")

    @classmethod
    def proposed_by_type(cls, dtype: pa.DataType) -> dict[str, Any] | None:
        """The type of truth values."""
        return {} if pa.types.is_boolean(dtype) else None

    @classmethod
    def proposed_by_text(cls, cells: pa.ChunkedArray, text: TextFormat) -> dict[str, Any] | None:
        """Text that holds nothing but the usual words."""
        return None if _truth_of_text(cells, text)[1].any() else {}

    def operand(self, text: str) -> bool | None:
        """True or false."""
        return {"true": True, "false": False}.get(text)

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Truth values."""
        return pa.array(values.tolist(), pa.bool_())

    @property
    def pandas_type(self) -> str:
        """Booleans, with a type that knows missing cells where they may be."""
        return "boolean" if self.column.nullable else "bool"


def _label_of_number(values: np.ndarray, text: TextFormat) -> Reading:
    """Whole numbers as digits, by whatever type they came."""
    missing = np.isnan(values)
    wrong = ~missing & ~((np.abs(values) < _MOST_LABEL) & (np.rint(values) == values))
    whole = np.where(missing | wrong, 0.0, values).astype(np.int64)
    labels = to_numpy(pa.array(whole).cast(pa.large_string())).astype(object)
    labels[missing | wrong] = None
    return marked(labels, wrong)


def _label_of_truth(cells: Any, text: TextFormat) -> Reading:
    return fine(to_numpy(cells.cast(pa.large_string())).astype(object))


def _truth_of_truth(cells: Any, text: TextFormat) -> Reading:
    return fine(to_numpy(cells).astype(object))


def _truth_of_text(cells: Any, text: TextFormat) -> Reading:
    words = pc.utf8_lower(trimmed(cells, text))
    true = pc.is_in(words, value_set=pa.array(_TRUE, words.type))
    false = pc.is_in(words, value_set=pa.array(_FALSE, words.type))
    missing, is_true, is_false = (to_numpy(a).astype(bool) for a in (words.is_null(), true, false))
    return _truths(is_true, is_false, missing)


def _truth_of_number(values: np.ndarray, text: TextFormat) -> Reading:
    return _truths(values == 1, values == 0, np.isnan(values))


def _truths(is_true: np.ndarray, is_false: np.ndarray, missing: np.ndarray) -> Reading:
    truths = is_true.astype(object)
    truths[~(is_true | is_false)] = None
    return marked(truths, ~(is_true | is_false | missing))

"""Bounds and categories that nobody declared, found by a share of the budget."""

import dataclasses
from typing import final

import numpy as np

from dpflows.errors import BudgetError
from dpflows.privacy.events import ApproximateEvent, DiscreteLaplaceEvent, Event, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.histograms import COUNTING, discover_categories
from dpflows.privacy.mechanisms.selection import private_bounds
from dpflows.privacy.randomness import Entropy
from dpflows.table.cells import seconds
from dpflows.table.columns import WIDEST, Column, is_missing
from dpflows.table.leaves import MOST_LABELS
from dpflows.table.reading import Table
from dpflows.table.schema import Schema


@final
@dataclasses.dataclass(frozen=True)
class Discovery:
    """The search for what is not declared.

    Args:
        share: Of epsilon, divided evenly over the columns in ``gaps``; and of delta,
            divided evenly over those of them that hold labels.
        budget: The total.
        gaps: The places of undeclared columns, and whether each holds labels.

    Guarantee:
        ``find`` releases what ``events`` lists and nothing else. Together they cost at most
        the share of epsilon and, if there are labels, the share of delta. A label that one
        single row holds is shown with a chance of at most the column's part of delta.

    Example:
        >>> schema = Schema((Column("age", "integer"), Column("sex", "categorical")))
        >>> search = Discovery(0.1, Budget(1.0, 1e-5), gaps_of(schema))
        >>> [event.purpose for event in search.events()]
        ['bounds of column 1', 'categories of column 2']
    """

    share: float
    budget: Budget
    gaps: tuple[tuple[int, bool], ...]

    @property
    def scale(self) -> float:
        """Of the noise on every count."""
        epsilon = self.share * self.budget.epsilon
        return len(self.gaps) * COUNTING.under(self.budget.neighbours) / epsilon

    @property
    def delta(self) -> float:
        """The chance that a column shows a label of one single row."""
        return self.share * self.budget.delta / sum(is_labelled for _, is_labelled in self.gaps)

    def events(self) -> tuple[Event, ...]:
        """What the search will cost; nothing if all is declared or nothing is private."""
        if not self.budget.is_private:
            return ()
        return tuple(self._event(place, is_labelled) for place, is_labelled in self.gaps)

    def _event(self, place: int, is_labelled: bool) -> Event:
        purpose, scale = _purpose(place, is_labelled), self.scale
        if not is_labelled:
            return DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
        epsilon = Sensitivity(1 / scale, 1 / scale, 2 / scale)
        return ApproximateEvent(epsilon=epsilon, delta=self.delta, purpose=purpose)

    def find(self, table: Table, entropy: Entropy) -> Schema:
        """The table's schema with what was found in it."""
        schema, described = table.schema, []
        for place, is_labelled in self.gaps:
            column = schema.columns[place]
            search = self._with_labels if is_labelled else self._with_bounds
            found = search(
                column, table.columns[column.name], _purpose(place, is_labelled), entropy
            )
            if found is None:
                raise _nothing(schema.label(column.name), is_labelled)
            described.append(found)
        return schema.with_columns(described)

    def _with_bounds(
        self, column: Column, values: np.ndarray, purpose: str, entropy: Entropy
    ) -> Column | None:
        numbers = seconds(values) if column.kind == "date" else values
        if self.budget.is_private:
            found = private_bounds(numbers, scale=self.scale, entropy=entropy, purpose=purpose)
            bounds = found.value
        else:
            present = numbers[~np.isnan(numbers)]
            bounds = (float(present.min()), float(present.max())) if len(present) else None
        return None if bounds is None else column.within(*_settled(column, *bounds))

    def _with_labels(
        self, column: Column, values: np.ndarray, purpose: str, entropy: Entropy
    ) -> Column | None:
        if not self.budget.is_private:
            labels, counts = np.unique(values[~is_missing(values)].astype(str), return_counts=True)
            return _labelled(column, dict(zip(labels.tolist(), counts.tolist(), strict=True)))
        found = discover_categories(
            values.tolist(), scale=self.scale, delta=self.delta, entropy=entropy, purpose=purpose
        )
        return _labelled(column, found.value)


def gaps_of(schema: Schema) -> tuple[tuple[int, bool], ...]:
    """The places of undeclared columns, and whether each holds labels."""
    return tuple(
        (place, column.kind == "categorical")
        for place, column in enumerate(schema.columns)
        if not column.is_declared
    )


def _settled(column: Column, low: float, high: float) -> tuple[float, float]:
    """Bounds that a column of its kind may have."""
    if not column.is_whole:
        return low, float(max(high, np.nextafter(low, np.inf)))
    least, most = WIDEST[column.kind]
    return float(np.clip(np.floor(low), least, most)), float(np.clip(np.ceil(high), least, most))


def _labelled(column: Column, counts: dict[str, int]) -> Column | None:
    """The column with the labels that were found, the most frequent ones if they are many."""
    other = () if column.other is None else (column.other,)
    known = [label for label in counts if label not in other]
    if len(known) + len(other) > MOST_LABELS:
        if not other:
            raise BudgetError(
                f"more than {MOST_LABELS} categories of column {column.name!r} were found, and "
                'the share for finding them is spent; declare other = "a label" for the rare ones, '
                "group them, or drop the column"
            )
        known = sorted(known, key=lambda label: -counts[label])[: MOST_LABELS - 1]
    labels = (*sorted(known), *other)
    return dataclasses.replace(column, categories=labels) if labels else None


def _nothing(label: str, is_labelled: bool) -> BudgetError:
    things = "categories" if is_labelled else "bounds"
    return BudgetError(
        f"no {things} of {label} stood out from the noise, and the share for finding them is "
        "spent; declare them, or give a larger share"
    )


def _purpose(place: int, is_labelled: bool) -> str:
    return f"{'categories' if is_labelled else 'bounds'} of column {place + 1}"

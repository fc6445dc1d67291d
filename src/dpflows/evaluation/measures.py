"""What is compared when a model is judged by rows, and what a measure is.

A new measure is one class and one line in ``comparing.MEASURES``.
"""

import abc
import dataclasses
import functools
from typing import ClassVar, final

import jax
import numpy as np
from jaxtyping import Float

from dpflows.estimators.base import DensityEstimator, key_of
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Table

#: Rows that the model generates to be compared with; they cost nothing.
GENERATED = 20_000

Rows = Float[np.ndarray, "rows columns"]
#: Figures by name: of the whole table, or one for each column or pair of columns.
Figures = dict[str, float]

INTERNAL_STAMP = (
    "INTERNAL: these figures were computed from the given rows, and no guarantee covers them. "
    "Keep them where the rows are kept."
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model and the rows that it is judged by.

    Attributes:
        model: A fitted density.
        table: Rows that its schema fits.
        key: Of the rows that the model generates.

    Guarantee:
        ``generated`` and all that follows from it alone is post-processing of the model.
        ``rows`` is private, and so is everything computed from it.
    """

    model: DensityEstimator
    table: Table
    key: jax.Array

    @classmethod
    def of(cls, model: DensityEstimator, table: Table, entropy: Entropy) -> "Subject":
        """A subject whose generated rows come from ``entropy``."""
        return cls(model, table, key_of(entropy, "sampling"))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.model.encoding_.schema.names

    @functools.cached_property
    def rows(self) -> Rows:
        """The rows, moved into the declared bounds as a fit moves them."""
        schema = self.model.encoding_.schema
        return np.clip(self.table.matrix, schema.lows(), schema.highs())

    @functools.cached_property
    def generated(self) -> Rows:
        """Rows of the model itself, integers whole."""
        points = self.model.density_.sample(self.key, GENERATED)
        return np.column_stack(list(self.model.encoding_.decode(points).values()))

    def logs(self, rows: Rows) -> Float[np.ndarray, " rows"]:
        """The model's log-density of rows inside the bounds."""
        return self.model.density_.log_prob(rows)


class Measure(abc.ABC):
    """A way to compare a model with rows. INTERNAL unless it is released by ``private``.

    Attributes:
        name: In documents.
        title: For a reader.
        each: What a figure belongs to, if not to the whole table.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    each: ClassVar[str] = ""

    @abc.abstractmethod
    def of(self, subject: Subject) -> Figures:
        """The figures, by name."""

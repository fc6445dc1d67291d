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

from dpflows.estimators.autoregressive import draw_rows
from dpflows.estimators.base import DensityEstimator
from dpflows.evaluation.coding import Codings, moved_inside, reference_codings
from dpflows.models.mixed import MixedDensity
from dpflows.pipeline.stage import jax_key
from dpflows.privacy.randomness import Entropy
from dpflows.table.mixing import MixedEncoding
from dpflows.table.reading import Table
from dpflows.table.schema import Schema

#: Rows that the model generates to be compared with; they cost nothing.
GENERATED = 20_000

#: Figures by name: of the whole table, or one for each column or pair of columns.
Figures = dict[str, float]

INTERNAL_STAMP = (
    "INTERNAL: these figures were computed from the given rows, and no guarantee covers them. "
    "Keep them where the rows are kept."
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model and the rows that it is judged by, with columns of any kind.

    Attributes:
        model: A fitted density.
        table: Rows that its schema fits.
        key: Of the rows that the model generates.
        entropy: Of everything else that a measure draws.

    Guarantee:
        ``generated`` and all that follows from it alone is post-processing of the model.
        ``rows`` is private, and so is everything computed from it.
    """

    model: DensityEstimator
    table: Table
    key: jax.Array
    entropy: Entropy

    @classmethod
    def of(cls, model: DensityEstimator, table: Table, entropy: Entropy) -> "Subject":
        """A subject whose generated rows come from ``entropy``."""
        return cls(model, table, jax_key(entropy, "sampling"), entropy)

    @property
    def schema(self) -> Schema:
        """What the columns mean."""
        return self.model.encoding_.schema

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.schema.names

    @functools.cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """The rows' cells by column, moved into the declared bounds as a fit moves them."""
        return moved_inside(self.table.columns, self.schema)

    @functools.cached_property
    def generated(self) -> dict[str, np.ndarray]:
        """Cells by column of rows of the model itself, which keep the schema's constraints."""
        density, encoding = self.model.density_, self.model.encoding_
        if isinstance(encoding, MixedEncoding) and isinstance(density, MixedDensity):
            return draw_rows(density, encoding, GENERATED, {}, self.key).columns
        return encoding.decode(density.sample(self.key, GENERATED))

    def codings(self, bins: int) -> Codings:
        """Bins of every column; those of numbers hold equal shares of the generated rows.

        Guarantee:
            Computed from generated rows and the schema alone: post-processing of the model.
        """
        return reference_codings(self.generated, self.schema, bins)

    def logs(self, columns: dict[str, np.ndarray]) -> Float[np.ndarray, " rows"]:
        """The model's log-density of rows; minus infinity where a label is not declared."""
        table = Table(columns, self.schema, self.table.form, 0)
        return self.model.density_.log_prob(self.model.encoding_.score_points(table))


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

    def line(self, figures: Figures) -> str:
        """The figures in one line, for a reader."""
        if not figures:
            return f"{self.title}: there is no {self.each}"
        worst = max(figures, key=lambda name: figures[name])
        mean = sum(figures.values()) / len(figures)
        return f"{self.title}: mean {mean:.3f}, largest {figures[worst]:.3f} ({self.each} {worst})"

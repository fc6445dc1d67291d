"""The interface of measures that compare a model with rows, and the log-likelihood.

A new measure is one class and one line in ``MEASURES`` of ``report``.
"""

import abc
import dataclasses
import functools
import math
from typing import ClassVar, final

import jax
import numpy as np
from jaxtyping import Float, Float64

from dpflows.estimators.autoregressive import draw_rows
from dpflows.estimators.base import DensityEstimator
from dpflows.evaluation.coding import Codings, moved_inside, reference_codings
from dpflows.models.mixed import MixedDensity
from dpflows.pipeline.stage import jax_key
from dpflows.privacy.randomness import Entropy
from dpflows.table.encoding import MixedEncoding
from dpflows.table.reading import Table
from dpflows.table.schema import Schema

#: Rows that the model generates to be compared with; they cost nothing.
GENERATED = 20_000

#: Figures by name: of the whole table, or one for each column or pair of columns.
Figures = dict[str, float]

INTERNAL_STAMP = (
    "INTERNAL: these figures were computed from the given rows, and no guarantee covers them. "
    "Store them as you store the rows."
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model and the rows it is compared with, with columns of any kind.

    Attributes:
        model: A fitted density.
        table: Rows that match its schema.
        key: Random key of the generated rows.
        entropy: Source of randomness of everything else.

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
        """The schema."""
        return self.model.encoding_.schema

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.schema.names

    @functools.cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """The rows' cells by column, clipped to the declared bounds as in a fit."""
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
    """A comparison of a model with rows. INTERNAL unless it is released by ``private``.

    Attributes:
        name: Its name in JSON documents.
        title: Its title in text.
        each: The part of the table a figure refers to, if not all of it.
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


#: The public range begins where so many of the model's own rows lie lower.
LOWEST_SHARE = 0.005


@final
class LogLikelihood(Measure):
    """The mean log-density of the rows, in nats per row.

    Values beyond the declared bounds are clipped, as in a fit, and counted. A row with an
    undeclared label has density zero: it is counted, but excluded from the mean.
    """

    name = "log-likelihood"
    title = "Mean log-density, nats per row"

    def of(self, subject: Subject) -> Figures:
        """The mean and its standard error, and the numbers of cells and rows outside."""
        logs = subject.logs(subject.rows)
        kept = logs[np.isfinite(logs)].astype(np.float64)
        outside = {
            "cells_beyond_bounds": float(subject.table.outside),
            "rows_of_density_zero": float(len(logs) - len(kept)),
        }
        return _mean_and_error(kept) | outside

    def line(self, figures: Figures) -> str:
        """Mean and error, and the number of excluded rows."""
        lost = figures.get("rows_of_density_zero", 0)
        rest = f"; excluding {lost:,.0f} rows of density zero" if lost else ""
        if "mean" not in figures:
            return f"{self.title}: none{rest}"
        noise = figures.get("error_of_noise")
        added = "" if noise is None else f", of the noise {noise:.3f}"
        error = f"standard error {figures['standard_error']:.3f}{added}"
        return f"{self.title}: {figures['mean']:.3f} ({error}){rest}"


def _mean_and_error(logs: Float64[np.ndarray, " rows"]) -> Figures:
    if not len(logs):
        return {}
    spread = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
    return {"mean": float(logs.mean()), "standard_error": spread / math.sqrt(len(logs))}


def public_range(subject: Subject) -> tuple[float, float]:
    """The range that holds nearly all log-densities of the model's own samples.

    Guarantee:
        Computed only from generated rows: post-processing of the model.
    """
    logs = subject.logs(subject.generated)
    # rounding may leave a generated row just outside the domain
    logs = logs[np.isfinite(logs)]
    low, high = float(np.quantile(logs, LOWEST_SHARE)), float(logs.max())
    # a flat density has one value, and a range needs two ends
    return low, max(high, low + 1e-3 * (1 + abs(low)))

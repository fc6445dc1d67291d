"""A model of mixed rows whose law is known, without a fit."""

import types

import jax
import numpy as np

from dpflows.estimators.base import DensityEstimator
from dpflows.evaluation.measures import Subject
from dpflows.privacy.guarantee import Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from dpflows.table.reading import Form, Table
from dpflows.table.schema import Schema

SEXES, CITIES = ("F", "M", "X"), ("Rome", "Oslo", "elsewhere")
DAY = 86_400.0
SCHEMA = Schema(
    (
        Column("sex", "categorical", categories=SEXES),
        Column("ill", "boolean", nullable=True),
        Column("age", "integer", min=0, max=120),
        Column("dose", "continuous", min=0, max=9, nullable=True),
        Column("seen", "date", min=0, max=1000 * DAY),
        Column("city", "categorical", categories=CITIES, other="elsewhere", nullable=True),
    ),
    target="ill",
)
GUARANTEE = Guarantee(1.0, 1e-6, "zero-out", "pld", "bound", (), 1.9, {})


def mixed_rows(u: np.ndarray) -> dict[str, np.ndarray]:
    """Rows made of uniform numbers: illness goes with sex, the dose with age."""
    sex = np.array(SEXES, dtype=object)[np.searchsorted([0.5, 0.9], u[:, 0])]
    ill = (u[:, 1] < np.where(sex == "F", 0.85, 0.15)).astype(object)
    ill[u[:, 5] < 0.1] = None
    dose = 9 * np.clip(0.8 * u[:, 2] + 0.2 * u[:, 3], 0, 1)
    city = np.array([*CITIES, None], dtype=object)[np.floor(4 * u[:, 5]).astype(int)]
    seconds = np.floor(1000 * u[:, 4]) * DAY
    return {
        "sex": sex,
        "ill": ill,
        "age": np.floor(121 * u[:, 2]),
        "dose": np.where(u[:, 3] < 0.2, np.nan, dose),
        "seen": (seconds * 1e6).astype("int64").astype("datetime64[us]"),
        "city": city,
    }


def fresh_rows(count: int) -> dict[str, np.ndarray]:
    return mixed_rows(np.random.default_rng().random((count, 6)))


def table_of(columns: dict[str, np.ndarray], schema: Schema = SCHEMA) -> Table:
    return Table(columns, schema, Form("numpy"), 0)


class KnownLaw(DensityEstimator):
    """Has what an evaluation reads of a fitted model; every row's log-density is -1."""

    def __init__(self, schema: Schema = SCHEMA, guarantee: Guarantee = GUARANTEE) -> None:
        self.guarantee_ = guarantee
        self.encoding_ = types.SimpleNamespace(
            schema=schema, decode=self._decode, score_points=self._points
        )
        self.density_ = types.SimpleNamespace(
            sample=lambda key, n: np.asarray(jax.random.uniform(key, (n, 6)), dtype=float),
            log_prob=lambda points: np.where((points < 0).any(axis=1), -np.inf, -1.0),
        )

    def _decode(self, points):
        rows = mixed_rows(points)
        renamed = dict(zip(self.encoding_.schema.names, rows, strict=True))
        return {name: rows[old] for name, old in renamed.items()}

    def _points(self, table):
        first = next(iter(table.columns.values()))
        return np.where(np.isin(first.astype(str), SEXES), 0.5, -1.0)[:, None]

    def _stages(self, *given):
        raise NotImplementedError

    _assemble = _describe_model = _stages

    @classmethod
    def _rebuild(cls, *given):
        raise NotImplementedError


def judged(columns: dict[str, np.ndarray], schema: Schema = SCHEMA) -> Subject:
    return Subject.of(KnownLaw(schema), table_of(columns, schema), Entropy.from_os())

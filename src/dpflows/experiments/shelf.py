"""Fitted models that several experiments share, kept on disk.

A model costs seconds to minutes, a measurement of it next to nothing; so a model is fitted
once per data set, method, budget and fold, and found again by every later experiment.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from dpflows.estimators.persistence import load
from dpflows.experiments.methods import METHODS, Setting
from dpflows.experiments.tables import RealTable, read_real
from dpflows.files import write_atomically


class Kept(NamedTuple):
    """A fitted model, what it claims, and how long the fit took."""

    setting: Setting
    model: Any
    seconds: float


@final
@dataclasses.dataclass(frozen=True)
class Desk:
    """Where an experiment works.

    Attributes:
        data: The folder of the real tables.
        output: Where journals, models, tables and pictures go.
    """

    data: Path
    output: Path

    def table(self, dataset: str) -> RealTable:
        """The rows of a data set."""
        return read_real(dataset, self.data)

    def models(self, dataset: str, method: str, fold: int, epsilons: Sequence[float]) -> list[Kept]:
        """The models of a method, fitted now or before."""
        wanted = METHODS[method].settings(dataset, epsilons)
        missing = [s for s in wanted if not self._path(dataset, method, fold, s).exists()]
        if missing:
            self._fit(dataset, method, fold, missing)
        return [self._kept(dataset, method, fold, setting) for setting in wanted]

    def _fit(self, dataset: str, method: str, fold: int, settings: Sequence[Setting]) -> None:
        table = self.table(dataset)
        for setting, model, seconds in METHODS[method].fit(dataset, table, fold, settings):
            path = self._path(dataset, method, fold, setting)
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(path.with_suffix(".json")) as file:
                file.write(json.dumps({"seconds": round(seconds, 2)}).encode())
            # two runs that miss the same model may both fit it
            model.save(path, overwrite=True)

    def _kept(self, dataset: str, method: str, fold: int, setting: Setting) -> Kept:
        path = self._path(dataset, method, fold, setting)
        timing = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Kept(setting, load(path), float(timing["seconds"]))

    def _path(self, dataset: str, method: str, fold: int, setting: Setting) -> Path:
        name = f"{method}-{setting.accountant}-{setting.epsilon:g}-{fold}.dpflow"
        return self.output / "models" / dataset / name

"""How a flow models a table: one way for numbers alone, one for mixed kinds."""

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from dpflows.estimators.charging import Job
from dpflows.table.schema import Schema
from dpflows.training.plan import Plan

if TYPE_CHECKING:
    from dpflows.estimators.flow import DPFlow


class Way(abc.ABC):
    """What a ``DPFlow`` does with one sort of table.

    Guarantee:
        ``learn`` releases what ``plan`` lists, and nothing else.
    """

    def __init__(self, flow: "DPFlow") -> None:
        self.flow = flow

    @property
    def stamps(self) -> tuple[str, ...]:
        """What the settings of this way void the promise with."""
        return ()

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a certificate must say about the settings of this way."""
        return ()

    @abc.abstractmethod
    def plan(self, rows: int, columns: int) -> Plan:
        """What a fit would do with a table of this shape; reads no row."""

    @abc.abstractmethod
    def learn(self, job: Job) -> None:
        """Do what the plan says, and leave the result in the flow's attributes."""

    @abc.abstractmethod
    def describe(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The fitted model as a JSON-ready header and arrays."""

    @abc.abstractmethod
    def rebuild(
        self, header: dict[str, Any], arrays: dict[str, np.ndarray], schema: Schema
    ) -> None:
        """Give the flow what ``describe`` described; the content may be hostile."""

"""The kinds of columns. A new kind is one class, and one line here or one call of ``register``."""

from dpflows.table.kinds.base import KINDS, Declaration, Kind, kind_of, register
from dpflows.table.kinds.dates import Date
from dpflows.table.kinds.labels import Boolean, Categorical
from dpflows.table.kinds.numbers import Continuous, Integer

__all__ = ["KINDS", "Date", "Declaration", "Kind", "kind_of", "register"]

for _kind in (Continuous, Integer, Categorical, Boolean, Date):
    register(_kind)

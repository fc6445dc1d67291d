"""The kinds of columns. A new kind is one class and one line here, or one call of ``register``."""

from dpflows.errors import InputError
from dpflows.table.kinds.base import Declaration, Kind
from dpflows.table.kinds.dates import Date
from dpflows.table.kinds.labels import Boolean, Categorical
from dpflows.table.kinds.numbers import Continuous, Integer

__all__ = ["KINDS", "Declaration", "Kind", "kind_of", "register"]

#: The class of every kind, by its name in schema files.
KINDS: dict[str, type[Kind]] = {
    "continuous": Continuous,
    "integer": Integer,
    "categorical": Categorical,
    "boolean": Boolean,
    "date": Date,
}


def register(kind: type[Kind]) -> type[Kind]:
    """Add a kind under its own name; a decorator for classes outside the package.

    Example:
        >>> register(Date)
        Traceback (most recent call last):
        dpflows.errors.InputError: there is a kind of the name 'date' already; choose another
    """
    if kind.name in KINDS:
        raise InputError(f"there is a kind of the name {kind.name!r} already; choose another")
    KINDS[kind.name] = kind
    return kind


def kind_of(name: object) -> type[Kind]:
    """The class of a kind.

    Example:
        >>> kind_of("date").is_whole
        True
    """
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}")
    return KINDS[name]

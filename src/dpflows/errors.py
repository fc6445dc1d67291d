"""The errors a caller is meant to handle.

Messages say what was expected, what came and what to do. They never contain a
value read from private rows.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """What the caller passed cannot be used; the command line exits with code 2."""


class BudgetError(RuntimeError):
    """The privacy budget does not allow what was asked; nothing was released."""


class TrainingError(RuntimeError):
    """Training failed in a way that only settings can mend; nothing was released."""


def unchained(function: Callable[P, T]) -> Callable[P, T]:
    """Let errors of a function leave without those they arose from, whose words may hold cells.

    Example:
        >>> @unchained
        ... def read(cell):
        ...     try:
        ...         float(cell)
        ...     except ValueError:
        ...         raise InputError("not a number") from None
        >>> try:
        ...     read("secret")
        ... except InputError as error:
        ...     print(error.__context__)
        None
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except InputError as error:
            failed = error
        # "from None" would hide them from a reader and leave them within a program's reach
        failed.__cause__ = failed.__context__ = None
        raise failed

    return call

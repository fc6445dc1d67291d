"""The errors a caller is meant to handle.

Messages say what was expected, what came and what to do. They never contain a
value read from private rows.

Text of unknown origin, made safe to show.

A name or a purpose may come from a file that somebody made to deceive: an escape
sequence moves the cursor, a line break starts a line of its own, an override turns the
direction of writing. Whatever is shown or written as text passes here first.
"""

import functools
import traceback
import unicodedata
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """What the caller passed cannot be used; the command line exits with code 2."""


class BudgetError(RuntimeError):
    """The privacy budget does not allow what was asked; the command line exits with code 3."""


class TrainingError(RuntimeError):
    """Training failed in a way that only settings can mend; the command line exits with code 4."""


class UnplannedReleaseError(RuntimeError):
    """A mechanism released something that no plan lists; its value was not returned."""


class PrivacyWarning(UserWarning):
    """What was asked for is allowed, and costs people more privacy than it seems to."""


class RepeatedFitWarning(PrivacyWarning):
    """The same rows are fitted again without a ledger; the costs add up."""


class UnpaidTransformerWarning(PrivacyWarning):
    """A step before the estimator learned from the rows, and nothing paid for it."""


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
        except (InputError, BudgetError, TrainingError) as error:
            failed = error
        # "from None" would hide them from a reader and leave them within a program's reach
        failed.__cause__ = failed.__context__ = None
        raise failed

    return call


def unquoted(function: Callable[P, T]) -> Callable[P, T]:
    """Let no error of a function that reads private rows leave with words that may hold cells.

    Guarantee:
        Errors of this module leave unchained. Any other, which pandas, Arrow or NumPy may
        have raised with the cell in its text, becomes an ``InputError`` that names its type
        and place alone.

    Example:
        >>> unquoted(float)("secret")
        Traceback (most recent call last):
        dpflows.errors.InputError: the rows cannot be read: ValueError in dpflows.errors:...
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return unchained(function)(*args, **kwargs)
        except (InputError, BudgetError, TrainingError, MemoryError, Warning):
            raise
        except Exception as error:
            place = place_of(error)
        # raised here and not above, where it would be chained to the other
        raise InputError(
            f"the rows cannot be read: {place}, whose text is withheld because it may quote a "
            "cell; check the types of the columns"
        )

    return call


def place_of(error: BaseException) -> str:
    """The type of an error and where it was raised, without its text.

    Example:
        >>> place_of(KeyError("patient-4711"))
        'KeyError'
    """
    kind = type(error)
    is_plain = kind.__module__ == "builtins"
    name = kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return name
    frame, line = frames[-1]
    return f"{name} in {frame.f_globals.get('__name__', '?')}:{line}"


#: Controls, formats (bidirectional overrides are among them), line and paragraph separators,
#: halves of surrogate pairs, and code points that stand for nothing.
_UNSAFE = ("Cc", "Cf", "Zl", "Zp", "Cs", "Cn")


def displayable(text: str) -> str:
    r"""The text on one line, with what must not be shown written as an escape.

    Guarantee:
        The result has no control character, no line break, no bidirectional override and
        no half of a surrogate pair. Text without any of them is returned unchanged.

    Example:
        >>> displayable("age\nNOT PRIVATE"), displayable("größe [cm]")
        ('age\\nNOT PRIVATE', 'größe [cm]')
    """
    return "".join(letter if _is_safe(letter) else _escaped(letter) for letter in text)


def is_displayable(text: str) -> bool:
    r"""Whether ``displayable`` would leave the text as it is.

    Example:
        >>> is_displayable("training"), is_displayable("\x1b[2J")
        (True, False)
    """
    return all(_is_safe(letter) for letter in text)


def _is_safe(letter: str) -> bool:
    return unicodedata.category(letter) not in _UNSAFE


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")

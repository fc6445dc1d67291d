"""The errors and warnings of the package, and safe display of text of unknown origin.

Error messages say what was expected, what was given and what to do. They never contain a
value read from private rows.

A name or a purpose may come from a hostile file: an escape sequence moves the cursor, a line
break starts a new line, a bidirectional override changes the direction of writing.
``displayable`` escapes them; all such text passes through it before it is shown or written.
"""

import functools
import traceback
import unicodedata
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """An argument, option or input file is invalid; the command line exits with code 2."""


class BudgetError(RuntimeError):
    """The privacy budget does not suffice for the request; the command line exits with code 3."""


class TrainingError(RuntimeError):
    """Training failed; other settings are needed; the command line exits with code 4."""


class UnplannedReleaseError(RuntimeError):
    """A mechanism made a release that the plan does not list; its value was not returned."""


class PrivacyWarning(UserWarning):
    """A request is allowed but costs more privacy than it may seem."""


class RepeatedFitWarning(PrivacyWarning):
    """The same rows are fitted again without a ledger; the privacy costs add up."""


class UnpaidTransformerWarning(PrivacyWarning):
    """A pipeline step before the estimator learned from the rows without a privacy budget."""


def unchained(function: Callable[P, T]) -> Callable[P, T]:
    """Raise a function's errors without their causes, whose messages may quote cells.

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
    """Withhold error messages of a function that reads private rows if they may quote cells.

    Guarantee:
        Errors of this module are raised without their causes. Any other, which pandas, Arrow or
        NumPy may have raised with the cell in its text, becomes an ``InputError`` that names only
        its type and place.

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
            f"the rows cannot be read: {place}, whose message is withheld because it may quote a "
            "cell; check the types of the columns"
        )

    return call


def place_of(error: BaseException) -> str:
    """The type of an error and where it was raised, without its message.

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
    r"""The text on one line, with control characters and the like escaped.

    Guarantee:
        The result has no control character, no line break, no bidirectional override and
        no unpaired surrogate. Text without any of them is returned unchanged.

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

"""What the command line prints: results to stdout, everything else to stderr.

A script that reads stdout gets the result alone; progress and errors never mix
with it. An error is one line. The text of an unexpected exception is shown only
with ``--debug``, because it could quote a private value.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpflows.display import displayable
from dpflows.errors import BudgetError, InputError, TrainingError

SUCCESS, BUG, USER_MISTAKE, INTERRUPTED = 0, 1, 2, 130

#: Called with the steps done and the epsilon spent so far.
Advance = Callable[[int, float], None]


def console(*, quiet: bool = False) -> Console:
    """The console for human-readable results; ``quiet`` swallows everything.

    Long lines are left to the terminal, so that a command shown can be copied.

    Example:
        >>> console().print("five arms")
        five arms
    """
    # brackets in a name from a file are no markup, in tables neither
    return Console(quiet=quiet, highlight=False, soft_wrap=True, markup=False)


def say(screen: Console, text: str) -> None:
    """Print a line as it is: brackets are no markup, control characters are shown as escapes.

    Example:
        >>> say(console(), "column [bold]")
        column [bold]
    """
    screen.print(displayable(text), markup=False)


def permissions(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """A line about a file meant to be shared that only its owner may read; else nothing.

    Example:
        >>> import tempfile
        >>> permissions(tempfile.mkstemp()[1])
        ('Readable by you only; chmod to share it.',)
    """
    is_private = os.name == "posix" and not os.stat(path).st_mode & 0o077
    return ("Readable by you only; chmod to share it.",) if is_private else ()


def print_json(result: Any) -> None:
    """Print one JSON document, and nothing that JSON does not know.

    Example:
        >>> print_json({"epsilon": 1.5})
        {
          "epsilon": 1.5
        }
    """
    print(json.dumps(result, indent=2, allow_nan=False))


@contextlib.contextmanager
def progress(task: str, *, steps: int, quiet: bool = False) -> Iterator[Advance]:
    """A bar on stderr with steps, epsilon spent and time left.

    Example:
        >>> with progress("training", steps=2, quiet=True) as advance:
        ...     advance(1, 0.7)
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("epsilon {task.fields[epsilon]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, quiet=quiet), expand=True) as bar:
        identifier = bar.add_task(task, total=steps, epsilon=0.0)
        yield lambda done, epsilon: bar.update(identifier, completed=done, epsilon=epsilon)


@contextlib.contextmanager
def counting(task: str, *, quiet: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr for pieces of work, with the last one finished and the time left.

    Example:
        >>> with counting("folds", quiet=True) as advance:
        ...     advance(1, 10, "fold 1")
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=Console(stderr=True, quiet=quiet)) as bar:
        identifier = bar.add_task(task, total=None, last="")
        yield lambda done, total, last: bar.update(
            identifier, completed=done, total=total, last=last
        )


def report_failure(error: BaseException, *, debug: bool) -> int:
    """Say on stderr what went wrong and return the exit code.

    Guarantee:
        Without ``debug`` only the messages of the errors in ``dpflows.errors`` and of
        the argument parser are shown; they hold no private value. Any other
        exception is named by its type and place, never by its text.

    Example:
        >>> report_failure(InputError("epsilon must be positive, got -1"), debug=False)
        2
    """
    if debug:
        traceback.print_exception(error)
    line, code = _explain(error)
    print(f"error: {line}", file=sys.stderr)
    return code


def silence_stdout() -> None:
    """Stop writing to a pipe whose reader has left, also when Python shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case InputError() | BudgetError() | TrainingError():
            return _one_line(str(error)), USER_MISTAKE
        case typer.TyperException():
            return f"{_one_line(error.format_message())} (see {_help_command(error)})", USER_MISTAKE
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted; no file was left half-written", INTERRUPTED
        case MemoryError():
            return "not enough memory; use fewer rows or a smaller model", USER_MISTAKE
        case _:
            return f"this is a bug in dpflows ({_place(error)}); see it with --debug", BUG


def _one_line(text: str) -> str:
    return displayable(" ".join(text.split()))


def _help_command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'dpflows'} --help"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where

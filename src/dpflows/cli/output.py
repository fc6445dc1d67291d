"""What the command line prints: results to stdout, everything else to stderr.

A script that reads stdout gets the result alone; progress and errors never mix
with it. An error is one line. An unexpected exception is named by its type and place,
with ``--debug`` by its trace, and never by its text, which could quote a private value.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpflows.errors import BudgetError, InputError, TrainingError, displayable, place_of

SUCCESS, UNEXPECTED, MISUSE, NO_BUDGET, NOT_TRAINED = 0, 1, 2, 3, 4
INTERRUPTED, PIPE_CLOSED = 130, 141

#: What a script may rely on; docs/command-line.md says it at length.
EXIT_CODES = {
    SUCCESS: "done",
    UNEXPECTED: "unexpected failure",
    MISUSE: "wrong use or input",
    NO_BUDGET: "not enough budget",
    NOT_TRAINED: "training failed",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "reader of stdout left",
}

#: Errors whose texts are ours and may be shown.
OWN: dict[type[BaseException], int] = {
    InputError: MISUSE,
    BudgetError: NO_BUDGET,
    TrainingError: NOT_TRAINED,
}

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
        Only the messages of the errors in ``dpflows.errors`` and of the argument parser
        are shown; they hold no private value. Any other exception is named by its type and
        place, with ``debug`` by its trace, and never by its text.

    Example:
        >>> report_failure(InputError("epsilon must be positive, got -1"), debug=False)
        2
    """
    line, code = _explain(error)
    # nobody may be there to read it
    with contextlib.suppress(OSError, ValueError):
        if debug:
            print(without_texts(error), file=sys.stderr, end="")
        print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def without_texts(error: BaseException) -> str:
    """The trace of an error and of all that led to it, with the texts of our own errors alone.

    Guarantee:
        Other libraries quote the value at which they failed, so their texts are left out.

    Example:
        >>> print(without_texts(KeyError("patient-4711")), end="")
        Traceback (most recent call last):
        KeyError: text left out, it could quote a private value
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    earlier = "" if before is None else f"{without_texts(before)}\nwhich led to\n\n"
    is_ours = isinstance(error, (*OWN, typer.TyperException))
    text = _one_line(str(error)) if is_ours else "text left out, it could quote a private value"
    trace = "".join(traceback.format_tb(error.__traceback__))
    return f"{earlier}Traceback (most recent call last):\n{trace}{place_of(error)}: {text}\n"


def silence_broken_streams() -> None:
    """Stop writing to where nothing can be written, also when Python shuts down."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain(error: BaseException) -> tuple[str, int]:
    for kind, code in OWN.items():
        if isinstance(error, kind):
            return _one_line(str(error)), code
    if _was_interrupted(error):
        return "interrupted; no file was left half-written", INTERRUPTED
    match error:
        case typer.TyperException():
            return f"{_one_line(error.format_message())} (see {_help_command(error)})", MISUSE
        case MemoryError():
            return "not enough memory; use fewer rows or a smaller model", UNEXPECTED
        case OSError(errno=int(number)):
            said = f"the system says: {os.strerror(number)}"
            return f"{said} ({place_of(error)}); see it with --debug", UNEXPECTED
        case _:
            return f"this is a bug in dpflows ({place_of(error)}); see it with --debug", UNEXPECTED


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether it was Ctrl-C, also where a library made another error of it."""
    if error is None or isinstance(error, KeyboardInterrupt | typer.Abort):
        return error is not None
    return _was_interrupted(error.__cause__) or _was_interrupted(error.__context__)


def _one_line(text: str) -> str:
    return displayable(" ".join(text.split()))


def _help_command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'dpflows'} --help"

"""What the command line prints: results to stdout, everything else to stderr.

A script that reads stdout gets only the result; progress and errors go to stderr. An error is one
line. Of an unexpected exception the type and the place are shown, with ``--debug`` the traceback,
but never its message, which could quote a private value.
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
    MISUSE: "invalid options or input",
    NO_BUDGET: "privacy budget too small",
    NOT_TRAINED: "training failed",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "stdout was closed",
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
    """The console for human-readable results; ``quiet`` prints nothing.

    Long lines are left to the terminal, so that a command shown can be copied.

    Example:
        >>> console().print("five arms")
        five arms
    """
    # brackets in a name from a file are no markup, in tables neither
    return Console(quiet=quiet, highlight=False, soft_wrap=True, markup=False)


def say(screen: Console, text: str) -> None:
    """Print a line literally: no markup, control characters are escaped.

    Example:
        >>> say(console(), "column [bold]")
        column [bold]
    """
    screen.print(displayable(text), markup=False)


def permissions(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """A note if a file that is meant to be shared is readable by its owner only.

    Example:
        >>> import tempfile
        >>> permissions(tempfile.mkstemp()[1])
        ('The file is readable by you only; run chmod to share it.',)
    """
    is_private = os.name == "posix" and not os.stat(path).st_mode & 0o077
    return ("The file is readable by you only; run chmod to share it.",) if is_private else ()


def print_json(result: Any) -> None:
    """Print one document of strict JSON.

    Example:
        >>> print_json({"epsilon": 1.5})
        {
          "epsilon": 1.5
        }
    """
    print(json.dumps(result, indent=2, allow_nan=False))


@contextlib.contextmanager
def progress(task: str, *, steps: int, quiet: bool = False) -> Iterator[Advance]:
    """A progress bar on stderr with steps, epsilon spent and time left.

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
    """A progress bar on stderr for tasks, with the last finished task and the time left.

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
    """Report an error on stderr and return the exit code.

    Guarantee:
        Only the messages of the errors in ``dpflows.errors`` and of the argument parser are shown;
        they hold no private value. Of any other exception the type and the place are shown, with
        ``debug`` the traceback, and never its message.

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
    """The traceback of an error and its causes, with the messages of dpflows' own errors only.

    Guarantee:
        Other libraries may quote a value in a message, so their messages are left out.

    Example:
        >>> print(without_texts(KeyError("patient-4711")), end="")
        Traceback (most recent call last):
        KeyError: message withheld, it could quote a private value
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    earlier = "" if before is None else f"{without_texts(before)}\nwhich caused\n\n"
    is_ours = isinstance(error, (*OWN, typer.TyperException))
    text = _one_line(str(error)) if is_ours else "message withheld, it could quote a private value"
    trace = "".join(traceback.format_tb(error.__traceback__))
    return f"{earlier}Traceback (most recent call last):\n{trace}{place_of(error)}: {text}\n"


def silence_broken_streams() -> None:
    """Stop writing to closed streams, also when Python shuts down."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_AGAIN = "run again with --debug for the traceback"


def _explain(error: BaseException) -> tuple[str, int]:
    for kind, code in OWN.items():
        if isinstance(error, kind):
            return _one_line(str(error)), code
    if _was_interrupted(error):
        return "interrupted; no incomplete file was left", INTERRUPTED
    match error:
        case typer.TyperException():
            return f"{_one_line(error.format_message())} (see {_help_command(error)})", MISUSE
        case MemoryError():
            return "not enough memory; use fewer rows or a smaller model", UNEXPECTED
        case OSError(errno=int(number)):
            said = f"operating system error: {os.strerror(number)}"
            return f"{said} ({place_of(error)}); {_AGAIN}", UNEXPECTED
        case _:
            return f"unexpected error, a bug in dpflows ({place_of(error)}); {_AGAIN}", UNEXPECTED


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether the cause was Ctrl-C, also where a library raised another error for it."""
    if error is None or isinstance(error, KeyboardInterrupt | typer.Abort):
        return error is not None
    return _was_interrupted(error.__cause__) or _was_interrupted(error.__context__)


def _one_line(text: str) -> str:
    return displayable(" ".join(text.split()))


def _help_command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'dpflows'} --help"

"""The command ``dpflows``: finds the verb, runs it and reports failures on one line.

A verb is one module with one function, and one line in ``VERBS``. Only the verb
that is asked for is imported, and verbs import the library inside their function,
so that ``dpflows --help`` answers at once.
"""

import dataclasses
import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dpflows
from dpflows.cli import output
from dpflows.errors import InputError


@dataclasses.dataclass(frozen=True)
class Verb:
    """The function of a verb, by module and name, and example options for its help.

    Example:
        >>> Verb("dpflows.cli.output", "print_json", "--rows 9").function().__name__
        'print_json'
    """

    module: str
    name: str
    options: str

    def function(self) -> Any:
        """Import the verb's module and return its function."""
        return getattr(importlib.import_module(self.module), self.name)


VERBS: dict[str, Verb] = {
    "demo": Verb("dpflows.cli.demo", "demo", "--output demo"),
    "schema": Verb("dpflows.cli.schema", "schema", "rows.csv --output schema.toml"),
    "plan": Verb("dpflows.cli.plan", "plan", "--schema schema.toml --rows 24000 --epsilon 1"),
    "fit": Verb("dpflows.cli.fit", "fit", "rows.csv --schema s.toml --epsilon 1 --output m.dpflow"),
    "tune": Verb(
        "dpflows.cli.tune",
        "tune",
        "rows.csv --schema s.toml --epsilon 1 --candidates candidates.toml --output m.dpflow",
    ),
    "sample": Verb(
        "dpflows.cli.sample", "sample", "model.dpflow --rows 1000 --output synthetic.csv"
    ),
    "score": Verb("dpflows.cli.score", "score", "model.dpflow rows.csv --output scores.csv"),
    "detect": Verb("dpflows.cli.detect", "detect", "model.dpflow rows.csv --output anomalies.csv"),
    "ensemble": Verb(
        "dpflows.cli.ensemble",
        "ensemble",
        "rows.csv --epsilon-per-query 0.1 --epsilon 1 --schema s.toml --output e.dpflow",
    ),
    "evaluate": Verb("dpflows.cli.evaluate", "evaluate", "model.dpflow rows.csv --output e.json"),
    "compare": Verb("dpflows.cli.compare", "compare", "rows.csv --schema s.toml --epsilon 1"),
    "audit": Verb("dpflows.cli.audit", "audit", "--way gradients --epsilon 1"),
    "budget": Verb("dpflows.cli.budget", "budget", "show clinic.ledger"),
    "certificate": Verb("dpflows.cli.certificate", "certificate", "model.dpflow"),
    "sign": Verb("dpflows.cli.sign", "sign", "model.dpflow --key curator.pem"),
    "verify": Verb("dpflows.cli.sign", "verify", "model.dpflow --key curator.pub.pem"),
    "account": Verb(
        "dpflows.cli.account",
        "account",
        "--rows 30000 --batch-size 500 --noise-multiplier 2 --steps 600 --delta 1e-5",
    ),
    "reproduce": Verb("dpflows.cli.reproduce", "reproduce", "half-moons --folds 1"),
}


#: The widest help, on terminals that are as wide.
HELP_WIDTH = 100


def build(verbs: Mapping[str, Verb]) -> typer.Typer:
    """The command-line application over a table of verbs.

    Example:
        >>> build({}).info.name
        'dpflows'
    """

    class Verbs(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(verbs)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in verbs:
                raise InputError(_unknown(cmd_name, list(verbs)))
            return _command(cmd_name, verbs[cmd_name])

    application = typer.Typer(
        name="dpflows",
        cls=Verbs,
        add_completion=False,
        rich_markup_mode=None,
        epilog=_epilog([*verbs, "--version"][0]),
    )
    application.callback()(_root)
    return application


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes are those of ``output.EXIT_CODES``.

    Example:
        >>> main(["--version"])
        Traceback (most recent call last):
            ...
        SystemExit: 0
    """
    sys.exit(run(app, sys.argv[1:] if arguments is None else arguments))


def run(application: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; failures become one line on stderr.

    Example:
        >>> run(build({}), ["--version"]) == 0
        dpflows ...
        True
    """
    # accepted before and after the verb, since that is where people type it
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"] or ["--help"]
    try:
        code = _invoke(typer.main.get_command(application), words)
        sys.stdout.flush()
    except BrokenPipeError:
        code = output.PIPE_CLOSED
    except (Exception, KeyboardInterrupt) as error:
        code = output.report_failure(error, debug=debug)
    output.silence_broken_streams()
    return code


def _invoke(command: Any, words: list[str]) -> int:
    try:
        with command.make_context("dpflows", words) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return output.SUCCESS


def _command(name: str, verb: Verb) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    function = verb.function()
    # given in full, or the list of verbs would cut it with dots
    summary = (function.__doc__ or "").strip().split("\n")[0]
    example = f"Example: dpflows {name} {verb.options}"
    settings = {"max_content_width": HELP_WIDTH}
    single.command(name, short_help=summary, epilog=example, context_settings=settings)(function)
    return typer.main.get_command(single)


def _epilog(verb: str) -> str:
    codes = ", ".join(f"{code} {meaning}" for code, meaning in output.EXIT_CODES.items())
    return f"Example: dpflows {verb}\n\nExit codes: {codes}."


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "see dpflows --help"
    return f"verb must be one of {', '.join(known)}, got {name!r}; {hint}"


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"dpflows {dpflows.__version__}")
        raise typer.Exit
    return wanted


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Differentially private densities, synthetic tables and anomaly detection."""


app = build(VERBS)

if __name__ == "__main__":
    main()

"""The command line turns every failure into one line and the right exit code."""

import os
import signal
import subprocess
import sys
import textwrap
import traceback
import types
from typing import Annotated

import pytest
import typer

from dpflows.cli.main import VERBS, Verb, _command, build, main, run
from dpflows.errors import BudgetError, InputError, TrainingError

SENTINEL = "patient-4711"


def _run(function, *words: str) -> int:
    module = types.ModuleType("house_test_verbs")
    module.verb = function  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return run(build({"verb": Verb(module.__name__, "verb", "")}), words)


def _raise(error: BaseException):
    def verb() -> None:
        """Fail."""
        raise error

    return verb


def _options(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take options."""
    print(epsilon, as_json)


def test_a_verb_runs_and_exits_with_zero(capsys):
    assert _run(_options, "verb", "--epsilon", "1.5", "--json") == 0
    assert capsys.readouterr().out == "1.5 True\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("rows must be 1\nor more"), 2),
        (BudgetError("spent"), 3),
        (TrainingError("diverged"), 4),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_a_code_of_its_own(capsys, error, code):
    assert _run(_raise(error), "verb") == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize("words", [("--debug", "verb"), ("verb", "--debug")])
def test_debug_shows_the_trace_before_or_after_the_verb(capsys, words):
    assert _run(_raise(InputError("rows must be 1 or more")), *words) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.endswith("error: rows must be 1 or more\n")


def test_a_bug_is_named_but_never_quoted(capsys):
    assert _run(_raise(KeyError(SENTINEL)), "verb") == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: unexpected error, a bug in dpflows (KeyError in ")
    assert printed.count("\n") == 1
    assert SENTINEL not in printed


def _chained() -> None:
    """Fail as a library does that quotes a cell in everything it says."""
    try:
        raise ValueError(f"could not convert {SENTINEL}")
    except ValueError as first:
        first.add_note(f"in the cell {SENTINEL}")
        try:
            raise LookupError(f"no such label: {SENTINEL}") from first
        except LookupError:
            raise InputError("cannot read column 'age'")  # noqa: B904 (the chain is the test)


@pytest.mark.parametrize("verb", [_raise(KeyError(SENTINEL)), _chained])
def test_debug_shows_every_trace_and_no_text_of_others(capsys, verb):
    _run(verb, "--debug", "verb")
    said = capsys.readouterr().err
    assert "test_main.py" in said
    assert SENTINEL not in said
    assert "message withheld" in said


def test_the_sentinel_search_has_power(capsys):
    with pytest.raises(InputError) as caught:
        _chained()
    traceback.print_exception(caught.value)
    assert capsys.readouterr().err.count(SENTINEL) == 3


def test_an_interrupt_that_a_library_turned_into_another_error_is_one(capsys):
    error = RuntimeError("callback failed")
    error.__cause__ = KeyboardInterrupt()
    assert _run(_raise(error), "verb") == 130


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["verb"], "--epsilon"),
        (["verb", "--epsilon"], "--epsilon"),
        (["verb", "--epsilon", "much"], "--epsilon"),
        (["verb", "--epsilon", "1", "--jsn"], "--jsn"),
        (["verb", "--epsilon", "1", "extra"], "extra"),
        (["--verbose"], "--verbose"),
        (["vreb"], "did you mean 'verb'?"),
        (["something"], "see dpflows --help"),
    ],
)
def test_wrong_usage_is_one_line_and_code_two(capsys, words, expected):
    assert _run(_options, *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


def test_control_characters_do_not_reach_the_terminal(capsys):
    _run(_raise(InputError("bad \x1b[2Jname")), "verb")
    assert "\x1b" not in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_code_130(capsys):
    assert _run(_raise(KeyboardInterrupt()), "verb") == 130
    assert capsys.readouterr().err == "error: interrupted; no incomplete file was left\n"


def test_exit_codes_of_verbs_are_kept():
    assert _run(_raise(typer.Exit(3)), "verb") == 3


def test_help_without_arguments_and_version(capsys):
    assert _run(_options) == 0
    assert "verb  Take options." in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("dpflows 0.")


INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from dpflows.cli.main import Verb, build, run
from dpflows.files import write_atomically

# A suite that runs in the background passes ignored interrupts on to its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

def verb() -> None:
    with write_atomically(sys.argv[1]) as file:
        file.write(b"half")
        file.flush()
        print("writing", flush=True)
        time.sleep(60)

sys.exit(run(build({"verb": Verb("__main__", "verb", "")}), ["verb"]))
"""


def test_ctrl_c_leaves_the_old_file_and_no_half_written_one(tmp_path):
    target = tmp_path / "model.dpflow"
    target.write_bytes(b"old")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(target)], stdout=subprocess.PIPE, stderr=-1
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert len(os.listdir(tmp_path)) == 2  # the power of this test: there was something to remove
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == b"error: interrupted; no incomplete file was left\n"
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.dpflow"]


def test_a_reader_that_leaves_early_causes_no_complaint():
    code = textwrap.dedent("""
        import sys
        from dpflows.cli.main import Verb, build, run
        def verb() -> None:
            print("line\\n" * 100_000)
        sys.exit(run(build({"verb": Verb("__main__", "verb", "")}), ["verb"]))
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=-1)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert said == b""
    assert process.wait(timeout=30) == 141


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_json_an_example_and_help_that_fits_a_screen(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    assert run(build(VERBS), [verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert f"Example: dpflows {verb} {VERBS[verb].options}" in " ".join(shown.split())
    # one line for each option: fit has twenty
    assert len(shown.rstrip().splitlines()) <= 34
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_example_is_accepted(verb):
    context = _command(verb, VERBS[verb]).make_context(verb, VERBS[verb].options.split())
    assert context.info_name == verb


def test_the_overview_fits_a_small_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(build(VERBS), ["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert "Example: dpflows" in shown
    assert "..." not in shown.replace("[ARGS]...", "")
    assert len(shown.rstrip().splitlines()) <= 34
    assert max(map(len, shown.splitlines())) <= 80

"""Results go to stdout, everything else to stderr."""

import json

import pytest

from dpflows.cli.output import console, print_json, progress, report_failure


def test_json_is_one_document_without_nan(capsys):
    print_json({"epsilon": 1.5, "events": [1, 2]})
    assert json.loads(capsys.readouterr().out) == {"epsilon": 1.5, "events": [1, 2]}
    with pytest.raises(ValueError, match="JSON"):
        print_json({"epsilon": float("nan")})


def test_progress_shows_epsilon_on_stderr_alone(capsys):
    with progress("training", steps=4) as advance:
        advance(4, 1.25)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "training" in printed.err
    assert "4/4" in printed.err
    assert "epsilon 1.250" in printed.err


def test_quiet_progress_and_console_are_silent(capsys):
    with progress("training", steps=4, quiet=True) as advance:
        advance(4, 1.25)
    console(quiet=True).print("result")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == ""


def test_a_command_that_is_shown_can_be_copied(capsys):
    command = "dpflows account " + "--rows 30000 " * 20
    console().print(command)
    assert capsys.readouterr().out == command + "\n"


def test_running_out_of_memory_is_explained(capsys):
    assert report_failure(MemoryError(), debug=False) == 1
    assert "fewer rows" in capsys.readouterr().err

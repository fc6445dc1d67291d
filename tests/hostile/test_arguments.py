"""Whatever is typed: exit code 0 or 2, one line on stderr, no trace, for every verb."""

import contextlib
import functools
import io
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpflows.cli.main import VERBS, app, run
from dpflows.errors import InputError
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger
from figures import note
from hostile.making import FILES

ACCEPTED = "these words are good"
SCHEMA = "".join(f'[columns.x{i}]\nkind = "continuous"\nmin = -4\nmax = 4\n' for i in (0, 1))

#: Values for any option. None names a file outside the folder: a verb may write it.
VALUES = [
    *("", " ", "-", "--", "-1", "0", "1", "2", "0.5", "1e-6", "nan", "inf", "-inf", "1e400"),
    *("9" * 30, "1e-400", "0x1", "1_0", "true", "none", "all", "x", "ü", "\x1b[2J", "a\nb", "%s"),
    *("t.csv", "s.toml", "m.dpflow", "e.dpflow", "d.dpflow", "f.dpflow", "missing.csv", "folder"),
    *("out.csv", "out.parquet", "out.toml", "out.dpflow", "out.json", "out.exe", "l.ledger"),
    *("show", "verify", "pld", "gdp-clt", "zero-out", "replace-one", "nsf", "poisson", "geometric"),
]
#: A table of any length is a fair wish, and a long one takes as long as it takes.
LENGTHS = {"sample": ("--rows", "--chunk")}


def _options(verb: str) -> list[str]:
    """The options that a verb really has."""
    context = typer.Context(typer.main.get_command(app))
    command = typer.main.get_command(app).get_command(context, verb)
    return [word for parameter in command.params for word in parameter.opts if word[:1] == "-"]


VERBS = {k: v for k, v in VERBS.items() if __import__("importlib").util.find_spec(v.module)}
OPTIONS = {verb: _options(verb) for verb in VERBS}
free_text = st.text(st.characters(blacklist_characters="/\0"), max_size=8).filter(
    lambda word: word != "--debug"  # asks for the trace
)
value = st.sampled_from(VALUES) | free_text


@st.composite
def commands(draw):
    """A verb with its own options and any values, near enough to pass the parser often."""
    verb = draw(st.sampled_from(sorted(VERBS)))
    example = [NAMES.get(word, word) for word in VERBS[verb].options.split()]
    words = example if draw(st.integers(0, 3)) else []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 4]))):
        option = draw(st.sampled_from(OPTIONS[verb]))
        given = draw(value)
        if option in LENGTHS.get(verb, ()):
            given = draw(st.sampled_from(["5", "0", "-1", "x", ""]))
        at = draw(st.integers(0, len(words)))
        words[at:at] = draw(st.sampled_from([[option, given], [option], [given]]))
    return [verb, *words]


#: What the verbs' examples name, by what is there.
NAMES = {
    "rows.csv": "t.csv",
    "schema.toml": "s.toml",
    "model.dpflow": "m.dpflow",
    "clinic.ledger": "l.ledger",
    "FOLDER": "folder",
    "1000": "9",
}


def _accept(*arguments, **options):
    raise InputError(ACCEPTED)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder for a small job's files, where nothing trains or downloads."""
    from dpflows.anomaly.ensemble import DPEnsembleDetector
    from dpflows.estimators.flow import DPFlow
    from dpflows.experiments import downloads, running
    from dpflows.training.loop import Loop

    monkeypatch.chdir(tmp_path)
    for place in (DPFlow, DPEnsembleDetector):
        monkeypatch.setattr(place, "fit", _accept)
    monkeypatch.setattr(running, "run", _accept)
    monkeypatch.setattr(downloads, "download", _accept)
    monkeypatch.setattr(Loop, "run", _accept)
    return tmp_path


def _lay_out(folder) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    rows = np.random.default_rng().uniform(-4, 4, size=(20, 2))
    np.savetxt("t.csv", rows, "%.5f", ",", header="x0,x1", comments="")
    (folder / "s.toml").write_text(SCHEMA)
    (folder / "folder").mkdir()
    kinds = ["DPGaussian", "DPEnsembleDetector", "DPAnomalyDetector", "DPFlow"]
    for name, kind in zip("medf", kinds, strict=True):
        shutil.copy(FILES / f"{kind}.dpflow", folder / f"{name}.dpflow")
    (folder / "l.ledger").write_bytes(_ledger())


@functools.cache
def _ledger() -> bytes:
    """A ledger with one charge, made once."""
    path = Path(tempfile.mkdtemp()) / "l.ledger"
    price = PureEvent(epsilon=Sensitivity.uniformly(0.1))
    Ledger(path, cap=Budget(1.0, 1e-6)).reserve([price], purpose="fit")
    return path.read_bytes()


def judge(code: int, out: str, err: str) -> None:
    """What every answer of the command line must be."""
    assert code in (0, 2, 3), (code, err)
    assert "Traceback" not in out + err
    if code != 0 and ACCEPTED not in err:
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert "\x1b" not in err


def _said(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(app, words)
    return code, out.getvalue(), err.getvalue()


def _fuzz(folder, examples: int) -> Counter[str]:
    """How many commands were done, refused, or good and stopped before they trained."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(words=commands() | st.lists(value | st.sampled_from(sorted(VERBS)), max_size=5))
    def answers(words):
        _lay_out(folder)
        code, out, err = _said(words)
        outcomes["good" if ACCEPTED in err else "done" if code == 0 else "refused"] += 1
        judge(code, out, err)

    answers()
    return outcomes


def test_words_of_any_kind(bench):
    assert _fuzz(bench, 40)["refused"] > 5


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_words_of_any_kind(bench):
    outcomes = _fuzz(bench, 5_000)
    note("command lines", {"cases": outcomes.total(), "faults": 0, "outcomes": outcomes})
    # refusals that come before the verb looks at anything would test the parser alone
    assert outcomes["refused"] > 1_000
    assert outcomes["done"] + outcomes["good"] > 100


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_an_unknown_option_and_shows_its_help(bench, verb):
    code, out, err = _said([verb, "--no-such-option"])
    judge(code, out, err)
    assert code == 2
    assert _said([verb, "--help"])[0] == 0
    assert os.listdir(bench) == []


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (1, "", "error: this is a bug\n"),
        (2, "", "error: one\nerror: two\n"),
        (2, "", "no such option\n"),
        (0, "Traceback (most recent call last)\n", ""),
    ],
)
def test_the_judge_has_power(code, out, err):
    with pytest.raises(AssertionError):
        judge(code, out, err)

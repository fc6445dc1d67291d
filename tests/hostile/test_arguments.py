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

from dpflows.anomaly.persistence import sign
from dpflows.cli.main import VERBS, app, run
from dpflows.errors import InputError
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger
from dpflows.signatures import new_key_pair
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
#: Values that many an option takes.
FITTING = ["1", "2", "5", "60", "0.5", *(word for word in VALUES if "." in word and word[0] > "9")]
#: Verbs whose example takes seconds.
SLOW = ("account", "audit", "demo", "sample")
#: A table of any length is a fair wish, and a long one takes as long as it takes.
LENGTHS = {"sample": ("--rows", "--chunk")}


def _options(verb: str) -> dict[str, bool]:
    """The options that a verb really has, and whether they take no value."""
    context = typer.Context(typer.main.get_command(app))
    command = typer.main.get_command(app).get_command(context, verb)
    return {
        word: parameter.is_flag
        for parameter in command.params
        for word in parameter.opts
        if word[:1] == "-"
    }


OPTIONS = {verb: _options(verb) for verb in VERBS}
free_text = st.text(st.characters(blacklist_characters="/\0"), max_size=8).filter(
    lambda word: word != "--debug"  # asks for the trace
)
value = st.sampled_from(VALUES) | free_text


words_of_any_kind = st.lists(value | st.sampled_from(sorted(VERBS)), max_size=5)


@st.composite
def commands(draw):
    """A verb with its own options and any values, near enough to pass the parser often."""
    verb = draw(st.sampled_from(sorted(VERBS)))
    words = _example(verb) if draw(st.integers(0, 3)) else []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 4]))):
        # in the middle an addition may part an option from its value
        at = draw(st.just(len(words)) | st.integers(0, len(words)))
        words[at:at] = draw(additions(verb))
    return [verb, *words]


@st.composite
def additions(draw, verb):
    """An option as it may well be given, or one that is wrong, or any word."""
    option, is_flag = draw(st.sampled_from(sorted(OPTIONS[verb].items())))
    fitting, given = draw(st.sampled_from(FITTING)), draw(value)
    if option in LENGTHS.get(verb, ()):
        fitting, given = draw(st.sampled_from([("5", "0"), ("7", "-1"), ("9", "x"), ("2", "")]))
    good = [option] if is_flag else [option, fitting]
    return draw(st.sampled_from([good, good, [option, given], [option], [given]]))


#: What the verbs' examples name, by what is there.
NAMES = {
    "rows.csv": "t.csv",
    "schema.toml": "s.toml",
    "model.dpflow": "m.dpflow",
    "clinic.ledger": "l.ledger",
    "FOLDER": "folder",
    "1000": "9",
}


def _example(verb: str) -> list[str]:
    """What the help of a verb shows, with inputs that are there and an output that is not."""
    words = [NAMES.get(word, word) for word in VERBS[verb].options.split()]
    if "--output" in words:
        at = words.index("--output") + 1
        words[at] = f"new-{words[at]}"
    return words


def _accept(*arguments, **options):
    raise InputError(ACCEPTED)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder for a small job's files, where nothing trains or downloads."""
    from dpflows.anomaly.ensemble import DPEnsembleDetector
    from dpflows.estimators.base import DensityEstimator
    from dpflows.estimators.select import DPSelect
    from dpflows.experiments import data, running
    from dpflows.experiments.baselines import comparison
    from dpflows.training.dp_sgd import Loop

    monkeypatch.chdir(tmp_path)
    for place in (DensityEstimator, DPSelect, DPEnsembleDetector):
        monkeypatch.setattr(place, "fit", _accept)
    monkeypatch.setattr(comparison, "compare", _accept)
    monkeypatch.setattr(running, "run", _accept)
    monkeypatch.setattr(data, "download", _accept)
    monkeypatch.setattr(Loop, "run", _accept)
    return tmp_path


def _lay_out(folder) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(_job(), folder, dirs_exist_ok=True)


@functools.cache
def _job() -> Path:
    """A folder with all that the verbs' examples name, made once."""
    folder = Path(tempfile.mkdtemp())
    rows = np.random.default_rng().uniform(-4, 4, size=(60, 2))
    np.savetxt(folder / "t.csv", rows, "%.5f", ",", header="x0,x1", comments="")
    (folder / "s.toml").write_text(SCHEMA)
    (folder / "candidates.toml").write_text("[grid]\nsteps = [5, 6]\n")
    (folder / "folder").mkdir()
    kinds = ["DPGaussian", "DPEnsembleDetector", "DPAnomalyDetector", "DPFlow"]
    for name, kind in zip("medf", kinds, strict=True):
        shutil.copy(FILES / f"{kind}.dpflow", folder / f"{name}.dpflow")
    sign(folder / "m.dpflow", new_key_pair(folder / "curator")[0])
    price = PureEvent(epsilon=Sensitivity.uniformly(0.1))
    Ledger(folder / "l.ledger", cap=Budget(1.0, 1e-6)).reserve([price], purpose="fit")
    return folder


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


def _outcome(code: int, err: str) -> str:
    return "good" if ACCEPTED in err else "done" if code == 0 else "refused"


def _fuzz(folder, examples: int) -> Counter[str]:
    """How many commands were done, refused, or good and stopped before they trained."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(words=commands() | commands() | words_of_any_kind)
    def answers(words):
        _lay_out(folder)
        code, out, err = _said(words)
        outcomes[_outcome(code, err)] += 1
        judge(code, out, err)

    answers()
    return outcomes


@pytest.mark.parametrize(
    "verb",
    [pytest.param(v, marks=pytest.mark.long) if v in SLOW else v for v in VERBS],
)
def test_the_example_of_every_verb_is_good(bench, verb):
    """Or what is added to it would be refused for the example's sake, and test nothing."""
    _lay_out(bench)
    code, _, err = _said([verb, *_example(verb)])
    assert _outcome(code, err) in ("good", "done"), err


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

"""Whatever is given to a verb: code 2, one line, nothing planted in it, nothing left behind."""

import contextlib
import io
import os
import random
import re
import secrets

import pytest

from dpflows.cli.main import app, run
from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from table.fuzzing import mutated, plant, schema_case, table_case

#: The name of a column in a schema file is public, wherever a mutation took it from.
NAMED = re.compile(
    r"""column ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?:(?<=for column )|(?<=declares: ))[^;]*"""
)
ACCEPTED = "the input is good"


class Bench:
    """Runs generated commands and judges those that were refused."""

    def __init__(self, job, folder) -> None:
        self.job, self.folder = job, folder
        self.model = job.model.read_bytes()

    def run(self, number: int, seed: int) -> bool:
        """Whether the generated input was bad, once it was judged."""
        chance = random.Random(seed)
        maker = (self._table, self._table, self._schema, self._model)[number % 4]
        words, inputs, planted = maker(chance)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(app, [str(word) for word in words])
        left = set(os.listdir(self.folder)) - inputs
        for name in {*left, *inputs}:
            (self.folder / name).unlink(missing_ok=True)
        if code == 0 or ACCEPTED in err.getvalue():
            return False
        judge(code, out.getvalue(), err.getvalue(), left, planted)
        return True

    def _put(self, name: str, content: bytes):
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def _table(self, chance: random.Random):
        case = table_case(chance)
        rows, out = self._put(case.name, case.content), self.folder / "out"
        verbs = {
            "fit": [rows, "--schema", self.job.schema, "--epsilon", 1, "--output", f"{out}.dpflow"],
            "schema": [rows, "--output", f"{out}.toml"],
            "score": [self.job.model, rows, "--output", f"{out}.csv"],
        }
        verb = chance.choice(["fit", "fit", "schema", "score"])
        extra = ["--drop-extra"] if case.options["drop_extra"] and verb != "schema" else []
        extra += ["--no-header"] if case.options.get("header") is False and verb == "fit" else []
        values = [*extra, *(["--read-values"] if verb == "schema" else [])]
        return [verb, *verbs[verb], *values], {case.name}, case.planted

    def _schema(self, chance: random.Random):
        case = schema_case(chance)
        schema, model = self._put(case.name, case.content), self.folder / "out.dpflow"
        budget = ["--schema", schema, "--epsilon", 1]
        if chance.random() < 0.5:
            return ["plan", *budget, "--rows", 300], {case.name}, case.planted
        return ["fit", self.job.rows, *budget, "--output", model], {case.name}, case.planted

    def _model(self, chance: random.Random):
        planted = [plant(chance) for _ in range(3)]
        content = mutated(chance, self.model, planted)
        if chance.random() < 0.3:
            content = content[: chance.randrange(len(content))]
        if content == self.model:
            content += b"1"
        model, out = self._put("bad.dpflow", content), self.folder / "out"
        verb = chance.choice(
            [
                ["sample", model, "--rows", 5, "--output", f"{out}.parquet"],
                ["score", model, self.job.rows, "--output", f"{out}.csv.gz"],
                ["detect", model, self.job.rows, "--output", f"{out}.csv"],
                ["certificate", model, "--output", f"{out}.json"],
            ]
        )
        return verb, {"bad.dpflow"}, planted


def judge(code: int, out: str, err: str, left: set[str], planted: list[str]) -> None:
    """What every refusal must be."""
    assert (code, out, left) == (2, "", set()), (code, out, err, left)
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    shown = NAMED.sub("", err)
    assert [value for value in planted if value.strip("-") in shown] == [], err


def _accept(self, X, **options):
    raise InputError(ACCEPTED)


def _fuzz(count: int, bench: Bench) -> None:
    """Go on until so many bad inputs were judged; good ones do not count."""
    bad = tried = 0
    while bad < count:
        assert tried < 3 * count + 50, "most generated inputs are good"
        seed = secrets.randbits(64)
        try:
            bad += bench.run(tried, seed)
        except BaseException:
            print(f"case {tried} of seed {seed}")
            raise
        tried += 1


@pytest.fixture
def bench(job, tmp_path, monkeypatch):
    monkeypatch.setattr(DensityEstimator, "fit", _accept)  # a good file would train
    return Bench(job, tmp_path)


def test_generated_bad_files_schemas_and_models(bench):
    _fuzz(250, bench)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_generated_bad_files_schemas_and_models(bench):
    _fuzz(10_000, bench)


@pytest.mark.parametrize(
    ("code", "out", "err", "left"),
    [
        (1, "", "error: this is a bug\n", set()),
        (2, "", "error: one\nerror: two\n", set()),
        (2, "error\n", "error: one\n", set()),
        (2, "", "error: bad cell 4711\n", set()),
        (2, "", "Traceback\n", set()),
        (2, "", "error: one\n", {"out.csv"}),
        (2, "", "error: one\n", {".dpflows-x.part"}),
    ],
)
def test_the_judge_has_power(code, out, err, left):
    with pytest.raises(AssertionError):
        judge(code, out, err, left, ["4711"])

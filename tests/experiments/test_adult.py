"""Adult: the public schema, both forms of the files, and an experiment that goes on."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpflows.errors import InputError
from dpflows.experiments import adult
from dpflows.experiments.adult import MEASURES, STOPPED, Adult
from dpflows.experiments.data import ADULT_SCHEMA, read_adult
from dpflows.experiments.running import Job, Workspace, run
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema

ROOT = Path(__file__).parents[2]
SCHEMA = Schema.read(ADULT_SCHEMA)


def invented(count: int) -> pd.DataFrame:
    """Rows that the schema allows, with an income that depends on the age."""
    chance = np.random.default_rng()
    cells = {
        c.name: chance.choice(c.categories, count)
        if c.categories
        else chance.integers(int(c.min), int(c.max), count, endpoint=True)
        for c in SCHEMA.columns
    }
    older = np.where(cells["age"] + chance.normal(size=count) * 9 > 50, ">50K", "<=50K")
    return pd.DataFrame(cells | {"income": older})


@pytest.fixture
def rows(tmp_path):
    """Prepared files, in a folder of data, and what is in them."""
    (tmp_path / "adult").mkdir()
    table = invented(400).assign(split=["train"] * 260 + ["test"] * 140)
    table.to_csv(tmp_path / "adult" / "adult_all.csv.gz", index=False)
    return table


def test_the_example_is_the_schema_of_the_experiment():
    assert (ROOT / "examples" / "adult.toml").read_text() == ADULT_SCHEMA.read_text()
    assert len(SCHEMA.columns) == 15
    assert SCHEMA.target == "income"
    assert not SCHEMA.values_read
    assert SCHEMA.undeclared() == ()


def test_labels_are_read_as_they_are(rows, tmp_path):
    train, test = read_adult(tmp_path)
    assert (len(train), len(test)) == (260, 140)
    table = read_table(train, SCHEMA)
    assert table.outside == 0
    assert (table.columns["workclass"] == rows["workclass"][:260].to_numpy()).all()
    assert "?" in set(table.columns["native-country"]) | set(table.columns["workclass"])


def test_the_files_of_the_archive_are_read_too(rows, tmp_path):
    prepared = read_adult(tmp_path)
    folder = tmp_path / "other" / "adult"
    folder.mkdir(parents=True)
    table = rows.drop(columns="split").astype(str)
    lines = [", ".join(cells) for cells in table.itertuples(index=False)]
    (folder / "adult.data").write_text("\n".join(lines[:260]) + "\n\n")
    dotted = [line + "." for line in lines[260:]]
    (folder / "adult.test").write_text("\n".join(["|1x3 Cross validator", *dotted]) + "\n\n")
    for one, other in zip(read_adult(tmp_path / "other"), prepared, strict=True):
        pd.testing.assert_frame_equal(one, other.reset_index(drop=True))


def test_files_that_are_not_there_are_one_line(tmp_path):
    with pytest.raises(InputError, match="files of adult are not in the data folder"):
        read_adult(tmp_path)
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult_all.csv.gz").write_bytes(gzip.compress(b"age\n3\n"))
    with pytest.raises(InputError, match="KeyError"):
        read_adult(tmp_path)


def test_jobs_are_single_fits_with_the_slowest_last():
    jobs = Adult().jobs(3, (1.0, 4.0))
    assert len(jobs) == 2 + (3 + 3 + 1) * 2
    assert [job.method for job in jobs[:3]] == ["real", "real-discretised", "ours"]
    assert jobs[-1] == Job("adult", "aim", 1, (4.0,))
    assert len({job.key for job in jobs}) == len(jobs)


def test_real_rows_are_measured_and_found_again(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(Adult, "jobs", lambda *_: [Job("adult", "real", 1, ())])
    workspace = Workspace(tmp_path, tmp_path)
    found = {f.measure: f for f in run(Adult(), workspace, folds=1, epsilons=[1.0])}
    assert list(found) == list(MEASURES.values())
    assert found[MEASURES["two_way_fitted"]].value == 0
    assert found[MEASURES["learning"]].value > 0.75
    assert {(f.epsilon, f.proven, f.accountant) for f in found.values()} == {(None, None, "none")}
    monkeypatch.setattr(adult, "read_adult", None)
    assert len(run(Adult(), workspace, folds=1, epsilons=[1.0])) == len(MEASURES)


def test_a_peer_that_is_too_slow_leaves_an_honest_figure(rows, tmp_path):
    pytest.importorskip("mbi")
    job = Job("adult", "aim", 1, (1.0,))
    (found,) = Adult(seconds=0.0).measure(job, Workspace(tmp_path, tmp_path))
    assert (found.measure, found.value, found.proven) == (STOPPED, 0.0, None)

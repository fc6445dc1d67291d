"""One file has one budget, by whatever name it is reached."""

import os

import pytest

from anomaly.voters import cost_of, ensemble, normal_rows
from dpflows import Budget, BudgetError, InputError, load
from dpflows.anomaly import query_budget
from dpflows.privacy.ledger import Ledger

LIMIT = 4
CENTRE = [0.0, 0.0]


@pytest.fixture(scope="module")
def fitted_rows():
    return normal_rows(200)


@pytest.fixture
def file(tmp_path, fitted_rows, monkeypatch):
    folder = tmp_path / "ward"
    folder.mkdir()
    detector = ensemble(total_budget=Budget(cost_of(LIMIT), 1e-6)).fit(fitted_rows)
    detector.save(folder / "e.dpflow")
    monkeypatch.chdir(tmp_path)
    return folder / "e.dpflow"


def six_names(file, folder):
    """The file itself, three links to it, and two other ways to say where it is."""
    (folder / "beside").symlink_to(file)
    (folder / "chained").symlink_to(folder / "beside")
    (folder / "rooms").symlink_to(file.parent, target_is_directory=True)
    return [
        file,
        folder / "beside",
        folder / "chained",
        folder / "rooms" / file.name,
        os.path.relpath(file),
        f"{folder}/ward/../ward/./{file.name}",
    ]


def answers(names):
    """How many answers all names together give, one after the other and by turns."""
    given, detectors = 0, [load(name) for name in names]
    for detector in (*detectors, *reversed(detectors), *(load(name) for name in names)):
        try:
            detector.answer(CENTRE)
        except BudgetError:
            continue
        given += 1
    return given


def test_six_names_give_four_answers(file, tmp_path):
    names = six_names(file, tmp_path)
    assert answers(names) == LIMIT
    assert (tmp_path / "beside").is_symlink()
    assert load(file).remaining_queries() == 0


def test_the_test_catches_files_that_are_known_by_their_names(file, tmp_path, monkeypatch):
    monkeypatch.setattr(query_budget.os.path, "realpath", os.path.abspath)
    assert answers(six_names(file, tmp_path)) > LIMIT


@pytest.mark.parametrize("when", ["before it is opened", "after it is opened"])
def test_a_hard_link_is_refused_by_every_name(file, tmp_path, when):
    opened = load(file) if when == "after it is opened" else None
    os.link(file, tmp_path / "hard")
    for detector in filter(None, (opened, load(file), load(tmp_path / "hard"))):
        with pytest.raises(InputError, match=r"has 2 names \(hard links\)") as caught:
            detector.answer(CENTRE)
        assert "\n" not in str(caught.value)
    os.unlink(tmp_path / "hard")
    assert answers([file]) == min(LIMIT, 3)


def test_saving_it_again_by_a_link_is_the_same_file(fitted_rows, tmp_path):
    detector = ensemble().fit(fitted_rows)
    detector.save(tmp_path / "e.dpflow")
    (tmp_path / "link").symlink_to(tmp_path / "e.dpflow")
    detector.save(tmp_path / "link")
    with pytest.raises(InputError, match="a second file would have its own budget"):
        detector.save(tmp_path / "other.dpflow")


def test_a_ledger_has_one_name_too(tmp_path):
    place = tmp_path / "clinic.ledger"
    ledger = Ledger(place, cap=Budget(1.0, 1e-6))
    (tmp_path / "link").symlink_to(place)
    assert Ledger(tmp_path / "link").identity == ledger.identity
    os.link(place, tmp_path / "hard")
    for name in (place, tmp_path / "hard", tmp_path / "link"):
        with pytest.raises(InputError, match="a ledger must have only one"):
            Ledger(name)
    with pytest.raises(InputError, match="hard links"):
        ledger.state_of("night-7")

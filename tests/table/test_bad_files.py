"""Every bad file gives its own line, and nothing else."""

import gzip
import os
import stat

import pytest

from dpflows.errors import InputError
from dpflows.table import raw, read_file, sources
from table.bad_files import BAD, GOOD, TWO


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gives_its_line(case, tmp_path):
    bad = BAD[case]
    path = tmp_path / bad.name
    path.write_bytes(bad.content)
    with pytest.raises(InputError) as caught:
        read_file(path, bad.schema, header=bad.header, drop_extra=bad.drop_extra, text=bad.text)
    assert str(caught.value) == bad.message.replace("{path}", repr(str(path)))
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None


def test_the_table_of_bad_files_is_long_enough():
    assert len(BAD) >= 60


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="No such file or directory; check the path"):
        read_file(tmp_path / "absent.csv", TWO)


def test_a_folder(tmp_path):
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    with pytest.raises(InputError, match="it is a folder; name a file"):
        read_file(folder, TWO)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="not a regular file"):
        read_file(tmp_path / "pipe.csv", TWO)


def test_a_path_with_a_nul_character():
    with pytest.raises(InputError, match="path must not hold NUL"):
        read_file("a\0b.csv", TWO)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.arrow"])
def test_an_unreadable_file(name, tmp_path, monkeypatch):
    """Permission is refused by a double, since an administrator may read everything."""
    path = tmp_path / name
    path.write_bytes(GOOD)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(InputError, match="Permission denied; check the path"):
        read_file(path, TWO)


@pytest.mark.skipif(os.geteuid() == 0, reason="an administrator may read everything")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(GOOD)
    path.chmod(stat.S_IWUSR)
    with pytest.raises(InputError, match="Permission denied; check the path"):
        read_file(path, TWO)


def test_a_bomb_of_good_rows_stops_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_BYTES", 10_000)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"age,dose\n" + b"1,2\n" * 10_000))
    with pytest.raises(InputError, match="at most 10000 bytes of text; split it"):
        read_file(path, TWO)


def test_a_table_of_too_many_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "MAX_CELLS", 100)
    path = tmp_path / "t.csv"
    path.write_bytes(GOOD)
    with pytest.raises(InputError, match="at most 100 cells"):
        read_file(path, TWO)


def test_a_table_that_does_not_fit_into_memory(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    monkeypatch.setattr(sources, "load", refuse)
    path = tmp_path / "t.csv"
    path.write_bytes(GOOD)
    with pytest.raises(InputError, match="does not fit into memory"):
        read_file(path, TWO)

"""Downloads: whole, checked, once; against a real server on this machine."""

import functools
import hashlib
import http.server
import threading
import zipfile

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.experiments.catalogue import EXPERIMENTS
from dpflows.experiments.data import NUMERIC, REAL, SOURCES, Source, download, read_real
from dpflows.pipeline.plan import cache_folder

CONTENT = b"1.5,2.5\n3.5,4.5\n" * 1000


@pytest.fixture
def server(tmp_path):
    """A folder served over HTTP, and the requests it got."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "rows.csv").write_bytes(CONTENT)
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(home))
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}", asked
    served.shutdown()
    served.server_close()


def source(address, *, content=CONTENT, name="rows.csv"):
    return Source(f"{address}/{name}", hashlib.sha256(content).hexdigest(), "toy/moons.csv")


def test_every_experiment_can_fetch_its_tables():
    wanted = {name for experiment in EXPERIMENTS.values() for name in experiment.datasets()}
    assert wanted
    assert wanted <= set(SOURCES)


def test_a_file_is_fetched_once(server, tmp_path):
    address, asked = server
    told = []
    for _ in range(2):
        download([source(address)], tmp_path / "cache", told=told.append)
    assert (tmp_path / "cache/toy/moons.csv").read_bytes() == CONTENT
    assert len(asked) == len(told) == 1
    table = read_real("half-moons", tmp_path / "cache")
    assert table.rows.shape == (2000, 2)


def test_a_changed_file_is_refused_and_leaves_nothing(server, tmp_path):
    with pytest.raises(InputError, match="checksum"):
        download([source(server[0], content=b"other")], tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.*"))


@pytest.mark.parametrize("name", ["absent.csv"])
def test_what_cannot_be_fetched_names_the_other_way(server, tmp_path, name):
    with pytest.raises(InputError, match="--data"):
        download([source(server[0], name=name)], tmp_path / "cache")


def test_nobody_listening_is_said_in_one_line(tmp_path):
    with pytest.raises(InputError, match="connection"):
        download([source("http://127.0.0.1:9")], tmp_path)


def test_every_table_of_the_paper_has_a_home_with_checksums():
    assert set(REAL) - set(SOURCES) == {"power-windows", *NUMERIC}
    for sources in SOURCES.values():
        for file in sources:
            assert file.address.startswith("https://")
            assert len(bytes.fromhex(file.checksum)) == 32


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFLOWS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def test_downloaded_folds_and_archives_are_read_like_prepared_ones(tmp_path):
    folds = tmp_path / "lifesci" / "paper_test_folds"
    folds.mkdir(parents=True)
    for number in range(1, 11):
        np.savetxt(folds / f"{number}.csv", np.full((number, 10), number / 100), delimiter=",")
    table = read_real("life-science", tmp_path)
    assert len(table.rows) == 55
    assert (table.split(7)[1] == 0.07).all()
    assert table.split(7)[1].shape == (7, 10)
    write_meter(tmp_path / "power")
    power = read_real("power", tmp_path)
    assert power.rows.shape == (2, 6)
    assert sorted(power.rows[:, 5].astype(int)) == [0, 61]


def write_meter(folder):
    """Three minutes of the household's meter, one of them unread."""
    folder.mkdir()
    columns = ["index", "Date", "Time", "Global_active_power", "Global_reactive_power", "Voltage"]
    columns += ["Global_intensity", "Sub_metering_1", "Sub_metering_2", "Sub_metering_3"]
    lines = [
        ",".join(columns),
        "0,1/1/07,00:00:00,2.58,0.136,241.97,10.6,0,0,0",
        "1,1/1/07,00:01:00,?,?,?,?,?,?,",
        "2,1/1/07,01:01:00,2.5,0.1,240.0,10.4,0,1,2",
    ]
    with zipfile.ZipFile(folder / "household_power_consumption_2007H1.zip", "w") as archive:
        archive.writestr("power.csv", "\n".join(lines) + "\n")

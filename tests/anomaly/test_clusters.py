"""Members are fitted wherever the backend says, and rows are not left behind."""

import importlib
import logging
import os
import secrets

import numpy as np
import pytest

from anomaly.voters import ensemble, normal_rows
from dpflows import Budget, InputError
from dpflows.anomaly import members

#: Of a megabyte and more arrays are written to a file unless that is switched off.
LARGE = 300_000
CERTAIN = {"epsilon_per_query": 20.0, "total_budget": Budget(90.0, 1e-6), "contamination": 0.01}


def works(backend, rows, *, k=2, jobs=1):
    """Fit there, and see that every part was fitted and votes."""
    detector = ensemble(k, backend=backend, n_jobs=jobs, **CERTAIN).fit(rows)
    assert [member.density is None for member in detector._voters._members] == [False] * k
    return detector.predict([[0.0, 0.0], [3.9, -3.9]]).tolist() == [1, -1]


def seen(rows):
    """How many rows a worker sees, whether they came by a file, and which worker it is."""
    return len(rows), isinstance(rows, np.memmap), os.getpid()


def test_threads():
    assert works("threading", normal_rows(), jobs=2)


def test_members_are_ready_one_by_one():
    ready = []
    ensemble(3, backend="sequential").fit(normal_rows(), on_member=ready.append)
    assert ready == [1, 2, 3]


def test_processes_get_rows_in_memory():
    rows = normal_rows(LARGE)
    with members.running("loky", 2) as run:
        found = list(run(seen, [(rows,), (rows,)]))
    assert [(count, by_file) for count, by_file, _ in found] == [(LARGE, False)] * 2
    assert os.getpid() not in {process for _, _, process in found}


@pytest.mark.long
def test_the_test_catches_rows_that_come_by_a_file():
    from sklearn.utils.parallel import Parallel, delayed

    rows = normal_rows(LARGE)
    found = Parallel(n_jobs=2, backend="loky")(delayed(seen)(rows) for _ in range(2))
    assert [by_file for _, by_file, _ in found] == [True, True]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_dask():
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    assert works("dask", normal_rows())


@pytest.mark.filterwarnings("ignore")
def test_a_dask_client_that_is_there_is_used_and_left():
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    settings = {"processes": False, "n_workers": 1, "dashboard_address": None}
    with distributed.Client(**settings) as client, members.running("dask", 1) as run:
        assert run(seen, [(np.zeros(3),)]) == [(3, False, os.getpid())]
        assert client.status == "running"
        # a key made from the rows would be shown wherever tasks are shown
        assert run(len, [("a",), ("a",)]) == [1, 1]
    assert client.status == "closed"


@pytest.mark.long  # its processes take minutes to start where others keep the cores busy
@pytest.mark.filterwarnings("ignore")
def test_ray(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray has no wheel for this Python, or is not installed")
    # Otherwise Ray would leave a token for its sessions in the user's folder.
    (tmp_path / "token").write_text(secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    logging.getLogger("ray").setLevel(logging.ERROR)
    assert works("ray", normal_rows())
    assert not ray.is_initialized()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_missing_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for backend in ("dask", "ray"):
        with (
            pytest.raises(InputError, match=rf"install dpflows\[{backend}\]"),
            members.running(backend, 1),
        ):
            pass

"""A place for a ledger on every kind of store, among them a PostgreSQL server of our own."""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

STARTING_SECONDS = 60


@dataclass(frozen=True)
class Server:
    """A running server that listens on a socket in its folder."""

    folder: Path

    def address(self, schema: str = "public") -> str:
        path = quote(f"-csearch_path={schema}")
        return (
            f"postgresql://keeper@/postgres?host={quote(str(self.folder), safe='')}&options={path}"
        )

    def new_place(self) -> str:
        import psycopg

        schema = f"ledger_{secrets.token_hex(6)}"
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return self.address(schema)


def _programs() -> Path | None:
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return Path(found).parent if found else debian[-1].parent if debian else None


def _user() -> str | None:
    """Whom the server runs as; it refuses to be root."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def _as(user: str) -> list[str]:
    if os.getuid() != 0:
        return []
    entry = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    programs, user = _programs(), _user()
    if programs is None or user is None or not (_as(user) == [] or shutil.which("setpriv")):
        pytest.skip("NOTICE: no PostgreSQL here, so its ledger is not tested")
    pytest.importorskip("psycopg", reason="NOTICE: no psycopg here, so its ledger is not tested")
    folder = Path(tempfile.mkdtemp(prefix="dpf"))
    shutil.chown(folder, user)
    try:
        yield from _running(programs, _as(user), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _running(programs: Path, prefix: list[str], folder: Path) -> Iterator[Server]:
    data = folder / "data"
    made = [programs / "initdb", "-D", data, "-U", "keeper", "--auth=trust", "--no-sync"]
    subprocess.run([*prefix, *made], check=True, capture_output=True, cwd=folder)
    settings = ["-c", "listen_addresses=", "-c", "max_connections=40"]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*prefix, programs / "postgres", "-D", data, "-k", folder, *settings],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        _wait(Server(folder), process)
        yield Server(folder)
    finally:
        process.terminate()
        process.wait(timeout=STARTING_SECONDS)
        Path(log.name).unlink()


def _wait(server: Server, process: subprocess.Popen) -> None:
    import psycopg

    deadline = time.monotonic() + STARTING_SECONDS
    while True:
        try:
            psycopg.connect(server.address()).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, "the server did not start"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.1)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path) -> str:
    """Where no ledger is yet, on each kind of store."""
    if request.param == "sqlite":
        return str(tmp_path / "clinic.ledger")
    return request.getfixturevalue("server").new_place()

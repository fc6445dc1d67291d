"""The page of an evaluation in a real browser: it is visible, and it asks nobody for anything."""

import contextlib
import dataclasses
import http.server
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from dpflows.evaluation.measures import INTERNAL_STAMP
from dpflows.evaluation.report import evaluate, render
from evaluation.mixed import SCHEMA, fresh_rows, judged

BROWSER = shutil.which("chromium")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
]

#: Colours of the page: the banner, and the bars of either side.
ALARM, GENERATED, REAL = (163, 22, 33), (47, 109, 179), (224, 138, 30)


@contextlib.contextmanager
def listening():
    """A server on this machine, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        server.server_close()


def attack(port: int) -> str:
    """A label that would call home, and take over the title, if it were not escaped."""
    home = f"http://127.0.0.1:{port}"
    return f"<script>fetch('{home}/a');document.title='owned'</script><img src='{home}/b'>"


def opened(page: str, folder: Path) -> tuple[str, np.ndarray]:
    """The page as the browser understood it, and a picture of it."""
    source, picture = folder / "page.html", folder / "page.png"
    source.write_text(page)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
    options += [f"--user-data-dir={folder / 'profile'}", "--window-size=1200,2400"]
    command = [str(BROWSER), *options, "--dump-dom", f"--screenshot={picture}", source.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return shown.stdout, (imread(picture)[..., :3] * 255).round().astype(int)


def attacked(label: str):
    """A subject with the label as a name of a column and as a category."""
    age = dataclasses.replace(SCHEMA.columns[2], name=f"age {label}")
    city = dataclasses.replace(SCHEMA.columns[5], categories=("Rome", label, "elsewhere"))
    columns = (*SCHEMA.columns[:2], age, *SCHEMA.columns[3:5], city)
    schema = dataclasses.replace(SCHEMA, columns=columns)
    return judged(dict(zip(schema.names, fresh_rows(300).values(), strict=True)), schema)


def area(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(picture - np.array(colour)).max(axis=2) <= 2).sum())


def test_a_page_is_visible_and_asks_for_nothing(tmp_path):
    with listening() as (port, asked):
        age = dataclasses.replace(SCHEMA.columns[2], name=f"age {attack(port)}")
        city = dataclasses.replace(
            SCHEMA.columns[5], categories=("Rome", attack(port), "elsewhere")
        )
        columns = (*SCHEMA.columns[:2], age, *SCHEMA.columns[3:5], city)
        schema = dataclasses.replace(SCHEMA, columns=columns)
        rows = dict(zip(schema.names, fresh_rows(300).values(), strict=True))
        subject = judged(rows, schema)
        found = {"internal": True, "stamps": [INTERNAL_STAMP], "figures": evaluate(subject)}
        understood, picture = opened(render(found, subject), tmp_path)
    assert asked == []
    assert "<title>Evaluation</title>" in understood
    assert "&lt;script&gt;fetch" in understood
    assert "<img" not in understood
    assert INTERNAL_STAMP in understood
    assert area(picture, ALARM) > 10_000
    assert min(area(picture, GENERATED), area(picture, REAL)) > 2_000


def test_a_page_that_does_not_escape_is_caught(tmp_path):
    """The twin: the same label without escaping calls home, and takes over the title."""
    with listening() as (port, asked):
        understood, picture = opened(f"<title>Evaluation</title>{attack(port)}", tmp_path)
    assert {"/a", "/b"} <= set(asked)
    assert "<title>owned</title>" in understood
    assert area(picture, ALARM) == 0

"""The density picture is whole, honest about scale and free of global state."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.evaluation import plots
from dpflows.evaluation.plots import density_figure

WINDOW = ((-4.0, 4.0), (-3.0, 3.0))
CENTRE, SPREAD = np.array([1.5, -1.0]), np.array([0.5, 0.3])


def _log_density(rows: np.ndarray) -> np.ndarray:
    scaled = (rows - CENTRE) / SPREAD
    return -0.5 * (scaled**2).sum(axis=1) - np.log(2 * np.pi * SPREAD.prod())


def _rows(count: int = 20_000) -> np.ndarray:
    return CENTRE + SPREAD * np.random.default_rng().standard_normal((count, 2))


def test_a_png_of_three_panels_is_written(tmp_path):
    path = tmp_path / "density.png"
    density_figure(_rows(), _rows(), _log_density, path, limits=WINDOW)
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG")
    assert width > 2.5 * height > 1000


def _peak(panel: np.ndarray) -> np.ndarray:
    """Where the panel's mass is, as a point of the window."""
    share = panel / panel.sum()
    (left, right), (bottom, top) = WINDOW
    up, across = ((np.arange(n) + 0.5) / n for n in panel.shape)
    return np.array(
        [
            left + (right - left) * (share.sum(axis=0) @ across),
            bottom + (top - bottom) * (share.sum(axis=1) @ up),
        ]
    )


def test_rows_and_surface_agree_in_place_and_height():
    """False alarms: the mean of 20,000 rows lies 0.05 off with probability below 1e-20."""
    cells = plots._histogram(_rows(), WINDOW)
    surface = plots._surface(_log_density, WINDOW)
    np.testing.assert_allclose(_peak(cells), CENTRE, atol=0.05)
    np.testing.assert_allclose(_peak(surface), CENTRE, atol=0.05)
    for panel in (cells, surface):
        assert panel.mean() * 8 * 6 == pytest.approx(1.0, abs=0.01)


def test_swapped_axes_would_be_noticed():
    assert not np.allclose(_peak(plots._histogram(_rows(), WINDOW).T), CENTRE, atol=0.05)


def test_all_rows_are_inside_the_default_limits():
    rows = _rows(100)
    (left, right), (bottom, top) = plots._limits(rows)
    assert (rows > [left, bottom]).all()
    assert (rows < [right, top]).all()
    assert plots._limits(np.zeros((3, 2)))[0][0] < 0


@pytest.mark.parametrize("shape", [(0, 2), (5, 3), (5,)])
def test_tables_that_are_not_two_columns_are_explained(shape):
    with pytest.raises(InputError, match="real must be an"):
        plots._check(np.zeros(shape), "real")


def test_rows_that_are_not_finite_are_explained_without_quoting_them(tmp_path):
    with pytest.raises(InputError, match="synthetic must hold only finite numbers"):
        density_figure(_rows(), np.full((3, 2), np.nan), _log_density, tmp_path / "density.png")


def test_a_density_that_is_no_number_is_explained(tmp_path):
    with pytest.raises(InputError, match="log_density"):
        density_figure(_rows(9), _rows(9), lambda z: z[:, 0] * np.nan, tmp_path / "density.png")
    assert os.listdir(tmp_path) == []


def test_a_density_may_be_zero_somewhere(tmp_path):
    def boxed(rows: np.ndarray) -> np.ndarray:
        return np.where(np.abs(rows).max(axis=1) < 1, -np.log(4), -np.inf)

    density_figure(_rows(50), _rows(50), boxed, tmp_path / "density.png", limits=WINDOW)
    assert (tmp_path / "density.png").exists()


def test_a_failing_density_leaves_no_file(tmp_path):
    def broken(rows: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        density_figure(_rows(9), _rows(9), broken, tmp_path / "density.png")
    assert os.listdir(tmp_path) == []


UNTOUCHED = """
import sys
import numpy as np
import matplotlib
def settings() -> dict:  # without the backend: reading it would choose one
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from dpflows.evaluation.plots import density_figure
rows = np.random.default_rng().normal(size=(50, 2))
density_figure(rows, rows, lambda z: -(z**2).sum(1), sys.argv[1])
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
"""


def test_matplotlib_keeps_its_settings_and_needs_no_display(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "DISPLAY"}
    shown = subprocess.run(
        [sys.executable, "-c", UNTOUCHED, str(tmp_path / "a.png")], env=environment
    )
    assert shown.returncode == 0
    assert (tmp_path / "a.png").exists()


def test_importing_the_module_does_not_import_matplotlib():
    code = "import sys, dpflows.evaluation.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

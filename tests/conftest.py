"""Settings of the whole suite."""

import os
import sys
import tempfile
from pathlib import Path

import jax
import pytest

# Keys of kept runs belong into the state folder of whoever runs them, not of a test.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpflows-state-")

# Most of the suite's time is compilation of programs that run for milliseconds, and many
# tests compile the same ones.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def _fits_of_other_tests_are_forgotten() -> None:
    """Tests share rows; each is a process of its own to the watch over repeated fits."""
    _forget_fits()


def pytest_fixture_setup() -> None:
    """So is every fixture: those of a module or a session fit the same rows too."""
    _forget_fits()


def _forget_fits() -> None:
    if (repeats := sys.modules.get("dpflows.estimators.repeats")) is not None:
        repeats.forget_fits()

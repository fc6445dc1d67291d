"""Settings of the whole suite."""

import os
import sys
import tempfile
from pathlib import Path

# The suite runs on all cores by itself: threads within its processes wait for each other.
# Libraries look at this once, when they are imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# How long an example takes says how busy the machine is; whole tests have a time limit.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

# Keys of kept runs belong into the state folder of whoever runs them, not of a test.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpflows-state-")

# Most of the suite's time is compilation of programs that run for milliseconds, and many
# tests compile the same ones. Processes that tests start may write no cache.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_configure(config: pytest.Config) -> None:
    """The older emitters of XLA compile in half the time; full-size suites take the usual ones."""
    if config.getoption("markexpr") == "not long":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"


@pytest.fixture(autouse=True)
def _fits_of_other_tests_are_forgotten() -> None:
    """Tests share rows; each is a process of its own to the watch over repeated fits."""
    _forget_fits()


def pytest_fixture_setup() -> None:
    """So is every fixture: those of a module or a session fit the same rows too."""
    _forget_fits()


def _forget_fits() -> None:
    if (repeats := sys.modules.get("dpflows.estimators.charging")) is not None:
        repeats.forget_fits()

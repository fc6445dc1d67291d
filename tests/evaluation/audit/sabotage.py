"""Privacy bugs on purpose, for as long as a ``with`` block lasts."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from dpflows.privacy import randomness
from dpflows.training.dp_sgd import PrivateGradient


@contextlib.contextmanager
def faint_noise(times: float) -> Iterator[None]:
    """Training whose noise is that many times too small, while its claim stays."""
    faint = property(lambda self: self.noise_multiplier * self.clipper.sensitivity / times)
    with mock.patch.object(PrivateGradient, "scale", faint):
        yield


@contextlib.contextmanager
def silent_counts() -> Iterator[None]:
    """Counts that are released without their noise."""
    exact = randomness._Exact
    with mock.patch.object(exact, "discrete_laplace", lambda self, values, scale: list(values)):
        yield

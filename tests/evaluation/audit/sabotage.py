"""Privacy bugs on purpose, for as long as a ``with`` block lasts."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from dpflows.privacy.mechanisms import samplers
from dpflows.privacy.mechanisms.rounded_gaussian import RoundedGaussian


@contextlib.contextmanager
def faint_noise(times: float) -> Iterator[None]:
    """Training whose noise is that many times too small, while its claim stays."""
    right = RoundedGaussian.rounded

    def wrong(self, sums, normals, *, scale, step):
        return right(self, sums, normals, scale=scale / times, step=step)

    with mock.patch.object(RoundedGaussian, "rounded", wrong):
        yield


@contextlib.contextmanager
def silent_counts() -> Iterator[None]:
    """Counts that are released without their noise."""
    exact = samplers._Exact
    with mock.patch.object(exact, "discrete_laplace", lambda self, values, scale: list(values)):
        yield

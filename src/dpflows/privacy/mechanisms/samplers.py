"""Exact noise from OpenDP, or reproducible noise from a test seed.

OpenDP samples on a lattice with exact rational arithmetic and the operating system's
generator, so floating-point attacks find nothing. A test seed replaces it by ordinary
arithmetic, and everything made with it carries the seed's stamp.
"""

import abc
import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
from scipy.special import ndtri

from dpflows.privacy.randomness import Entropy

Law = Literal["gumbel", "exponential"]


class Sampler(abc.ABC):
    """The three kinds of noise all mechanisms are made of."""

    @abc.abstractmethod
    def discrete_laplace(self, values: Sequence[int], scale: float) -> list[int]:
        """Each value plus two-sided geometric noise, P(k) ~ exp(-|k| / scale)."""

    @abc.abstractmethod
    def gaussian(
        self, values: Sequence[float], noise: float, *, lattice: float | None = None
    ) -> list[float]:
        """Each value plus Gaussian noise of standard deviation ``noise``.

        Values that are known to be multiples of ``lattice``, a power of two far below
        the noise, get their noise on that lattice: as exact and four times faster.
        """

    @abc.abstractmethod
    def noisy_max(self, scores: Sequence[float], scale: float, law: Law) -> int:
        """The index of the largest score after noise of the given law and scale."""


def sampler_for(entropy: Entropy, purpose: str) -> Sampler:
    """Exact noise, unless ``entropy`` is a test seed; then noise fixed by seed and purpose."""
    return _Seeded(entropy, zlib.crc32(purpose.encode())) if entropy.stamp else _Exact()


@final
class _Exact(Sampler):
    def discrete_laplace(self, values: Sequence[int], scale: float) -> list[int]:
        return list(_laplace(scale)([int(value) for value in values]))

    def gaussian(
        self, values: Sequence[float], noise: float, *, lattice: float | None = None
    ) -> list[float]:
        if lattice is None:
            return list(_gaussian(noise)([float(value) for value in values]))
        whole = [round(value / lattice) for value in values]
        return [drawn * lattice for drawn in _integer_gaussian(noise / lattice)(whole)]

    def noisy_max(self, scores: Sequence[float], scale: float, law: Law) -> int:
        return int(_noisy_max(scale, law)([float(score) for score in scores]))


@final
class _Seeded(Sampler):
    def __init__(self, entropy: Entropy, step: int) -> None:
        self._entropy, self._step = entropy, step

    def discrete_laplace(self, values: Sequence[int], scale: float) -> list[int]:
        # The difference of two geometric variables is two-sided geometric.
        tails = np.floor(scale * self._exponentials(2 * len(values)))
        noise = tails[::2] - tails[1::2]
        return [int(value) + int(shift) for value, shift in zip(values, noise, strict=True)]

    def gaussian(
        self, values: Sequence[float], noise: float, *, lattice: float | None = None
    ) -> list[float]:
        shifts = noise * ndtri(self._uniforms(len(values)))
        return [float(value) + float(shift) for value, shift in zip(values, shifts, strict=True)]

    def noisy_max(self, scores: Sequence[float], scale: float, law: Law) -> int:
        noise = self._exponentials(len(scores))
        shifts = noise if law == "exponential" else -np.log(noise)
        return int(np.argmax(np.asarray(scores, dtype=np.float64) / scale + shifts))

    def _uniforms(self, count: int) -> Any:
        drawn = self._entropy.uniforms("mechanisms", step=self._step, count=count)
        return drawn + math.ldexp(1.0, -54)

    def _exponentials(self, count: int) -> Any:
        return -np.log(self._uniforms(count))


@functools.lru_cache(maxsize=64)
def _laplace(scale: float) -> Any:
    library = _opendp()
    domain = library.vector_domain(library.atom_domain(T="i64"))
    return library.m.make_laplace(domain, library.l1_distance(T="i64"), scale=scale)


@functools.lru_cache(maxsize=64)
def _gaussian(noise: float) -> Any:
    library = _opendp()
    domain = library.vector_domain(library.atom_domain(T="f64", nan=False))
    return library.m.make_gaussian(domain, library.l2_distance(T="f64"), scale=noise)


@functools.lru_cache(maxsize=64)
def _integer_gaussian(noise: float) -> Any:
    library = _opendp()
    domain = library.vector_domain(library.atom_domain(T="i64"))
    return library.m.make_gaussian(domain, library.l2_distance(T="f64"), scale=noise)


@functools.lru_cache(maxsize=64)
def _noisy_max(scale: float, law: Law) -> Any:
    library = _opendp()
    domain = library.vector_domain(library.atom_domain(T="f64", nan=False))
    measures = {
        "gumbel": library.zero_concentrated_divergence,
        "exponential": library.max_divergence,
    }
    distance = library.linf_distance(T="f64")
    return library.m.make_noisy_max(domain, distance, measures[law](), scale=scale)


@functools.cache
def _opendp() -> Any:
    # Imported on first use: it costs a second that commands without releases should not pay.
    import opendp.prelude as library

    library.enable_features("contrib")
    return library

"""All randomness: fresh bits from the operating system in separate streams, and exact noise.

A threefry key holds 64 bits, so no key is used for a whole run: every step of every stream
gets 64 fresh bits. Nothing is stored or logged.

Noise for single values and short vectors is OpenDP's: it samples on a lattice with exact rational
arithmetic and the operating system's generator, so there are no floating-point attacks. With a test
seed ordinary arithmetic is used instead, and everything made with it is marked NOT PRIVATE.

Gaussian noise for long vectors is exact in finite precision. A vector ``s`` is released as
``h * round((s + sigma * z) / h)``, where ``z`` is standard normal and the lattice width ``h`` is a
public power of two far below ``sigma``. Rounding is post-processing of the Gaussian mechanism over
the real numbers, so it costs nothing; what remains to be shown is that the program computes exactly
that.

Normals come from the Box-Muller transform, ``sqrt(-2 ln u) cos(2 pi v)`` and
``sqrt(-2 ln u) sin(2 pi v)``, of uniforms whose first 64 bits are drawn at once. In double
precision a normal is off by less than ``ERROR``, the bits not yet drawn included; where ``u``
is so extreme that it might not be, more bits are drawn at once. A sum that lies so close to the
middle between two lattice points that the error could decide is *undecided*: 192 more bits of
both uniforms are drawn and the sum is computed with 320 bits. So every rounding is that of
the real sum.

Guarantee:
    With ``Entropy.from_os()`` the streams are independent and unpredictable up to
    the operating system's generator. ``Entropy.insecure(seed)`` is reproducible,
    therefore not private, and says so in ``stamp``.

    A released vector is distributed as the rounded sum of ``s`` and independent true normals, up to
    a total variation distance of ``NOISE_DISTANCE`` per call, given uniform bits: 256 bits of each
    uniform leave a rounding undecided with probability below 2^-170, and a call draws fewer than
    2^60 normals. Accountants include this distance in delta. The bits are those of ChaCha20 with a
    256-bit key from the operating system, drawn once per run and never stored; no two steps share a
    nonce.
"""

import abc
import functools
import hashlib
import math
import os
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Float64, UInt32, UInt64
from scipy.special import ndtri

from dpflows.errors import InputError

Stream = Literal[
    "batches",
    "batch-rows",
    "noise",
    "initialisation",
    "mechanisms",
    "fisher",
    "sampling",
    "dither",
]

TEST_SEED_STAMP = "NOT PRIVATE: randomness came from a test seed"


class Entropy(abc.ABC):
    """Random bits by stream and step.

    Example:
        >>> Entropy.from_os().words("noise", step=0, count=2).shape
        (2,)
        >>> Entropy.insecure(7).stamp
        'NOT PRIVATE: randomness came from a test seed'
    """

    #: What must be written on everything made with this entropy; empty if nothing.
    stamp: str = ""

    @staticmethod
    def from_os() -> "Entropy":
        """Fresh bits from the operating system at every call."""
        return _OperatingSystem()

    @staticmethod
    def insecure(seed: int) -> "Entropy":
        """Reproducible bits for tests; voids every guarantee."""
        return _TestSeed(seed)

    @abc.abstractmethod
    def bytes(self, stream: Stream, *, step: int, count: int) -> bytes:
        """``count`` random bytes for one step of one stream."""

    def words(self, stream: Stream, *, step: int, count: int) -> UInt32[np.ndarray, " count"]:
        """``count`` random 32-bit words."""
        return np.frombuffer(self.bytes(stream, step=step, count=4 * count), dtype=np.uint32)

    def key(self, stream: Stream, *, step: int = 0) -> UInt32[np.ndarray, "2"]:
        """The two words of a threefry key."""
        return self.words(stream, step=step, count=2)

    def uniforms(self, stream: Stream, *, step: int, count: int) -> Float64[np.ndarray, " count"]:
        """``count`` uniforms on the 53-bit grid of [0, 1)."""
        raw = np.frombuffer(self.bytes(stream, step=step, count=8 * count), dtype=np.uint64)
        return (raw >> np.uint64(11)) * 2.0**-53


@final
class _OperatingSystem(Entropy):
    def bytes(self, stream: Stream, *, step: int, count: int) -> bytes:
        return os.urandom(count)


@final
class _TestSeed(Entropy):
    stamp = TEST_SEED_STAMP

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def bytes(self, stream: Stream, *, step: int, count: int) -> bytes:
        return hashlib.shake_128(f"{self._seed}/{stream}/{step}".encode()).digest(count)


Law = Literal["gumbel", "exponential"]


class Sampler(abc.ABC):
    """The three kinds of noise that mechanisms use."""

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
    """A sampler of exact noise, or with a test seed of noise fixed by seed and purpose."""
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


#: The lattice has at least so many points, as a power of two, per standard deviation.
LATTICE_BITS = 8
#: The most by which a normal computed in double precision is off. The parts: four units in the
#: last place for each elementary function and the products, less than 2^-44 as a normal is
#: below 9.5; the bits of u not yet drawn, 2^-65 / (u sqrt(-2 ln u)) < 2^-45; and
#: the rounding of u near 1, 2^-54 / sqrt(2 (1 - u)) < 2^-43.4.
ERROR = 2.0**-42
#: Where u lies below 2^-22 or above 1 - 2^-22, the error may be larger.
_LOWEST, _HIGHEST = np.uint64(2**42), np.uint64(2**64 - 2**42)

_MORE_BITS = 192
_PRECISION = 320


class Normals(NamedTuple):
    """Standard normals in double precision, and the bits that they were made of."""

    values: Float64[np.ndarray, " count"]
    radius: UInt64[np.ndarray, " pairs"]
    angle: UInt64[np.ndarray, " pairs"]


@final
class RoundedGaussian:
    """Adds exact, rounded Gaussian noise to vectors, step by step.

    Args:
        entropy: Source of the 256-bit key.

    Example:
        >>> noise = RoundedGaussian(Entropy.from_os())
        >>> released = noise.add(np.zeros(3), scale=1.0, step=0)
        >>> bool((released * 2**8 == np.rint(released * 2**8)).all())
        True
    """

    def __init__(self, entropy: Entropy) -> None:
        self._key = entropy.bytes("noise", step=0, count=32)
        self._process = os.getpid()

    def add(
        self, sums: Float64[np.ndarray, " count"], *, scale: float, step: int
    ) -> Float64[np.ndarray, " count"]:
        """The sums plus noise of standard deviation ``scale``, on the lattice.

        Args:
            sums: The sums to release; every entry must be finite.
            scale: The standard deviation of the noise.
            step: Which step of the run this is; no step may be used twice.

        Guarantee:
            See the module. The width of the lattice depends only on ``scale``.
        """
        normals = self.normals(len(sums), step=step)
        return self.rounded(sums, normals, scale=scale, step=step)

    def normals(self, count: int, *, step: int) -> Normals:
        """The normals of a step; they do not depend on what they are added to."""
        pairs = (count + 1) // 2
        drawn = np.frombuffer(self._stream(step, 0, 16 * pairs), np.uint64)
        radius, angle = drawn[:pairs], drawn[pairs:]
        values = np.empty(2 * pairs)
        cosines, sines = values[:pairs], values[pairs:]
        turn = angle * (2 * math.pi * 2.0**-64)
        np.cos(turn, out=cosines)
        np.sin(turn, out=sines)
        length = _lengths(radius)
        cosines *= length
        sines *= length
        normals = Normals(values[:count], radius, angle)
        for pair in np.flatnonzero((radius < _LOWEST) | (radius > _HIGHEST)).tolist():
            for at in range(pair, count, pairs):
                values[at] = float(self._precisely(normals, at, step=step))
        return normals

    def rounded(
        self, sums: Float64[np.ndarray, " count"], normals: Normals, *, scale: float, step: int
    ) -> Float64[np.ndarray, " count"]:
        """The lattice points nearest to the sums plus noise."""
        width = lattice(scale)
        noisy = sums * (1 / width)
        noisy += normals.values * (scale / width)
        points = np.rint(noisy)
        largest = float(np.abs(points).max(initial=0.0))
        if not math.isfinite(largest):
            raise InputError("sums must be finite before noise is added to them")
        noisy -= points
        undecided = np.abs(noisy, out=noisy) > decided_within(scale, largest)
        for at in np.flatnonzero(undecided).tolist():
            points[at] = self._nearest(float(sums[at]), normals, at, scale=scale, step=step)
        points *= width
        return points

    def _nearest(self, value: float, normals: Normals, at: int, *, scale: float, step: int) -> int:
        """The lattice point nearest to the real sum."""
        import mpmath  # rarely needed

        with mpmath.workprec(_PRECISION):
            noise = mpmath.mpf(scale) * self._precisely(normals, at, step=step)
            exact = (mpmath.mpf(value) + noise) / mpmath.mpf(lattice(scale))
            return int(mpmath.floor(exact + mpmath.mpf(0.5)))

    def _precisely(self, normals: Normals, at: int, *, step: int) -> Any:
        """A normal from 256 bits of each uniform."""
        import mpmath

        pair = at % len(normals.radius)
        more = self._stream(step, 1 + pair, _MORE_BITS // 4)
        with mpmath.workprec(_PRECISION):
            u = _joined(int(normals.radius[pair]), more[: _MORE_BITS // 8])
            v = _joined(int(normals.angle[pair]), more[_MORE_BITS // 8 :])
            wave = mpmath.cospi if at < len(normals.radius) else mpmath.sinpi
            return mpmath.sqrt(-2 * mpmath.log(u)) * wave(2 * v)

    def _stream(self, step: int, part: int, count: int) -> bytes:
        """Bits of one part of a step: every (step, part) is a nonce of its own."""
        if os.getpid() != self._process:
            raise InputError(
                "a forked process must not continue with its parent's noise; make a new generator"
            )
        # 32 bits count blocks of the cipher, 96 are the nonce
        nonce = bytes(4) + step.to_bytes(6, "little") + part.to_bytes(6, "little")
        cipher = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None)
        return cipher.encryptor().update(bytes(count))


def _lengths(radius: UInt64[np.ndarray, " pairs"]) -> Float64[np.ndarray, " pairs"]:
    """``sqrt(-2 ln u)``, where u is the middle of the interval that the drawn bits leave."""
    u = radius.astype(np.float64)
    u += 0.5
    u *= 2.0**-64
    np.log(u, out=u)
    u *= -2
    return np.sqrt(u, out=u)


def decided_within(scale: float, largest: Any) -> Any:
    """The distance, in lattice widths, within which double precision surely rounds correctly.

    Args:
        scale: The standard deviation of the noise.
        largest: The largest point of the lattice, in absolute value.

    Guarantee:
        A sum is computed by a product each for the value and the noise, and one addition:
        three roundings of numbers no larger than ``largest`` and 9.5 deviations.
    """
    deviation = scale / lattice(scale)
    return 0.5 - (ERROR * deviation + 2.0**-51 * (largest + 1 + 10 * deviation))


def lattice(scale: float) -> float:
    """The width of the lattice for noise of this standard deviation: a power of two.

    Example:
        >>> lattice(1.5) == 2.0**-8
        True
    """
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"the noise's standard deviation must be positive, got {scale}")
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - LATTICE_BITS)


def _joined(first: int, more: bytes) -> Any:
    """The middle of the interval that all drawn bits of a uniform leave."""
    import mpmath

    bits = (first << _MORE_BITS) | int.from_bytes(more, "little")
    return mpmath.ldexp(mpmath.mpf(2 * bits + 1), -(64 + _MORE_BITS + 1))

"""All randomness: fresh bits from the operating system, in separate streams.

A threefry key holds 64 bits, so no key is used for a whole run: every step of every stream
gets 64 fresh bits. Nothing is stored or logged.

Guarantee:
    With ``Entropy.from_os()`` the streams are independent and unpredictable up to
    the operating system's generator. ``Entropy.insecure(seed)`` is reproducible,
    therefore not private, and says so in ``stamp``.
"""

import abc
import hashlib
import os
from typing import Literal, final

import numpy as np
from jaxtyping import Float64, UInt32

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

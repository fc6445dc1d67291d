"""The noise of a release: exact, on a fine lattice, or reproducible from a test seed."""

import functools
from typing import Any

import numpy as np
from jaxtyping import Float64

from dpflows.privacy.mechanisms.noise import sampler_for
from dpflows.privacy.randomness import Entropy

#: Sums are rounded to 2^-30 before noise; over a million of them move by less than 1e-6.
_LATTICE = -30


def noisy(
    sums: Float64[np.ndarray, "k p"], noise: float, *, entropy: Entropy, purpose: str
) -> Float64[np.ndarray, "k p"]:
    """The sums with independent Gaussian noise on each; unchanged if there is none.

    Guarantee:
        With the operating system's entropy each sum is rounded to a lattice and receives
        discrete Gaussian noise sampled exactly by OpenDP.

    Example:
        >>> noisy(np.zeros((1, 2)), 1.0, entropy=Entropy.from_os(), purpose="x").shape
        (1, 2)
    """
    if not noise:
        return sums
    flat = [float(value) for value in sums.ravel()]
    if entropy.stamp:
        drawn = sampler_for(entropy, purpose).gaussian(flat, noise)
    else:
        drawn = _measurement(len(flat), noise)(flat)
    return np.array(drawn).reshape(sums.shape)


@functools.lru_cache(maxsize=64)
def _measurement(size: int, noise: float) -> Any:
    # Imported on first use, as it takes a second. A lattice of known size is four times
    # as fast as the exact one over all floats.
    import opendp.prelude as library

    library.enable_features("contrib")
    domain = library.vector_domain(library.atom_domain(T="f64", nan=False), size=size)
    distance = library.l2_distance(T="f64")
    return library.m.make_gaussian(domain, distance, scale=noise, k=_LATTICE)

"""The noisy gradient of a step: a clipped sum, exact noise, a public divisor.

Guarantee:
    Each trained coordinate of the sum receives independent Gaussian noise of standard
    deviation ``noise_multiplier`` times the clipping norm, and is rounded to a public lattice,
    by ``RoundedGaussian``: what is released is distributed as if it had been computed with
    real numbers. Masked weights do not exist as parameters: they are zero before and after.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int

from dpflows.privacy.mechanisms.noise import RoundedGaussian, decided_within, lattice
from dpflows.training.clipping import Clipper
from dpflows.training.taps import Blueprint, DenseParameters, Parameters


@final
@dataclass(frozen=True, eq=False)
class PrivateGradient:
    """The gradient of DP-SGD, in two parts that a compiled program computes, and noise between.

    Attributes:
        clipper: Bounds each row and adds them up.
        coordinates: How long the vector of all parameters is, masked ones included.
        trained: The places of the vector that no mask hides.
        noise_multiplier: The noise's standard deviation over the clipping norm.
        batch_size: The public number that the sum is divided by.
    """

    clipper: Clipper
    coordinates: int
    trained: Int[np.ndarray, " trained"]
    noise_multiplier: float
    batch_size: int

    @property
    def scale(self) -> float:
        """The standard deviation of the noise on every coordinate of the sum."""
        return self.noise_multiplier * self.clipper.sensitivity

    def sums(
        self, parameters: Parameters, rows: Float[Array, "batch columns"], present: Array
    ) -> Float64[Array, " coordinates"]:
        """The clipped sum as one vector; runs on the device and is never released."""
        leaves = jax.tree.leaves(self.clipper(parameters, rows, present).gradient)
        with jax.enable_x64(True):
            return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

    def release(
        self, sums: Any, noise: RoundedGaussian, *, step: int
    ) -> Float64[np.ndarray, "*steps coordinates"]:
        """The sum with noise on every trained coordinate, over the public batch size.

        Args:
            sums: What ``sums`` gave, or several such vectors, which are released at once.
            noise: The noise of this run.
            step: Which step this is.

        Guarantee:
            With ``rounded``, which gives the same vector, the only way from ``sums`` to
            anything else. A step is released once.
        """
        shape = (*sums.shape[:-1], len(self.trained))
        normals = noise.normals(math.prod(shape), step=step)
        exact = np.take(np.asarray(sums), self.trained, axis=-1).reshape(-1)
        noisy = noise.rounded(exact, normals, scale=self.scale, step=step)
        released = np.zeros(sums.shape)
        released[..., self.trained] = noisy.reshape(shape)
        released /= self.batch_size
        return released

    def normals(
        self, noise: RoundedGaussian, *, step: int, count: int
    ) -> Float64[np.ndarray, "count coordinates"]:
        """The normals of some steps at the places of the parameters, zero where a mask is."""
        drawn = np.zeros((count, self.coordinates))
        for i in range(count):
            drawn[i, self.trained] = noise.normals(len(self.trained), step=step + i).values
        return drawn

    def rounded(
        self, sums: Float64[Array, " coordinates"], normals: Float64[Array, " coordinates"]
    ) -> tuple[Float64[Array, " coordinates"], Bool[Array, ""]]:
        """What ``release`` gives, and whether double precision was not enough to decide it.

        Runs on the device. Where it is undecided, only ``release`` may be used.
        """
        if sums.dtype != np.float64 or normals.dtype != np.float64:
            raise TypeError("sums and normals must be in double precision")
        width = lattice(self.scale)
        with jax.enable_x64(True):
            noisy = sums * (1 / width) + normals * (self.scale / width)
            points = jnp.round(noisy)
            largest = jnp.max(jnp.abs(points), initial=0.0)
            gap = jnp.max(jnp.abs(noisy - points), initial=0.0)
            # written so that what is not finite is undecided too
            undecided = ~(gap <= decided_within(self.scale, largest))
            return points * width / self.batch_size, undecided

    def gradient(self, released: Float[Array, " coordinates"], like: Parameters) -> Parameters:
        """A released vector in the shape of the parameters."""
        leaves, tree = jax.tree.flatten(like)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = jnp.split(released, ends)
        shaped = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, shaped)


def private_gradient(
    clipper: Clipper,
    blueprint: Blueprint,
    parameters: Parameters,
    *,
    noise_multiplier: float,
    batch_size: int,
) -> PrivateGradient:
    """The gradient of DP-SGD for a model that was taken apart into these parameters."""
    trained = trained_coordinates(blueprint, parameters)
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    return PrivateGradient(clipper, coordinates, trained, noise_multiplier, batch_size)


def trained_coordinates(
    blueprint: Blueprint, parameters: Parameters
) -> Int[np.ndarray, " trained"]:
    """Which places of the vector of all parameters no mask hides."""
    layers = [_places(*pair) for pair in zip(parameters.dense, blueprint.masks, strict=True)]
    free = [np.ones(leaf.shape, bool) for leaf in jax.tree.leaves(parameters.free)]
    shown = [places for layer in layers for places in layer] + free
    return np.flatnonzero(np.concatenate([places.reshape(-1) for places in shown]))


def _places(layer: DenseParameters, mask: np.ndarray | None) -> list[np.ndarray]:
    """Which entries of a layer's weight, then of its bias if it has one, are trained."""
    weight = np.broadcast_to(True if mask is None else mask, layer.weight.shape)
    return [weight] if layer.bias is None else [weight, np.ones(layer.bias.shape, bool)]

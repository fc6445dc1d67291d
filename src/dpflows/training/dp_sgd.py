"""DP-SGD: the noisy gradient of a step, and the loop of compiled steps.

A step's gradient is a clipped sum, plus exact noise, over a public divisor. Steps are compiled
once and run in chunks. Normals for a chunk are drawn before it, in double precision. Where
double precision cannot decide a rounding, which happens about once in 2^31 coordinates, the
chunk stops before the step is made, the step is released with more bits, and the chunk
continues.

Guarantee:
    Each trained coordinate of the sum receives independent Gaussian noise of standard
    deviation ``noise_multiplier`` times the clipping norm, and is rounded to a public lattice,
    by ``RoundedGaussian``: what is released is distributed as if it had been computed with
    real numbers. Masked weights do not exist as parameters: they are zero before and after.

    A private run reads the rows only through ``PrivateGradient.release``, once per
    step, with the batches and noise of its plan, and never makes more steps than
    the plan's events cover. Losses are not computed. Whether a run ends early or
    fails depends only on noisy parameters and public callbacks.
"""

import abc
import concurrent.futures
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float64, Int

from dpflows.errors import InputError, TrainingError
from dpflows.privacy.randomness import Entropy, RoundedGaussian, Stream, decided_within, lattice
from dpflows.training.batches import Batches
from dpflows.training.ghost_clipping import Blueprint, Clipper, DenseParameters, Loss, Parameters


@final
@dataclass(frozen=True, eq=False)
class PrivateGradient:
    """The gradient of DP-SGD: a compiled clipped sum, noise, and a compiled update.

    Attributes:
        clipper: Bounds each row and adds them up.
        coordinates: Length of the vector of all parameters, including masked ones.
        trained: The entries of the vector that are not masked.
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
            sums: The result of ``sums``, or several such vectors, which are released at once.
            noise: The noise of this run.
            step: Which step this is.

        Guarantee:
            Together with ``rounded``, which gives the same vector, this is the only use of
            ``sums``. A step is released once.
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
        """The normals of some steps in the parameters' entries, zero where masked."""
        drawn = np.zeros((count, self.coordinates))
        for i in range(count):
            drawn[i, self.trained] = noise.normals(len(self.trained), step=step + i).values
        return drawn

    def rounded(
        self, sums: Float64[Array, " coordinates"], normals: Float64[Array, " coordinates"]
    ) -> tuple[Float64[Array, " coordinates"], Bool[Array, ""]]:
        """The result of ``release``, and whether double precision did not suffice to decide it.

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
    """The gradient of DP-SGD for a model with these separated parameters."""
    trained = trained_coordinates(blueprint, parameters)
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    return PrivateGradient(clipper, coordinates, trained, noise_multiplier, batch_size)


def trained_coordinates(
    blueprint: Blueprint, parameters: Parameters
) -> Int[np.ndarray, " trained"]:
    """The entries of the vector of all parameters that are not masked."""
    layers = [_places(*pair) for pair in zip(parameters.dense, blueprint.masks, strict=True)]
    free = [np.ones(leaf.shape, bool) for leaf in jax.tree.leaves(parameters.free)]
    shown = [places for layer in layers for places in layer] + free
    return np.flatnonzero(np.concatenate([places.reshape(-1) for places in shown]))


def _places(layer: DenseParameters, mask: np.ndarray | None) -> list[np.ndarray]:
    """Which entries of a layer's weight, then of its bias if it has one, are trained."""
    weight = np.broadcast_to(True if mask is None else mask, layer.weight.shape)
    return [weight] if layer.bias is None else [weight, np.ones(layer.bias.shape, bool)]


#: Steps between two looks at callbacks; also the most work lost in a crash.
CHUNK = 25


#: Parameters, rows, which of them belong to the batch -> their average gradient. NOT PRIVATE.
PlainGradient = Callable[[Parameters, Array, Array], Parameters]


class State(NamedTuple):
    """The state of a run between steps. Holds no rows and no keys."""

    parameters: Parameters
    optimizer: Any
    average: Parameters
    step: Array


class Progress(NamedTuple):
    """The progress of a run; nothing here was computed from the rows."""

    step: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called between chunks.

    ``should_stop`` is called before each chunk, also the first; ``on_state`` receives the state
    after it, for checkpoints, and ``on_progress`` the progress of the run.
    """

    on_progress: Callable[[Progress], None] | None = None
    should_stop: Callable[[Progress], bool] | None = None
    on_state: Callable[[State], None] | None = None


def plain_gradient(loss: Loss, blueprint: Blueprint) -> PlainGradient:
    """The ordinary mean gradient. NOT PRIVATE."""

    def mean_loss(parameters: Parameters, rows: Array, present: Array) -> Array:
        model = blueprint.assemble(parameters)
        losses = jax.vmap(lambda row: loss(model, row))(rows)
        return jnp.sum(jnp.where(present, losses, 0.0)) / jnp.maximum(jnp.sum(present), 1)

    return jax.grad(mean_loss)


class Training(abc.ABC):
    """A run, except for its rows and its randomness."""

    steps: int

    @abc.abstractmethod
    def start(self, parameters: Parameters) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def advance(self, entropy: Entropy) -> Callable[[State, Array, int], State]:
        """A function of (state, rows, step) that makes the next steps, beginning there."""

    @abc.abstractmethod
    def released(self, state: State) -> Parameters:
        """The parameters that a finished run releases."""

    def run(
        self,
        state: State,
        rows: Float[Array, "rows columns"],
        *,
        entropy: Entropy,
        callbacks: Callbacks | None = None,
    ) -> State:
        """Run from ``state`` to the last step, or until a callback stops it."""
        callbacks = callbacks or Callbacks()
        advance = self.advance(entropy)
        began = time.monotonic()
        while (step := int(state.step)) < self.steps:
            if callbacks.should_stop and callbacks.should_stop(self._progress(step, began)):
                break
            state = advance(state, rows, step)
            _require_finite(state)
            if callbacks.on_state:
                callbacks.on_state(state)
            if callbacks.on_progress:
                callbacks.on_progress(self._progress(int(state.step), began))
        return state

    def _progress(self, step: int, began: float) -> Progress:
        return Progress(step, self.steps, time.monotonic() - began)


@dataclass(frozen=True)
class Optimizer:
    """DP-SGD or DP-Adam with a public schedule.

    ``averaging`` is the decay of an exponential average of the parameters, released
    in their place; ``None`` releases the last ones.

    Example:
        >>> Optimizer(name="sgd", learning_rate=0.1).transformation(steps=10) is not None
        True
    """

    name: str = "adam"
    learning_rate: float = 5e-3
    schedule: str = "cosine"
    averaging: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ("adam", "sgd"):
            raise InputError(f"optimizer must be 'adam' or 'sgd', got {self.name!r}")
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"schedule must be 'cosine' or 'constant', got {self.schedule!r}")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.averaging is not None and not 0 <= self.averaging < 1:
            raise InputError(f"averaging must be in [0, 1) or None, got {self.averaging}")

    def transformation(self, *, steps: int) -> optax.GradientTransformation:
        """The Optax update rule for a run of ``steps`` steps."""
        rate: float | optax.Schedule = self.learning_rate
        if self.schedule == "cosine":
            rate = optax.cosine_decay_schedule(self.learning_rate, max(steps, 1))
        if self.name == "adam":
            return optax.adam(rate, b1=0.9, b2=0.999)
        return optax.sgd(rate)


@dataclass(frozen=True)
class Loop(Training):
    """Steps of a first-order method: DP-SGD, DP-Adam, or either without privacy."""

    gradient: PlainGradient | PrivateGradient
    batches: Batches
    optimizer: Optimizer
    steps: int

    def start(self, parameters: Parameters) -> State:
        """The state before the first step."""
        update = self.optimizer.transformation(steps=self.steps)
        # Copies, because the compiled chunk consumes the state it is given.
        parameters, average = (jax.tree.map(jnp.array, parameters) for _ in range(2))
        return State(parameters, update.init(parameters), average, jnp.asarray(0))

    def released(self, state: State) -> Parameters:
        """The parameters that a finished run releases."""
        return state.parameters if self.optimizer.averaging is None else state.average

    def advance(self, entropy: Entropy) -> Callable[[State, Array, int], State]:
        """A function of (state, rows, step) that makes the chunk of steps beginning there."""
        if isinstance(self.gradient, PrivateGradient):
            return self._private_chunks(self.gradient, entropy)
        chunk = _compiled_chunk(self, self.gradient)
        return lambda state, rows, step: chunk(state, rows, *self.chunk_inputs(entropy, step))

    def _private_chunks(
        self, gradient: PrivateGradient, entropy: Entropy
    ) -> Callable[[State, Array, int], State]:
        chunk, update = _compiled_private(self, gradient)
        noise = RoundedGaussian(entropy)
        drawn = _Ahead(functools.partial(gradient.normals, noise, count=CHUNK), self.steps)

        def advance(state: State, rows: Array, step: int) -> State:
            count, sizes, keys = self.chunk_inputs(entropy, step)
            normals, done = drawn.at(step), 0
            while done < count:
                state, reached, sums = chunk(state, rows, done, count, sizes, keys, normals)
                done = int(reached)
                if done < count:
                    released = gradient.release(sums, noise, step=step + done)
                    state, done = update(state, released), done + 1
            return state

        return advance

    def batch(self, rows: Array, size: Array, key: Array) -> tuple[Array, Array]:
        """The rows of a batch, and which of its slots are filled."""
        drawn = rows[self.batches.draw(jax.random.wrap_key_data(key))]
        return drawn, jnp.arange(self.batches.slots) < size

    def update(self, state: State, gradient: Parameters) -> State:
        """One step along a released gradient."""
        update = self.optimizer.transformation(steps=self.steps)
        change, inner = update.update(gradient, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, change)
        return State(parameters, inner, self._averaged(state.average, parameters), state.step + 1)

    def _averaged(self, average: Parameters, parameters: Parameters) -> Parameters:
        decay = self.optimizer.averaging
        if decay is None:
            return average
        return optax.incremental_update(parameters, average, 1 - decay)

    def chunk_inputs(self, entropy: Entropy, step: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Fresh randomness for the batches of the chunk that begins at ``step``."""
        count = min(CHUNK, self.steps - step)
        sizes = np.zeros(CHUNK, np.int32)
        sizes[:count] = self.batches.sizes(entropy, step=step, count=count)
        return count, sizes, _keys(entropy, "batch-rows", step, count)


@functools.lru_cache(maxsize=4)
def _compiled_chunk(loop: Loop, gradient: PlainGradient) -> Callable[..., State]:
    """A chunk of steps without privacy, compiled once."""

    def chunk(state: State, rows: Array, count: Array, sizes: Array, keys: Array) -> State:
        def body(i: Array, state: State) -> State:
            batch = loop.batch(rows, sizes[i], keys[i])
            return loop.update(state, gradient(state.parameters, *batch))

        return jax.lax.fori_loop(0, count, body, state)

    return jax.jit(chunk, donate_argnums=0)


@functools.lru_cache(maxsize=4)
def _compiled_private(
    loop: Loop, gradient: PrivateGradient
) -> tuple[Callable[..., tuple[State, Array, Array]], Callable[..., State]]:
    """A chunk of private steps, and one step along a gradient released separately."""

    def update(state: State, released: Array) -> State:
        return loop.update(state, gradient.gradient(released, state.parameters))

    def chunk(
        state: State,
        rows: Array,
        start: Array,
        count: Array,
        sizes: Array,
        keys: Array,
        normals: Array,
    ) -> tuple[State, Array, Array]:
        """Steps up to the end of the chunk, or to one that is undecided, and its sums."""

        def more(at: _Place) -> Array:
            return (at.step < count) & ~at.undecided

        def body(at: _Place) -> _Place:
            batch = loop.batch(rows, sizes[at.step], keys[at.step])
            sums = gradient.sums(at.state.parameters, *batch)
            released, undecided = gradient.rounded(sums, normals[at.step])
            state = jax.lax.cond(undecided, lambda: at.state, lambda: update(at.state, released))
            return _Place(at.step + ~undecided, state, sums, undecided)

        with jax.enable_x64(True):
            nothing = jnp.zeros(normals.shape[1], jnp.float64)
        first = _Place(jnp.asarray(start, jnp.int32), state, nothing, jnp.asarray(False))
        last = jax.lax.while_loop(more, body, first)
        return last.state, last.step, last.sums

    return jax.jit(chunk, donate_argnums=0), jax.jit(update, donate_argnums=0)


class _Ahead:
    """Normals for chunks of steps, those of the next chunk drawn while this one is computed."""

    def __init__(self, draw: Callable[..., np.ndarray], steps: int) -> None:
        self._draw, self._steps = draw, steps
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._next: tuple[int, concurrent.futures.Future[np.ndarray]] | None = None

    def at(self, step: int) -> Array:
        """The normals of the chunk that begins at ``step``, in double precision."""
        waiting, self._next = self._next, None
        is_here = waiting is not None and waiting[0] == step
        normals = waiting[1].result() if waiting and is_here else self._draw(step=step)
        if step + CHUNK < self._steps:
            self._next = step + CHUNK, self._thread.submit(self._draw, step=step + CHUNK)
        with jax.enable_x64(True):
            return jnp.asarray(normals)


class _Place(NamedTuple):
    """Where a chunk of private steps is."""

    step: Array
    state: State
    sums: Array
    undecided: Array


def _keys(entropy: Entropy, stream: Stream, step: int, count: int) -> np.ndarray:
    """A fresh 64-bit key for each step of the chunk."""
    keys = np.zeros((CHUNK, 2), np.uint32)
    for i in range(count):
        keys[i] = entropy.key(stream, step=step + i)
    return keys


def _require_finite(state: State) -> None:
    """Raise before a model with non-finite parameters can be released."""
    if not _is_finite(state.parameters):
        raise TrainingError(
            f"training diverged by step {int(state.step)} and nothing was released: use a lower "
            "learning rate or fewer steps; the budget counts as spent"
        )


@jax.jit
def _is_finite(parameters: Parameters) -> Array:
    leaves = jax.tree.leaves(parameters)
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]).all()

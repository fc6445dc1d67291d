"""The loop: steps that are compiled once and run in chunks.

Normals for a chunk of private steps are drawn before it, in double precision. Where double
precision cannot decide a rounding, which happens about once in 2^31 coordinates, the chunk
stops before the step is made, the step is released with more bits, and the chunk goes on.

Guarantee:
    A private run touches the rows only through ``PrivateGradient.release``, once per
    step, with the batches and noise of its plan, and never makes more steps than
    the plan's events pay for. Losses are not computed. Whether a run ends early or
    fails depends on noisy parameters and public callbacks alone.
"""

import abc
import concurrent.futures
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from dpflows.errors import TrainingError
from dpflows.privacy.mechanisms.noise import RoundedGaussian
from dpflows.privacy.randomness import Entropy, Stream
from dpflows.training.batches import Batches
from dpflows.training.clipping import Loss
from dpflows.training.noise import PrivateGradient
from dpflows.training.optimizers import Optimizer
from dpflows.training.taps import Blueprint, Parameters

#: Steps between two looks at callbacks; also the most work lost in a crash.
CHUNK = 25


#: Parameters, rows, which of them belong to the batch -> their average gradient. NOT PRIVATE.
PlainGradient = Callable[[Parameters, Array, Array], Parameters]


class State(NamedTuple):
    """All that a run carries from step to step. Holds no rows and no keys."""

    parameters: Parameters
    optimizer: Any
    average: Parameters
    step: Array


class Progress(NamedTuple):
    """How far a run is; nothing here was computed from the rows."""

    step: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Callbacks:
    """What the caller may do between chunks.

    ``should_stop`` is asked before each chunk, also the first; ``on_state`` receives the
    state after it, for checkpoints, and ``on_progress`` is told where the run is.
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
    """Everything about a run but its rows and its randomness."""

    steps: int

    @abc.abstractmethod
    def start(self, parameters: Parameters) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def advance(self, entropy: Entropy) -> Callable[[State, Array, int], State]:
        """A function of (state, rows, step) that makes the next steps, beginning there."""

    @abc.abstractmethod
    def released(self, state: State) -> Parameters:
        """The parameters a finished run gives out."""

    def run(
        self,
        state: State,
        rows: Float[Array, "rows columns"],
        *,
        entropy: Entropy,
        callbacks: Callbacks | None = None,
    ) -> State:
        """Go on from ``state`` to the last step, or to where a callback stops it."""
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
        """The parameters a finished run gives out."""
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
        """One step along a gradient that may be seen."""
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
    """The chunk of a loop without privacy, compiled once however often the loop is run."""

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
    """A chunk of private steps, and one step along a gradient that was released outside."""

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
    """Stop before a broken model can be released."""
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(state.parameters)):
        raise TrainingError(
            f"training diverged by step {int(state.step)} and nothing was released: "
            "lower the learning rate or the number of steps; the budget counts as spent"
        )

"""The loop makes the steps of its plan, no more, and leaves nothing behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpflows.errors import TrainingError
from dpflows.privacy.randomness import Entropy
from dpflows.training.batches import make_batches
from dpflows.training.dp_sgd import (
    CHUNK,
    Callbacks,
    Loop,
    Optimizer,
    plain_gradient,
    private_gradient,
)
from dpflows.training.ghost_clipping import Clipping, by_taps

ROWS = jnp.asarray(np.random.default_rng(5).normal(size=(200, 3)), jnp.float32)


@pytest.fixture
def make_loop(taken_apart, loss):
    parameters, blueprint = taken_apart

    def make(*, steps, noise_multiplier=1.0, optimizer=None, private=True):
        batches = make_batches("poisson", rows=len(ROWS), batch_size=20)
        clipper = by_taps(loss, blueprint, Clipping(norm=1.0))
        gradient = (
            private_gradient(
                clipper, blueprint, parameters, noise_multiplier=noise_multiplier, batch_size=20
            )
            if private
            else plain_gradient(loss, blueprint)
        )
        return Loop(gradient, batches, optimizer or Optimizer(learning_rate=1e-2), steps)

    return make


def leaves_equal(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_it_makes_exactly_the_planned_steps(make_loop, taken_apart):
    seen = []
    loop = make_loop(steps=CHUNK + 3)
    callbacks = Callbacks(on_progress=lambda progress: seen.append(progress.step))
    loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.insecure(1), callbacks=callbacks)
    assert seen == [CHUNK, CHUNK + 3]


def test_a_resumed_run_equals_an_uninterrupted_one(make_loop, taken_apart):
    loop = make_loop(steps=2 * CHUNK + 1)
    whole = loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.insecure(1))
    kept = []
    stop = Callbacks(
        should_stop=lambda progress: progress.step == CHUNK,
        on_state=lambda state: kept.append(jax.tree.map(np.asarray, state)),
    )
    loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.insecure(1), callbacks=stop)
    resumed = loop.run(jax.tree.map(jnp.asarray, kept[0]), ROWS, entropy=Entropy.insecure(1))
    assert leaves_equal(whole, resumed)


def test_a_run_can_be_stopped_before_its_first_step(make_loop, taken_apart):
    loop, stop = make_loop(steps=2), Callbacks(should_stop=lambda progress: True)
    state = loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.insecure(1), callbacks=stop)
    assert int(state.step) == 0
    assert leaves_equal(state.parameters, taken_apart[0])


def test_operating_system_entropy_never_repeats(make_loop, taken_apart):
    loop = make_loop(steps=2)
    runs = [loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.from_os()) for _ in range(2)]
    assert not leaves_equal(runs[0].parameters, runs[1].parameters)


def test_divergence_is_an_error_not_a_model(make_loop, taken_apart):
    loop = make_loop(
        steps=3,
        optimizer=Optimizer(name="sgd", learning_rate=1e38, schedule="constant"),
        noise_multiplier=1e6,
    )
    with pytest.raises(TrainingError, match="nothing was released"):
        loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.insecure(1))


def test_plain_training_lowers_the_loss(make_loop, taken_apart, loss):
    parameters, blueprint = taken_apart
    loop = make_loop(steps=60, private=False)
    state = loop.run(loop.start(parameters), 3 * ROWS + 1, entropy=Entropy.insecure(1))

    def mean_loss(parameters):
        return jnp.mean(jax.vmap(lambda r: loss(blueprint.assemble(parameters), r))(3 * ROWS + 1))

    assert mean_loss(loop.released(state)) < mean_loss(parameters) - 0.1


def test_averaging_is_what_is_released(make_loop, taken_apart):
    loop = make_loop(steps=3, optimizer=Optimizer(averaging=0.5))
    state = loop.run(loop.start(taken_apart[0]), ROWS, entropy=Entropy.insecure(1))
    assert leaves_equal(loop.released(state), state.average)
    assert not leaves_equal(state.parameters, state.average)

"""For every model: the whitened clipped sum is what its definition says, and no row exceeds it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contracts.families import DIM, hostile_rows, model_of, shaken
from dpflows.flows.architectures import ARCHITECTURES
from dpflows.training import natural_gradient
from dpflows.training.natural_gradient import Frame, Kronecker, batch_sum, estimate_metric, move
from dpflows.training.optimizers import NaturalGradient
from dpflows.training.taps import take_apart

SETTINGS = NaturalGradient(samples=256)
KEY = jnp.asarray([3, 4], jnp.uint32)


class Family:
    """A model, its metric at one place, and the sums over batches there."""

    def __init__(self, name):
        parameters, blueprint = take_apart(model_of(name))
        self.parameters, self.frame = shaken(parameters), Frame.of(blueprint)
        self.metric = estimate_metric(self.frame, self.parameters, KEY, SETTINGS)
        self.clip = float(self.metric.clip)
        self.total = batch_sum

    def sum(self, rows, present=None):
        rows = jnp.asarray(rows, jnp.float32)
        present = jnp.ones(len(rows), bool) if present is None else jnp.asarray(present)
        total = self.total(
            self.frame,
            self.parameters,
            self.metric.blocks,
            self.metric.clip,
            rows,
            present,
            SETTINGS.damping,
        )
        return np.asarray(total)

    def gradients(self, rows):
        """Each row's whole gradient as an array per leaf, by differentiating the plain model."""

        def loss(parameters, row):
            return -self.frame.blueprint.assemble(parameters).log_prob(row)

        each = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))
        return each(self.parameters, jnp.asarray(rows, jnp.float32))


#: One of each kind of block: masked, free and stacked; the rest is left to the long suite.
QUICK = ("maf", "glow", "columnwise")
MODELS = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in ARCHITECTURES
]


@pytest.fixture(scope="module", params=MODELS)
def family(request):
    return Family(request.param)


def moved_by(family, rows):
    """How far each row alone moves the sum over a batch of a fixed size."""
    empty = np.zeros((len(rows), DIM), np.float32)
    one = np.eye(len(rows), 1, dtype=bool).ravel()
    norms = []
    for row in rows:
        empty[0] = row
        norms.append(np.linalg.norm(family.sum(empty, one)))
    return np.asarray(norms)


def test_no_hostile_row_exceeds_the_clip(family):
    norms = moved_by(family, hostile_rows(100))
    assert np.isfinite(norms).all()
    assert (norms > 0.9 * family.clip).any()
    assert norms.max() <= family.clip


def test_a_row_among_others_moves_the_sum_by_at_most_the_clip(family):
    rows = hostile_rows(60)
    whole = family.sum(rows)
    for left in range(0, 60, 7):
        others = family.sum(rows, np.arange(60) != left)
        assert np.linalg.norm(whole - others) <= family.clip


def test_the_sum_is_that_of_whole_gradients_in_the_metric(family):
    """A whitened step along the gradient g is F^-1 g: whatever the blocks, only that is left.

    With a clip that no row reaches, taking the sum back to the parameters must give, block by
    block, what the eigenvectors and moments of the metric make of the sum of whole gradients.
    """
    rows = np.random.default_rng(2).normal(size=(24, DIM))
    with jax.enable_x64(True):
        far = family.metric._replace(clip=jnp.asarray(1e9))
    total = batch_sum(
        family.frame,
        family.parameters,
        far.blocks,
        far.clip,
        jnp.asarray(rows, jnp.float32),
        jnp.ones(24, bool),
        SETTINGS.damping,
    )
    whitened = jnp.asarray(total, jnp.float32)
    change = natural_gradient._unwhitened(
        family.frame, family.parameters, far.blocks, whitened, SETTINGS.damping
    )
    gradient = jax.tree.map(lambda g: g.sum(axis=0), family.gradients(rows))
    # g' F^-1 g from both sides: by the change of the parameters, and by the whitened norm
    inner = sum(
        float(jnp.vdot(g, c))
        for g, c in zip(jax.tree.leaves(gradient), jax.tree.leaves(change), strict=True)
    )
    assert inner == pytest.approx(float(np.sum(np.asarray(total) ** 2)), rel=2e-3)


def test_metric_is_the_second_moment_of_the_models_own_samples(family):
    """The moments along the eigenvectors add up to the mean squared norm of all gradients."""
    gradients = family.gradients(family.metric.samples)
    leaves = [np.asarray(g).reshape(len(g), -1) for g in jax.tree.leaves(gradients)]
    alive = np.isfinite(np.concatenate(leaves, axis=1)).all(axis=1)
    squared = sum((np.where(alive[:, None], g, 0) ** 2).sum() for g in leaves) / SETTINGS.samples
    traced = sum(float(block.moments.sum()) for block in family.metric.blocks)
    assert traced == pytest.approx(squared, rel=1e-3)


def test_rows_whose_factors_overflow_when_they_are_turned_add_nothing(family):
    """Finite factors, as large as single precision allows, in every direction at once."""

    def filled(parts):
        shapes = [(*x.shape[:-2], 4, x.shape[-1]) for x in parts]
        rows = [np.full(shape, 0.1, np.float32) for shape in shapes]
        for x in rows:
            x[..., 2, :] = 3.3e38
        return tuple(map(jnp.asarray, rows))

    factors, _ = natural_gradient._factors(
        family.frame, family.parameters, jnp.zeros((4, DIM), jnp.float32)
    )
    white = natural_gradient._whiten(
        family.metric.blocks, [filled(parts) for parts in factors], SETTINGS.damping
    )
    with jax.enable_x64(True):
        total = natural_gradient._sums(white, jnp.ones(4))
    assert np.isfinite(np.asarray(total)).all()
    assert float(white.squares[2]) == 0 < float(white.squares[1])


def test_absent_rows_add_nothing(family):
    assert not family.sum(np.ones((8, DIM)), np.zeros(8, bool)).any()


def test_a_step_that_is_too_long_is_halved_until_its_divergence_is_as_predicted(family):
    """In a metric that is a hundred times too small, steps are ten times longer than they seem."""
    blocks = [block._replace(moments=block.moments / 100) for block in family.metric.blocks]
    with jax.enable_x64(True):
        step = jnp.asarray(family.metric.baseline)
        step = step / jnp.linalg.norm(step)
    _, honest = move(family.frame, family.parameters, family.metric, step, SETTINGS.damping)
    metric = family.metric._replace(blocks=blocks)
    moved, scale = move(family.frame, family.parameters, metric, step, SETTINGS.damping / 100)
    assert scale < honest
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(moved))


def test_hidden_weights_do_not_matter(family):
    """Directions that no sample moves get noise, but masked weights are not parameters."""
    masks = family.frame.blueprint.masks
    with jax.enable_x64(True):
        step = jnp.ones(len(family.metric.baseline))
    moved, _ = move(family.frame, family.parameters, family.metric, step, SETTINGS.damping)
    for before, after, mask in zip(family.parameters.dense, moved.dense, masks, strict=True):
        if mask is not None:
            change = np.asarray(after.weight - before.weight)[..., ~mask]
            assert not change.any()


# Twins: each plants a bug that the tests above must reject.


@pytest.fixture
def small(monkeypatch):
    """A family in which bugs can be planted: its program is compiled anew, with the bug."""
    family = Family("columnwise")
    family.total = eqx.filter_jit(lambda *batch: batch_sum.__wrapped__(*batch))
    return family, monkeypatch


def test_clipping_before_whitening_is_caught(small):
    """Rows are bounded in the parameters' own coordinates, and whitened then."""
    family, monkeypatch = small
    honest = natural_gradient._whiten

    def unwhitened_norms(blocks, factors, damping):
        white = honest(blocks, factors, damping)
        with jax.enable_x64(True):
            flat = [
                natural_gradient._squares(p, jnp.ones_like(s))
                for p, s in zip(*white[:2], strict=True)
            ]
            return white._replace(squares=sum(flat[1:], flat[0]))

    monkeypatch.setattr(natural_gradient, "_whiten", unwhitened_norms)
    assert moved_by(family, hostile_rows(100)).max() > family.clip


def test_a_block_left_out_of_the_norm_is_caught(small):
    family, monkeypatch = small
    honest = natural_gradient._squares
    seen = []

    def forgetful(parts, weights):
        seen.append(1)
        return honest(parts, weights) * (0.0 if len(seen) % 2 else 1.0)

    monkeypatch.setattr(natural_gradient, "_squares", forgetful)
    assert moved_by(family, hostile_rows(100)).max() > family.clip


def test_layers_have_kronecker_blocks_of_their_stacks():
    family = Family("columnwise")
    kinds = {type(block) for block in family.metric.blocks}
    assert kinds == {Kronecker}
    assert all(block.moments.shape[0] == DIM for block in family.metric.blocks)
    assert eqx.tree_equal(
        family.metric, estimate_metric(family.frame, family.parameters, KEY, SETTINGS)
    )

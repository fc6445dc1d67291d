"""For every model: the whitened clipped sum is what its definition says, and no row exceeds it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contracts.families import DIM, hostile_rows, model_of, shaken
from dpflows.models.architectures import ARCHITECTURES
from dpflows.training import fisher, fisher_blocks, natural_gradient
from dpflows.training.fisher import METRICS, Frame, Layout, estimate_metric
from dpflows.training.fisher_blocks import Diagonal, Exact, Kronecker, whole_gradients
from dpflows.training.ghost_clipping import take_apart
from dpflows.training.natural_gradient import NaturalGradient, changes_of, move, totals

SETTINGS = NaturalGradient(samples=256)
KEY = jnp.asarray([3, 4], jnp.uint32)
DAMPING = 0.1


def _metric(frame, parameters, settings):
    given = {"samples": settings.samples, "kind": settings.metric}
    return estimate_metric(frame, parameters, KEY, DAMPING, **given)


class Family:
    """A model, its metric at one place, and the sums over batches there."""

    def __init__(self, name, settings=SETTINGS):
        parameters, blueprint = take_apart(model_of(name))
        self.settings = settings
        self.parameters, self.frame = shaken(parameters), Frame.of(blueprint)
        self.metric = _metric(self.frame, self.parameters, settings)
        self.clip = settings.clip * np.sqrt(self.metric.effective)
        self.layouts = self.frame.layouts(self.parameters, settings.metric)

    def sum(self, rows, present=None, clip=None):
        rows = jnp.asarray(rows, jnp.float32)
        present = jnp.ones(len(rows), bool) if present is None else jnp.asarray(present)
        clip = float(self.clip if clip is None else clip)
        place = self.frame, self.parameters, self.metric.blocks
        return np.asarray(totals(*place, clip, rows, present, self.settings.metric).sum)

    def gradients(self, rows):
        """Each row's whole gradient as an array per leaf, by differentiating the plain model."""

        def loss(parameters, row):
            return -self.frame.blueprint.assemble(parameters).log_prob(row)

        each = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))
        return each(self.parameters, jnp.asarray(rows, jnp.float32))

    def change(self, whitened):
        step = jnp.asarray(whitened, jnp.float32)
        blocks, metric = self.metric.blocks, self.settings.metric
        layouts = self.frame.layouts(self.parameters, metric)
        return self.frame.restored(self.parameters, layouts, changes_of(blocks, step))

    def move(self, metric, step):
        place = self.frame, self.parameters, metric
        return move(*place, jnp.asarray(step, jnp.float32), self.settings)


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


def inner(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return sum(float(jnp.vdot(a, b)) for a, b in pairs)


def test_the_sum_is_that_of_whole_gradients_in_the_metric(family):
    """The squared length of g is that of its step: in the parameters, and whitened.

    With a clip that no row reaches, a whitened step along the gradient g is F^-1 g.
    """
    rows = np.random.default_rng(2).normal(size=(24, DIM))
    total = family.sum(rows, clip=1e9)
    gradient = jax.tree.map(lambda g: g.sum(axis=0), family.gradients(rows))
    assert inner(gradient, family.change(total)) == pytest.approx(np.sum(total**2), rel=2e-3)


def whole_moments(family):
    """The damped second moments of whole gradients, block by block, by their definition."""
    rows = family.metric.samples
    where = family.frame, family.parameters
    for found in fisher.by_block(*where, rows, family.settings.metric).parts:
        for member in range(len(found[0][0])):
            gradients = whole_gradients([tuple(x[member] for x in xs) for xs in found])
            squares = np.sum(np.asarray(gradients, np.float64) ** 2, axis=1)
            usual = np.sqrt(np.mean(np.minimum(squares, 25 * np.median(squares))))
            kept = np.minimum(1, 4 * usual / np.maximum(np.sqrt(squares), 1e-30))
            short = np.asarray(gradients, np.float64) * kept[:, None]
            yield short.T @ short / len(short)


def test_exact_blocks_are_inverse_roots_of_the_samples_second_moments(family):
    moments = whole_moments(family)
    for block, layout in zip(family.metric.blocks, family.layouts, strict=True):
        for member in range(int(np.prod(layout.stack))):
            damped = next(moments)
            if not isinstance(block, Exact):
                continue
            damped += (DAMPING + 2e-6 * np.trace(damped)) * np.eye(len(damped))
            root = np.asarray(block.inverse[member], np.float64)
            np.testing.assert_allclose(root @ damped @ root.T, np.eye(len(root)), atol=2e-2)


def test_gradients_in_parts_are_the_whole_gradients(family):
    """Putting parts back to the parameters gives what differentiating the plain model gives."""
    rows = np.random.default_rng(5).normal(size=(3, DIM))
    wide = jnp.asarray(rows, jnp.float32)
    parts, alive = fisher.by_block(family.frame, family.parameters, wide, family.settings.metric)
    assert bool(alive.all())
    masks = family.frame.blueprint.masks
    whole = family.gradients(rows)
    for row in range(3):
        blocks = [
            jax.vmap(lambda *xs, row=row: whole_gradients(list(xs))[row])(*found) for found in parts
        ]
        restored = family.frame.restored(family.parameters, family.layouts, blocks)
        for ours, theirs, mask in zip(restored.dense, whole.dense, masks, strict=True):
            seen = 1.0 if mask is None else mask
            np.testing.assert_allclose(ours.weight, theirs.weight[row] * seen, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", METRICS)
def test_the_part_of_a_step_that_damping_leaves(name):
    """F (F + damping)^-1 has the trace that is called effective, and is within zero and one."""
    family = Family("columnwise", NaturalGradient(samples=128, metric=name))
    for block in family.metric.blocks:
        units = jnp.eye(block.size)
        kept = np.asarray(jax.vmap(block.effective_part)(units), np.float64)
        assert np.trace(kept) == pytest.approx(
            np.sum(np.asarray(block.effective)), rel=1e-3, abs=1e-3
        )
        values = np.linalg.eigvalsh((kept + kept.T) / 2)
        assert values.min() > -1e-3
        assert values.max() < 1 + 1e-3


@pytest.mark.parametrize("name", ["block", "kronecker"])
def test_rows_whose_parts_overflow_when_they_are_whitened_add_nothing(name, monkeypatch):
    """Finite parts, as large as single precision allows, in every direction at once."""
    honest = natural_gradient.gradients

    def huge(*arguments):
        return [
            piece._replace(parts=jax.tree.map(lambda x: x.at[..., 1:, :].set(3.3e38), piece.parts))
            for piece in honest(*arguments)
        ]

    family = Family("columnwise", NaturalGradient(samples=128, metric=name))
    monkeypatch.setattr(natural_gradient, "gradients", huge)
    rows = np.random.default_rng(3).normal(size=(4, DIM))
    assert not family.sum(rows, np.arange(4) > 0).any()
    assert np.isfinite(family.sum(rows)).all()
    assert family.sum(rows).any()


def test_absent_rows_add_nothing(family):
    assert not family.sum(np.ones((8, DIM)), np.zeros(8, bool)).any()


def test_a_step_that_is_too_long_is_shortened_until_its_divergence_is_as_predicted(family):
    """In a metric that is a thousand times too small, steps are longer than they seem."""
    rows = np.random.default_rng(2).normal(size=(256, DIM)) + 1
    step = family.sum(rows)
    step = 0.5 * step / np.linalg.norm(step)
    _, honest, _ = family.move(family.metric, step)
    blocks = [longer(block) for block in family.metric.blocks]
    moved, scale, _ = family.move(family.metric._replace(blocks=blocks), step)
    assert scale < honest
    logs = [
        np.asarray(jax.vmap(family.frame.blueprint.assemble(p).log_prob)(family.metric.samples))
        for p in (family.parameters, moved)
    ]
    ratio = np.clip(logs[1] - logs[0], -20, 20).astype(np.float64)
    divergence = np.mean(np.expm1(ratio) - ratio)
    assert divergence <= 1.5 * family.settings.trust**2 / 2 + 0.03


def longer(block):
    name = "inverse" if isinstance(block, Exact) else "scales"
    return eqx.tree_at(lambda b: getattr(b, name), block, getattr(block, name) * 30)


def test_hidden_weights_do_not_matter(family):
    """Directions that no sample moves get noise, but masked weights are not parameters."""
    masks = family.frame.blueprint.masks
    moved, *_ = family.move(family.metric, np.ones(family.metric.coordinates))
    for before, after, mask in zip(family.parameters.dense, moved.dense, masks, strict=True):
        if mask is not None:
            change = np.asarray(after.weight - before.weight)[..., ~mask]
            assert not change.any()


def test_weights_that_nothing_depends_on_stay():
    """The first column's network sees nothing: its hidden weights are not moved by noise."""
    family = Family("columnwise")
    change = family.change(np.ones(family.metric.coordinates))
    hidden = change.dense[0].weight
    assert not np.asarray(hidden)[:, 0].any()
    assert np.asarray(hidden)[:, -1].any()


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_bounds_hostile_rows(name):
    family = Family("columnwise", NaturalGradient(samples=128, metric=name))
    norms = moved_by(family, hostile_rows(40))
    assert norms.max() <= family.clip
    assert (norms > 0.9 * family.clip).any()


def test_the_public_rule_of_blocks():
    """Small networks beside each other are exact; large layers have Kronecker factors."""
    family = Family("columnwise")
    (layout,), (block,) = family.layouts, family.metric.blocks
    assert isinstance(block, Exact)
    assert len(block.inverse) == layout.stack[0] * DIM
    wide = Layout((), (layout.pieces[0]._replace(shape=(40, 40), lead=()),))
    assert fisher.kind_of(wide, "block") == Kronecker.estimate
    free = Layout((), (wide.pieces[0]._replace(is_dense=False),))
    assert fisher.kind_of(free, "block") == Diagonal.estimate
    again = _metric(family.frame, family.parameters, SETTINGS)
    assert eqx.tree_equal(family.metric, again)


def test_without_a_cholesky_factor_the_damping_is_raised():
    """Moments that single precision cannot invert: the block is tried with more damping."""
    tried = []

    def estimate(parts, damping):
        tried.append(damping)
        block = Exact.estimate(parts, damping)
        bad = len(tried) < 3
        return eqx.tree_at(lambda b: b.effective, block, jnp.full(1, jnp.nan)) if bad else block

    fisher._estimated(estimate, [(jnp.ones((1, 8, 3)),)], 0.01)
    assert tried == pytest.approx([0.01, 0.1, 1.0])


def cancelling(rows=400, inputs=7, outputs=5):
    """An inverse root, and gradients whose parts it makes almost cancel in single precision."""
    rng = np.random.default_rng(4)
    weights = inputs * outputs
    inverse = np.tril(rng.normal(size=(weights, weights)))
    inverse[:, : weights // 2] += 1e4  # directions that are long, and their differences short
    parts = rng.normal(size=(1, rows, inputs)), rng.normal(size=(1, rows, outputs))
    single = [jnp.asarray(part, jnp.float32) for part in (inverse[None], *parts)]
    block = Exact(single[0], jnp.ones((1, weights), bool), jnp.ones(1), jnp.ones(1))
    return block, [(single[1], single[2])]


def shortfall(block, parts):
    """By how much bounds of whitened lengths are below the lengths in double precision."""
    with jax.enable_x64(True):
        bound = np.sqrt(np.asarray(block.measured(parts)[0]))
    inputs, outputs = (np.asarray(part, np.float64)[0] for part in parts[0])
    whole = (outputs[:, :, None] * inputs[:, None, :]).reshape(len(inputs), -1)
    lengths = np.linalg.norm(whole @ np.asarray(block.inverse, np.float64)[0].T, axis=1)
    return np.max((lengths - bound) / lengths)


def test_lengths_are_bounded_whatever_single_precision_does():
    assert shortfall(*cancelling()) <= 0


# Twins: each plants a bug that the tests above must reject.


def test_lengths_without_their_rounding_error_are_caught(monkeypatch):
    monkeypatch.setattr(fisher_blocks, "_rounded", lambda matrix: 0.0)
    assert shortfall(*cancelling()) > 0


@pytest.fixture
def small(monkeypatch):
    """A family in which bugs can be planted: its program is compiled anew, with the bug."""
    honest = natural_gradient._clipped_sum.__wrapped__
    fresh = eqx.filter_jit(lambda *piece: honest(*piece))
    monkeypatch.setattr(natural_gradient, "_clipped_sum", fresh)
    return Family("columnwise"), monkeypatch


def test_clipping_before_whitening_is_caught(small):
    """Rows are bounded in the parameters' own coordinates, and whitened then."""
    family, monkeypatch = small

    def unwhitened(block, parts):
        return jnp.sum(jax.vmap(fisher_blocks._squares)(parts), axis=0), parts

    monkeypatch.setattr(Exact, "measured", unwhitened)
    assert moved_by(family, hostile_rows(100)).max() > family.clip


def test_a_network_left_out_of_the_norm_is_caught(small):
    family, monkeypatch = small
    honest = Exact.measured

    def without_the_first(block, parts):
        rest = jax.tree.map(lambda leaf: leaf[1:], (block, parts))
        return honest(*rest)[0], parts

    monkeypatch.setattr(Exact, "measured", without_the_first)
    assert moved_by(family, hostile_rows(100)).max() > family.clip

r"""Natural-gradient private training: clip and noise where every direction weighs the same.

The Fisher information of a density model, :math:`F = E_{x \sim p_\theta}[g g^\top]` with
:math:`g = \nabla_\theta \log p_\theta(x)`, is an expectation over the model's own samples. So it
costs no privacy. In coordinates whitened by it, half the squared length of a step is the
Kullback-Leibler divergence that the step makes, and equal noise on every coordinate does equal
harm (Amari 1998). ``docs/training.md`` has the derivation, and the figures.

The metric is block diagonal. A dense layer, whose gradient is the outer product of what came in
and the loss gradient of what went out, gets an eigenvalue-corrected Kronecker factor (EKFAC, George
et al. 2018): the eigenvectors of both second moments, and the exact second moment of the gradient
along each pair of them. What is not in a dense layer gets the eigenvectors of its own second
moments. Both need one pass over a sample and no gradient of a single row's weights.

Guarantee:
    ``estimate_metric`` sees released parameters and random bits, never a row. Given what it
    returns, taking one row out of a batch moves ``batch_sum``, as it is computed, by at most
    ``clip`` in L2 norm, whatever the rows contain; rows whose gradient is not finite contribute
    exactly zero.
    ``Natural.advance`` adds noise of ``noise_multiplier * clip`` to each coordinate, once per step,
    before anything else is done with the sum.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PyTree

from dpflows.errors import TrainingError
from dpflows.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from dpflows.privacy.randomness import Entropy
from dpflows.training.batches import Batches
from dpflows.training.clipping import over_rows, rounding_margin
from dpflows.training.loop import State, Training
from dpflows.training.optimizers import NaturalGradient
from dpflows.training.taps import Blueprint, DenseParameters, MaskGroups, Parameters, Tap

#: Where the rows go in each tap: after the axes of stacked layers, before the features.
_ROW_AXES = Tap(-2, -2, -1)  # type: ignore[arg-type]
#: Rows whose factors are held at once.
_PIECE = 2048
#: A vector of parameters outside dense layers is whitened as a whole up to this length.
_FULL_BLOCK = 512
#: The step is halved at most so often.
_HALVINGS = 6


class Kronecker(NamedTuple):
    """The metric of dense layers: eigenvectors of both factors, moments along their pairs."""

    inputs: Float[Array, "*stack i i"]
    outputs: Float[Array, "*stack o o"]
    moments: Float[Array, "*stack o i"]


class Whole(NamedTuple):
    """The metric of a vector: eigenvectors, or None where it is diagonal, and moments."""

    vectors: Float[Array, "m m"] | None
    moments: Float[Array, " m"]


Block = Kronecker | Whole
#: A row's part in each block: factors of an outer product, or a vector; rows come second to last.
Factors = list[tuple[Array, Array] | tuple[Array]]


class Metric(NamedTuple):
    """What the model's own samples tell about a step, before any row is read.

    Attributes:
        blocks: The metric.
        clip: The clipping norm.
        baseline: What the clipped gradients of the model's own samples average to. Clipping makes
            it other than zero, and the same bias is in the rows' average.
        response: By how much clipping shortens a small change of the average.
        samples: The rows it was computed from.
    """

    blocks: list[Block]
    clip: Float64[Array, ""]
    baseline: Float64[Array, " coordinates"]
    response: Float64[Array, ""]
    samples: Float[Array, "n columns"]


class _Grouped(eqx.Module):
    """A masked layer as a stack of dense ones: outputs that see the same inputs."""

    members: Array
    exists: Array
    patterns: Array

    @classmethod
    def of(cls, group: MaskGroups) -> "_Grouped":
        belongs = np.asarray(group.membership) > 0
        most = int(belongs.sum(axis=0).max())
        members = np.argsort(~belongs, axis=0, kind="stable")[:most].T
        exists = np.arange(most) < belongs.sum(axis=0)[:, None]
        return cls(jnp.asarray(members), jnp.asarray(exists), jnp.asarray(group.patterns))

    def split(self, inputs: Array, outputs: Array) -> tuple[Array, Array]:
        """Each group's inputs and output gradients."""
        spread = jnp.moveaxis(outputs[:, self.members], 1, 0) * self.exists[:, None]
        return inputs * self.patterns[:, None], spread

    def join(self, parts: Float[Array, "groups most i"], outputs: int) -> Float[Array, "o i"]:
        """The groups' weights as one layer's; weights that the mask hides are zero."""
        bias = parts.shape[-1] - self.patterns.shape[-1]
        seen = jnp.pad(self.patterns, ((0, 0), (0, bias)), constant_values=1)
        kept = parts * self.exists[..., None] * seen[:, None]
        flat = kept.reshape(-1, parts.shape[-1])
        return jnp.zeros((outputs, parts.shape[-1])).at[self.members.reshape(-1)].add(flat)


class Frame(eqx.Module):
    """A model's structure as the metric needs it; holds no parameters."""

    blueprint: Blueprint
    grouped: tuple[_Grouped | None, ...]

    @classmethod
    def of(cls, blueprint: Blueprint) -> "Frame":
        """The frame of a model that was taken apart."""
        return cls(
            blueprint, tuple(None if g is None else _Grouped.of(g) for g in blueprint.groups)
        )


def _row_loss(frame: Frame, parameters: Parameters, taps: Any, free: PyTree, row: Array) -> Array:
    model = frame.blueprint.assemble_tapped(parameters._replace(free=free), taps)
    return -model.log_prob(row)


def _factors(frame: Frame, parameters: Parameters, rows: Array) -> tuple[Factors, Array]:
    """Every row's gradient in factors, and which rows have one; zeros where not."""
    zeros = frame.blueprint.zero_taps(parameters)
    gradients = jax.vmap(
        jax.grad(functools.partial(_row_loss, frame, parameters), argnums=(0, 1)),
        in_axes=(None, None, 0),
        out_axes=(tuple((_ROW_AXES,) * len(steps) for steps in zeros), 0),
    )
    taps, free = gradients(zeros, parameters.free, rows)
    factors: Factors = [(leaf.reshape(len(rows), -1),) for leaf in jax.tree.leaves(free)]
    for steps, grouped, layer in zip(taps, frame.grouped, parameters.dense, strict=True):
        factors += [_of_layer(tap, grouped, layer) for tap in steps]
    return _without_dead_rows(factors)


def _without_dead_rows(factors: Any) -> tuple[Any, Bool[Array, " rows"]]:
    """Zeros for rows that have a factor that is not finite, and which rows are others."""
    alive = functools.reduce(jnp.logical_and, [_finite(x) for parts in factors for x in parts])
    return jax.tree.map(lambda x: jnp.where(alive[:, None], x, 0.0), factors), alive


def _of_layer(tap: Tap, grouped: _Grouped | None, layer: DenseParameters) -> tuple[Array, Array]:
    inputs, outputs = tap.inputs, tap.outputs
    if grouped is not None:
        inputs, outputs = grouped.split(inputs, outputs)
    if layer.bias is not None:  # a bias is a weight whose input is one
        inputs = jnp.concatenate([inputs, jnp.ones_like(inputs[..., :1])], axis=-1)
    return inputs, outputs


def _finite(values: Float[Array, "*stack rows k"]) -> Bool[Array, " rows"]:
    finite = jnp.isfinite(values).all(axis=-1)
    return finite.all(axis=tuple(range(finite.ndim - 1)))


def _block(bases: tuple[Array | None, ...], parts: tuple[Array, ...]) -> Block:
    """The metric of one block: the second moments of its factors along the eigenvectors."""
    turned = [x if basis is None else x @ basis for x, basis in zip(parts, bases, strict=True)]
    squares = [x * x for x in turned]
    if len(parts) == 1:
        return Whole(bases[0], jnp.mean(squares[0], axis=0))
    inputs, outputs = bases
    moments = _over_rows(squares[1], squares[0]) / parts[0].shape[-2]
    return Kronecker(inputs, outputs, moments)  # type: ignore[arg-type]


def _gram(values: Float[Array, "*stack rows k"], *, is_whole: bool) -> Array | None:
    """Second moments whose eigenvectors serve as a basis; None for a vector that is too long."""
    is_long = is_whole and values.shape[-1] > _FULL_BLOCK
    return None if is_long else _over_rows(values, values) / values.shape[-2]


def _eigenvectors(gram: Float[Array, "*stack k k"]) -> Float[Array, "*stack k k"]:
    # On the host: compiled programs that hold several of these calls have been seen to wait
    # for each other for ever.
    wide = np.asarray(gram, np.float64)
    # what is not finite is found by its clipping norm, before a row is read
    return jnp.asarray(np.linalg.eigh(np.nan_to_num(wide))[1], gram.dtype)


def _unit_vectors(gram: Float[Array, "*stack k k"]) -> Float[Array, "*stack k k"]:
    return jnp.broadcast_to(jnp.eye(gram.shape[-1], dtype=gram.dtype), gram.shape)


def _levelled(blocks: list[Block]) -> list[Block]:
    """The same moment for every parameter: their mean."""
    whole = sum(block.moments.size for block in blocks)
    mean = sum(jnp.sum(block.moments) for block in blocks) / whole
    return [block._replace(moments=jnp.full_like(block.moments, mean)) for block in blocks]


def _over_rows(left: Array, right: Array) -> Array:
    """Sums of outer products over the rows."""
    return jnp.swapaxes(left, -1, -2) @ right


def _turned(block: Block, parts: tuple[Array, ...]) -> tuple[Array, ...]:
    """Factors in the block's eigenvectors."""
    if isinstance(block, Whole):
        return parts if block.vectors is None else (parts[0] @ block.vectors,)
    return parts[0] @ block.inputs, parts[1] @ block.outputs


class _Whitened(NamedTuple):
    """Rows' whitened gradients, still in factors, and their squared norms; double precision."""

    parts: list[tuple[Array, ...]]
    scales: list[Array]
    squares: Float64[Array, " rows"]


def _whiten(blocks: list[Block], factors: Factors, damping: float) -> _Whitened:
    turned = [_turned(block, parts) for block, parts in zip(blocks, factors, strict=True)]
    # Large finite factors may overflow when they are turned: such a row counts zero too.
    turned, _ = _without_dead_rows(turned)
    with jax.enable_x64(True):
        parts = [tuple(x.astype(jnp.float64) for x in xs) for xs in turned]
        scales = [jax.lax.rsqrt(b.moments.astype(jnp.float64) + damping) for b in blocks]
        squares = [_squares(xs, scale * scale) for xs, scale in zip(parts, scales, strict=True)]
        return _Whitened(parts, scales, functools.reduce(jnp.add, squares))


def _squares(parts: tuple[Array, ...], weights: Float64[Array, "..."]) -> Float64[Array, " rows"]:
    """Each row's weighted sum of squares, from its factors."""
    if len(parts) == 1:
        return jnp.sum(parts[0] * parts[0] * weights, axis=-1)
    inputs, outputs = parts[0] * parts[0], parts[1] * parts[1]
    stack = tuple(range(inputs.ndim - 2))
    axes = (((inputs.ndim - 1,), (weights.ndim - 1,)), (stack, stack))
    through = jax.lax.dot_general(inputs, weights, axes)
    each = jnp.sum(through * outputs, axis=-1)
    return jnp.sum(each, axis=stack)


def _sums(white: _Whitened, factor: Float64[Array, " rows"]) -> Float64[Array, " coordinates"]:
    """The sum over rows of what each row's whitened gradient times its factor is."""
    total = []
    for parts, scale in zip(white.parts, white.scales, strict=True):
        last = parts[-1] * factor[:, None]
        block = jnp.sum(last, axis=0) if len(parts) == 1 else over_rows(last, parts[0])
        total.append((block * scale).reshape(-1))
    return jnp.concatenate(total)


def _effective(blocks: list[Block], damping: float) -> Float64[Array, ""]:
    """How many directions count: the trace of F (F + damping)^-1."""
    with jax.enable_x64(True):
        moments = [block.moments.astype(jnp.float64) for block in blocks]
        return functools.reduce(jnp.add, [jnp.sum(m / (m + damping)) for m in moments])


def estimate_metric(
    frame: Frame, parameters: Parameters, key: Array, settings: NaturalGradient
) -> Metric:
    """The metric, the clipping norm and what clipping does, from the model's own samples."""
    samples, factors, grams = _sampled(frame, parameters, key, settings.samples)
    is_turned = settings.metric == "kronecker"
    bases = jax.tree.map(_eigenvectors if is_turned else _unit_vectors, grams)
    return _measured(samples, factors, bases, settings)


@eqx.filter_jit
def _sampled(
    frame: Frame, parameters: Parameters, key: Array, count: int
) -> tuple[Array, Factors, list[tuple[Array | None, ...]]]:
    """Samples of the model, their gradients in factors, and second moments of the factors."""
    model = frame.blueprint.assemble(parameters)
    samples = model.sample(jax.random.wrap_key_data(key), count)
    samples = jnp.where(jnp.isfinite(samples), samples, 0.0)
    factors, _ = _factors(frame, parameters, samples)
    grams = [tuple(_gram(x, is_whole=len(parts) == 1) for x in parts) for parts in factors]
    return samples, factors, grams


@eqx.filter_jit
def _measured(
    samples: Array, factors: Factors, bases: list[Any], settings: NaturalGradient
) -> Metric:
    blocks = [_block(basis, parts) for basis, parts in zip(bases, factors, strict=True)]
    blocks = _levelled(blocks) if settings.metric == "identity" else blocks
    white = _whiten(blocks, factors, settings.damping)
    with jax.enable_x64(True):
        effective = jnp.maximum(_effective(blocks, settings.damping), 1.0)
        clip = settings.clip * jnp.sqrt(effective)
        factor = clip / jnp.maximum(jnp.sqrt(white.squares), clip)
        response = jnp.mean(factor * white.squares) / effective
        baseline = _sums(white, factor) / settings.samples
        return Metric(blocks, clip, baseline, jnp.maximum(response, 1e-3), samples)


@eqx.filter_jit
def batch_sum(
    frame: Frame,
    parameters: Parameters,
    blocks: list[Block],
    clip: Float64[Array, ""],
    rows: Float[Array, "slots columns"],
    present: Bool[Array, " slots"],
    damping: float,
) -> Float64[Array, " coordinates"]:
    """The sum of the rows' whitened gradients, each clipped. Never released without noise.

    Guarantee:
        A row that is taken out moves the result by at most ``clip``; see the module.
    """
    pieces = math.ceil(len(rows) / _PIECE)
    size = math.ceil(len(rows) / pieces)
    padding = pieces * size - len(rows)
    rows = jnp.pad(rows, ((0, padding), (0, 0))).reshape(pieces, size, -1)
    present = jnp.pad(present, (0, padding)).reshape(pieces, size)
    margin = rounding_margin(_terms(blocks), pieces * size)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        factors, alive = _factors(frame, parameters, part[0])
        white = _whiten(blocks, factors, damping)
        with jax.enable_x64(True):
            norms = jnp.sqrt(white.squares)
            alive = alive & part[1] & jnp.isfinite(norms)
            bound = clip * (1 - margin)
            factor = jnp.where(alive, bound / jnp.maximum(norms, bound), 0.0)
            return total + _sums(white, factor), None

    with jax.enable_x64(True):
        zero = jnp.zeros(sum(block.moments.size for block in blocks), jnp.float64)
    return jax.lax.scan(add, zero, (rows, present))[0]


def _terms(blocks: list[Block]) -> int:
    """The most numbers added on the way to a squared norm."""
    return sum(block.moments.shape[-1] + block.moments.shape[0] for block in blocks)


@eqx.filter_jit
def move(
    frame: Frame,
    parameters: Parameters,
    metric: Metric,
    step: Float64[Array, " coordinates"],
    damping: float,
) -> tuple[Parameters, Array]:
    """Parameters after a whitened step, halved until its divergence is what was predicted.

    Post-processing: the divergence between the models before and after is measured on samples of
    the model before.
    """
    step = step.astype(jnp.float32)
    change = _unwhitened(frame, parameters, metric.blocks, step, damping)
    predicted = jnp.sum(step * step) / 2
    before = _log_probs(frame, parameters, metric.samples)

    def at(scale: Array) -> Parameters:
        return jax.tree.map(lambda p, c: p - scale * c, parameters, change)

    def is_too_far(scale: Array) -> Array:
        ratio = jnp.clip(_log_probs(frame, at(scale), metric.samples) - before, -20, 20)
        divergence = jnp.mean(jnp.expm1(ratio) - ratio)
        return ~(divergence <= 1.5 * predicted * scale**2 + 0.02)

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        scale = state[0] / 2
        return scale, is_too_far(scale)

    least = 0.5**_HALVINGS
    start = (jnp.asarray(1.0), is_too_far(jnp.asarray(1.0)))
    scale, failed = jax.lax.while_loop(lambda s: s[1] & (s[0] > least), halve, start)
    scale = jnp.where(failed, 0.0, scale)
    moved = jax.tree.map(lambda p, c: jnp.where(scale > 0, p - scale * c, p), parameters, change)
    return moved, scale


def _log_probs(frame: Frame, parameters: Parameters, rows: Array) -> Array:
    return jax.vmap(frame.blueprint.assemble(parameters).log_prob)(rows)


def _unwhitened(
    frame: Frame, parameters: Parameters, blocks: list[Block], step: Array, damping: float
) -> Parameters:
    """A whitened step as a change of the parameters."""
    ends = np.cumsum([block.moments.size for block in blocks])[:-1]
    parts = zip(blocks, jnp.split(step, ends), strict=True)
    changes = iter(
        [_back(block, part.reshape(block.moments.shape), damping) for block, part in parts]
    )
    leaves, tree = jax.tree.flatten(parameters.free)
    free = jax.tree.unflatten(tree, [next(changes).reshape(leaf.shape) for leaf in leaves])
    taps = frame.blueprint.zero_taps(parameters)
    layers = zip(parameters.dense, taps, frame.grouped, frame.blueprint.scanned, strict=True)
    dense = []
    for layer, steps, grouped, scanned in layers:
        each = [_to_layer(next(changes), grouped, layer) for _ in steps]
        dense.append(jax.tree.map(lambda *xs: jnp.stack(xs), *each) if scanned else each[0])
    return Parameters(tuple(dense), free)


def _back(block: Block, part: Array, damping: float) -> Array:
    """A block's whitened coordinates as a change of its parameters; dead directions stay."""
    kept = jnp.where(block.moments > 0, part * jax.lax.rsqrt(block.moments + damping), 0.0)
    if isinstance(block, Whole):
        return kept if block.vectors is None else block.vectors @ kept
    return block.outputs @ kept @ jnp.swapaxes(block.inputs, -1, -2)


def _to_layer(change: Array, grouped: _Grouped | None, layer: DenseParameters) -> DenseParameters:
    if grouped is not None:
        change = grouped.join(change, layer.weight.shape[-2])
    if layer.bias is None:
        return DenseParameters(change, None)
    return DenseParameters(change[..., :-1], change[..., -1])


@dataclasses.dataclass(frozen=True)
class Natural(Training):
    """A run of natural-gradient steps.

    Attributes:
        blueprint: The model without its parameters.
        batches: How rows are drawn.
        settings: What is done with a noisy gradient.
        noise_multiplier: The noise's standard deviation over the clipping norm.
        steps: How many steps there are.
    """

    blueprint: Blueprint
    batches: Batches
    settings: NaturalGradient
    noise_multiplier: float
    steps: int

    def start(self, parameters: Parameters) -> State:
        """The state before the first step."""
        return State(parameters, jnp.asarray(self.settings.variance), parameters, jnp.asarray(0))

    def released(self, state: State) -> Parameters:
        """The parameters a finished run gives out."""
        return state.parameters if self.settings.averaging is None else state.average

    def advance(self, entropy: Entropy) -> Callable[[State, Array, int], State]:
        """A function of (state, rows, step) that makes one step."""
        frame, noise = Frame.of(self.blueprint), RoundedGaussian(entropy)
        slots = _bucket(self.batches.slots)

        def advance(state: State, rows: Array, step: int) -> State:
            key = jnp.asarray(entropy.key("fisher", step=step))
            metric = estimate_metric(frame, state.parameters, key, self.settings)
            _require_finite(metric, step)
            batch, present = self._batch(rows, entropy, step, slots)
            sums = batch_sum(
                frame,
                state.parameters,
                metric.blocks,
                metric.clip,
                batch,
                present,
                self.settings.damping,
            )
            released = self.release(np.asarray(sums), float(metric.clip), noise, step=step)
            return self._stepped(frame, state, metric, released)

        return advance

    def release(
        self,
        sums: Float64[np.ndarray, " coordinates"],
        clip: float,
        noise: RoundedGaussian,
        *,
        step: int,
    ) -> Float64[np.ndarray, " coordinates"]:
        """The sum with noise, over the public batch size.

        Guarantee:
            The only way from ``batch_sum`` to anything else. A step is released once.
        """
        if sums.dtype != np.float64:
            raise TypeError("sums must be in double precision")
        if self.noise_multiplier == 0:
            return sums / self.batches.batch_size
        scale = self.noise_multiplier * clip
        return noise.add(sums, scale=scale, step=step) / self.batches.batch_size

    def _batch(self, rows: Array, entropy: Entropy, step: int, slots: int) -> tuple[Array, Array]:
        """The rows of a batch in a number of slots that many tables share."""
        size = int(self.batches.sizes(entropy, step=step, count=1)[0])
        key = jax.random.wrap_key_data(jnp.asarray(entropy.key("batch-rows", step=step)))
        drawn = rows[_draw(self.batches, key)]
        padded = jnp.pad(drawn, ((0, slots - len(drawn)), (0, 0)))
        return padded, jnp.arange(slots) < size

    def _stepped(self, frame: Frame, state: State, metric: Metric, released: np.ndarray) -> State:
        settings, done = self.settings, int(state.step)
        response, clip = float(metric.response), float(metric.clip)
        gradient = released - np.asarray(metric.baseline)
        gain = settings.gain(float(state.optimizer), self._noise(clip) / response**2)
        step = gain / response * gradient
        within = min(1.0, settings.trust / max(float(np.linalg.norm(step)), 1e-12))
        with jax.enable_x64(True):
            wide = jnp.asarray(within * step)
        parameters, scale = move(frame, state.parameters, metric, wide, settings.damping)
        # What a shortened step left undone is still to be learnt.
        taken = gain * within * float(scale)
        variance = settings.variance_after(float(state.optimizer), taken, done, self.steps)
        average = self._averaged(state.average, parameters)
        return State(parameters, jnp.asarray(variance), average, jnp.asarray(done + 1))

    def _noise(self, clip: float) -> float:
        """The variance of each coordinate of the gradient that is not signal."""
        batch, rows = self.batches.batch_size, self.batches.rows
        added = (self.noise_multiplier * clip / batch) ** 2
        return added + 1 / batch - 1 / rows + 1 / self.settings.samples

    def _averaged(self, average: Parameters, parameters: Parameters) -> Parameters:
        decay = self.settings.averaging
        if decay is None:
            return parameters
        return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, parameters)


def _require_finite(metric: Metric, step: int) -> None:
    """Stop where the model's own samples give no metric; no row has a part in it."""
    if not math.isfinite(float(metric.clip)):
        raise TrainingError(
            f"training diverged by step {step} and nothing was released: "
            "raise epsilon or lower the number of steps; the budget counts as spent"
        )


@functools.partial(jax.jit, static_argnums=0)
def _draw(batches: Batches, key: Array) -> Array:
    return batches.draw(key)


def _bucket(slots: int) -> int:
    """The next of few sizes, so that tables of many lengths share one compiled program.

    Example:
        >>> _bucket(1000), _bucket(6300)
        (1024, 6656)
    """
    step = 1 << max(slots.bit_length() - 4, 4)
    return math.ceil(slots / step) * step

"""Private training by natural gradients: clipping and noise in Fisher-whitened coordinates.

A step samples the model, estimates the Fisher information from the samples (``fisher``), whitens
each row's gradient by it, clips, sums and adds noise there, and moves the parameters by a fraction
of the result. Progress checks (``progress_checks``) adapt that fraction. ``docs/training.md``
has the derivation and the figures.

Guarantee:
    Given the metric, which does not depend on any row, taking one row out of a batch moves
    ``Totals.sum``, as it is computed, by at most ``clip`` in L2 norm, whatever the rows contain;
    rows whose gradient is not finite contribute exactly zero. Of the rows' ``Totals`` nothing
    else is read; the other sums are for the model's own samples.
    ``Natural.advance`` adds noise of ``noise_multiplier * clip`` to each coordinate, once per step,
    before anything else is done with the sum. Besides that it reads the rows only in progress
    checks, as many as the plan has.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from dpflows.errors import InputError, TrainingError
from dpflows.privacy.randomness import Entropy, RoundedGaussian
from dpflows.training.batches import Batches, on_all_cores
from dpflows.training.dp_sgd import State, Training
from dpflows.training.fisher import (
    METRICS,
    PIECE,
    Frame,
    Gradients,
    Metric,
    estimate_metric,
    gradients,
)
from dpflows.training.fisher_blocks import Block, rounding
from dpflows.training.ghost_clipping import Blueprint, Parameters
from dpflows.training.progress_checks import Checks

#: The step is halved at most so often.
_HALVINGS = 6
#: What clipping does is measured on so many pieces of the samples.
RESPONSE_PIECES = 2
#: What clipping usually leaves of a small change; measured anew in every step.
_USUAL_RESPONSE = 0.45
#: Steps that were not as predicted raise the damping to at most so many times what noise asks for.
_MOST_RAISED = 16.0


@final
@dataclasses.dataclass(frozen=True)
class NaturalGradient:
    r"""Natural-gradient steps from noisy whitened gradients. All of it is post-processing.

    A step is a fraction of the gradient, the gain; a smaller fraction in damped directions, where
    noise moves the weights far. Progress checks (``progress_checks``) shorten steps that are
    dominated by noise. In the last part of the run gains decrease like those of an averaging Kalman
    filter, :math:`1 / (1 / k + t)`.

    Attributes:
        clip: The clipping norm in units of the root of the effective number of parameters, which is
        the length of a typical whitened gradient.
        damping: Added to second moments, in units of the noise variance that a step would have if
            all of the budget were spent on it. Directions whose signal would be lost in the noise
            are thereby left unchanged.
        least_damping: The smallest damping.
        samples: How many samples of the model the metric is computed from.
        gain: The fraction of a gradient that a step takes, unless a check shortens it.
        annealing: The fraction of the steps after which gains decrease.
        trust: The longest step, as a length in the metric.
        checks: Number of progress checks, which are charged to the budget. With none, steps are
        never shortened.
        metric: ``block``: exact for each small network, Kronecker factors for large layers. For
            comparison ``kronecker`` for all layers, ``full`` for one exact block of all weights,
            ``diagonal``, which ignores correlations, or ``identity``, which weights all parameters
            equally.

    Example:
        >>> NaturalGradient().name
        'natural'
    """

    clip: float = 0.5
    damping: float = 700.0
    least_damping: float = 0.015
    samples: int = 2048
    gain: float = 0.3
    annealing: float = 0.8
    trust: float = 1.5
    checks: int = 10
    metric: str = "block"
    name: str = "natural"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")
        for field in ("clip", "damping", "least_damping", "samples", "gain", "trust"):
            if not getattr(self, field) > 0:
                raise InputError(f"{field} must be positive, got {getattr(self, field)}")
        if self.checks < 0:
            raise InputError(f"checks must not be negative, got {self.checks}")

    def damping_for(self, noise: float, steps: int) -> float:
        """The damping for a run of ``steps`` steps, each with noise of this variance.

        Example:
            >>> NaturalGradient(damping=500.0).damping_for(0.01, 100)
            0.05
        """
        return max(self.least_damping, self.damping * noise / steps)

    def damping_after(self, damping: float, wanted: float, *, is_linear: bool) -> float:
        """The damping of the next step (Levenberg-Marquardt).

        Args:
            damping: Of this step.
            wanted: The damping that suits the noise.
            is_linear: Whether this step's divergence was as its length predicted.

        Example:
            >>> NaturalGradient().damping_after(0.1, 0.02, is_linear=False)
            0.2
        """
        next_one = damping / 2 if is_linear else damping * 2
        return min(max(wanted, next_one), _MOST_RAISED * wanted)

    def gain_at(self, gain_factor: float, step: int, steps: int) -> float:
        """The gain of a step.

        Args:
            gain_factor: The remaining factor on the gain after progress checks.
            step: Which step this is, from zero.
            steps: How many there are.

        Example:
            >>> NaturalGradient(gain=0.5, annealing=0.8).gain_at(1.0, 9, 10)
            0.3333333333333333
        """
        late = max(step - self.annealing * steps, 0.0)
        return 1 / (1 / (self.gain * gain_factor) + late)

    @staticmethod
    def hidden_gain(damping: float) -> float:
        """The fraction of the gain that is used in damped directions.

        Example:
            >>> NaturalGradient.hidden_gain(1.0)
            0.5
        """
        return 1 / (1 + damping)


class Totals(NamedTuple):
    """Sums of clipped whitened gradients. Never released without noise.

    Attributes:
        sum: Of the clipped gradients.
        kept: Of the products of clipped and whole gradients.
        squares: Of the whole gradients' squared lengths.
    """

    sum: Float64[Array, " coordinates"]
    kept: Float64[Array, ""]
    squares: Float64[Array, ""]


class Response(NamedTuple):
    """The effect of clipping, measured on the model's own samples.

    Attributes:
        baseline: The mean of clipped gradients of samples. Clipping makes it nonzero, and the same
        bias is in the rows' mean.
        slope: The factor by which clipping reduces a small change of the mean.
    """

    baseline: Float64[np.ndarray, " coordinates"]
    slope: float


class Course(NamedTuple):
    """Released values that a run carries from step to step.

    Attributes:
        gain_factor: The remaining factor on the gain after progress checks.
        damping: The damping of the next metric.
        reference: The parameters that the last check chose.
    """

    gain_factor: Array
    damping: Array
    reference: Parameters


def totals(
    frame: Frame,
    parameters: Parameters,
    blocks: list[Block],
    clip: float,
    rows: Float[Array, "slots columns"],
    present: Bool[Array, " slots"],
    metric: str,
) -> Totals:
    """Sums over the rows' whitened gradients, each clipped.

    Guarantee:
        A row that is taken out moves ``sum`` by at most ``clip``; see the module.
    """
    return clipped_totals(blocks, gradients(frame, parameters, rows, metric), present, clip)


def clipped_totals(
    blocks: list[Block], pieces: list[Gradients], present: Bool[Array, " slots"], clip: float
) -> Totals:
    """Sums over given whitened gradients, each clipped.

    Guarantee:
        As for ``totals``. Pieces are summed in a fixed order, in double precision.
    """
    slots = len(pieces) * PIECE
    margin = rounding([block.weights for block in blocks], slots, PIECE)
    marked = jnp.pad(present, (0, slots - len(present))).reshape(-1, PIECE)
    with jax.enable_x64(True):
        bound = jnp.asarray(clip * (1 - margin), jnp.float64)
    each = on_all_cores(
        lambda piece: _clipped_sum(blocks, piece[0], piece[1], bound),
        list(zip(pieces, marked, strict=True)),
    )
    with jax.enable_x64(True):
        total = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), each)
        white = [block.whitened(sums) for block, sums in zip(blocks, total.sums, strict=True)]
        return Totals(jnp.concatenate(white), total.kept, total.squares)


class _Piece(NamedTuple):
    """``Totals`` of a piece of the rows, block by block and not yet whitened."""

    sums: list[Float64[Array, "blocks m"]]
    kept: Float64[Array, ""]
    squares: Float64[Array, ""]


@eqx.filter_jit
def _clipped_sum(
    blocks: list[Block], rows: Gradients, present: Bool[Array, " rows"], bound: Float64[Array, ""]
) -> _Piece:
    with jax.enable_x64(True):
        found = [block.measured(xs) for block, xs in zip(blocks, rows.parts, strict=True)]
        squares = functools.reduce(jnp.add, [square for square, _ in found])
        alive = rows.alive & present & jnp.isfinite(squares)
        squares = jnp.where(alive, squares, 0.0)
        factor = jnp.where(alive, bound / jnp.maximum(jnp.sqrt(squares), bound), 0.0)
        each = jax.tree.map(lambda x: jnp.where(alive[:, None], x, 0.0), [xs for _, xs in found])
        sums = [block.sums(xs, factor) for block, xs in zip(blocks, each, strict=True)]
        return _Piece(sums, jnp.sum(factor * squares), jnp.sum(squares))


@eqx.filter_jit
def _plain_sum(blocks: list[Block], samples: Gradients) -> Float64[Array, " coordinates"]:
    """The whitened sum of unclipped gradients of samples. Not for rows."""
    with jax.enable_x64(True):
        each = [block.measured(xs)[1] for block, xs in zip(blocks, samples.parts, strict=True)]
        factor = jnp.ones(len(samples.alive), jnp.float64)
        white = [
            block.whitened(block.sums(xs, factor)) for block, xs in zip(blocks, each, strict=True)
        ]
        return jnp.concatenate(white)


@eqx.filter_jit
def move(
    frame: Frame,
    parameters: Parameters,
    metric: Metric,
    step: Float[Array, " coordinates"],
    settings: NaturalGradient,
) -> tuple[Parameters, Array, Array]:
    """Parameters after a whitened step, the fraction taken, and whether it was as predicted.

    The step is shortened to the trust radius, and halved until its divergence is about the one its
    length predicts. Post-processing: the divergence between the models before and after is measured
    on samples of the model before.
    """
    changes = changes_of(metric.blocks, step)
    change = frame.restored(parameters, frame.layouts(parameters, settings.metric), changes)
    before = _log_probs(frame, parameters, metric.samples)
    # the squared length in the Fisher metric without damping, by the samples themselves
    square = jnp.mean(frame.slopes(parameters, metric, changes, settings.metric) ** 2)
    within = jnp.minimum(1.0, settings.trust / jnp.sqrt(jnp.maximum(square, 1e-12)))

    def at(scale: Array) -> Parameters:
        return jax.tree.map(lambda p, c: p - scale * c, parameters, change)

    def halved(state: tuple[Array, Array]) -> tuple[Array, Array]:
        """The next length to try, and whether it is too long."""
        scale = state[0] / 2
        ratio = jnp.clip(_log_probs(frame, at(scale), metric.samples) - before, -20, 20)
        divergence = jnp.mean(jnp.expm1(ratio) - ratio)
        return scale, ~(divergence <= 1.5 * square * scale**2 / 2 + 0.02)

    least, start = within * 0.5**_HALVINGS, (2 * within, jnp.asarray(True))
    scale, failed = jax.lax.while_loop(lambda s: s[1] & (s[0] > least), halved, start)
    kept = jnp.where(failed, 0.0, scale)
    moved = jax.tree.map(lambda p, c: jnp.where(kept > 0, p - kept * c, p), parameters, change)
    return moved, kept, kept == within


@eqx.filter_jit
def _log_probs(frame: Frame, parameters: Parameters, rows: Array) -> Array:
    return jax.vmap(frame.blueprint.assemble(parameters).log_prob)(rows)


@eqx.filter_jit
def scaled(
    blocks: list[Block], gradient: Float64[Array, " coordinates"], gain: Array, hidden: Array
) -> Float[Array, " coordinates"]:
    """A whitened gradient times one gain in effective directions and another in damped ones."""
    gradient = gradient.astype(jnp.float32)
    ends = np.cumsum([block.size for block in blocks])[:-1]
    each = jnp.split(gradient, ends)
    seen = [block.effective_part(part) for block, part in zip(blocks, each, strict=True)]
    return hidden * gradient + (gain - hidden) * jnp.concatenate(seen)


def changes_of(
    blocks: list[Block], step: Float[Array, " coordinates"]
) -> list[Float[Array, "_ _"]]:
    """A whitened step as changes of the blocks' weights."""
    ends = np.cumsum([block.size for block in blocks])[:-1]
    return [block.change(part) for block, part in zip(blocks, jnp.split(step, ends), strict=True)]


@final
@dataclasses.dataclass(frozen=True)
class Natural(Training):
    """A run of natural-gradient steps.

    Attributes:
        blueprint: The model without its parameters.
        batches: How rows are drawn.
        settings: The optimizer settings.
        noise_multiplier: The noise's standard deviation over the clipping norm.
        steps: How many steps there are.
        checks: When and how progress is checked; never if None.
    """

    blueprint: Blueprint
    batches: Batches
    settings: NaturalGradient
    noise_multiplier: float
    steps: int
    checks: Checks | None = None

    def start(self, parameters: Parameters) -> State:
        """The state before the first step."""
        weights = sum(leaf.size for leaf in jax.tree.leaves(parameters))
        noise = self._added(self.settings.clip * math.sqrt(weights)) / _USUAL_RESPONSE**2
        damping = self.settings.damping_for(noise, self.steps)
        course = Course(_single(1.0), _single(damping), parameters)
        return State(parameters, course, parameters, jnp.asarray(0))

    def released(self, state: State) -> Parameters:
        """The parameters a finished run gives out."""
        return state.parameters

    def advance(self, entropy: Entropy) -> Callable[[State, Array, int], State]:
        """A function of (state, rows, step) that makes one step."""
        frame, noise = Frame.of(self.blueprint), RoundedGaussian(entropy)

        def advance(state: State, rows: Array, step: int) -> State:
            key = jnp.asarray(entropy.key("fisher", step=step))
            damping = float(state.optimizer.damping)
            metric = estimate_metric(
                frame,
                state.parameters,
                key,
                damping,
                samples=self.settings.samples,
                kind=self.settings.metric,
            )
            clip = self._clip(metric, step)
            response = self._response(metric, clip)
            place = frame, state.parameters, metric.blocks
            batch = self._batch(rows, entropy, step)
            sums = totals(*place, clip, *batch, self.settings.metric).sum
            released = self.release(np.asarray(sums), clip, noise, step=step)
            state = self._stepped(frame, state, metric, clip, response, released)
            return self._checked(state, rows, entropy, noise)

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
            The only use of the rows' ``totals``. A step is released once.
        """
        if sums.dtype != np.float64:
            raise TypeError("sums must be in double precision")
        if self.noise_multiplier == 0:
            return sums / self.batches.batch_size
        scale = self.noise_multiplier * clip
        return noise.add(sums, scale=scale, step=step) / self.batches.batch_size

    def _clip(self, metric: Metric, step: int) -> float:
        """The clipping norm, which is public because the metric does not depend on rows."""
        effective = metric.effective
        if not math.isfinite(effective):
            raise TrainingError(
                f"training diverged by step {step} and nothing was released: use a larger epsilon "
                "or fewer steps; the budget counts as spent"
            )
        return self.settings.clip * math.sqrt(max(effective, 1.0))

    def _response(self, metric: Metric, clip: float) -> Response:
        """The effect of clipping on some of the samples.

        Before clipping, gradients of samples have the mean zero, and clipped ones are about
        proportional to them: their mean without that part varies much less from sample to sample.
        """
        some = metric.gradients[:RESPONSE_PIECES]
        count = len(some) * PIECE
        everyone = jnp.ones(count, bool)
        seen = clipped_totals(metric.blocks, some, everyone, clip)
        unclipped = sum(np.asarray(_plain_sum(metric.blocks, piece)) for piece in some)
        part = float(seen.kept) / max(float(seen.squares), 1e-12)
        slope = float(seen.kept) / (count * max(metric.effective, 1.0))
        return Response((np.asarray(seen.sum) - part * unclipped) / count, max(slope, 1e-3))

    def _batch(self, rows: Array, entropy: Entropy, step: int) -> tuple[Array, Array]:
        """The rows of a batch, and which of its slots are filled."""
        size = int(self.batches.sizes(entropy, step=step, count=1)[0])
        key = jax.random.wrap_key_data(jnp.asarray(entropy.key("batch-rows", step=step)))
        drawn = rows[_draw(self.batches, key)]
        return drawn, jnp.arange(len(drawn)) < size

    def _stepped(
        self,
        frame: Frame,
        state: State,
        metric: Metric,
        clip: float,
        response: Response,
        released: np.ndarray,
    ) -> State:
        settings, course = self.settings, state.optimizer
        gain = settings.gain_at(float(course.gain_factor), int(state.step), self.steps)
        hidden = gain * settings.hidden_gain(float(course.damping))
        with jax.enable_x64(True):
            gradient = jnp.asarray((released - response.baseline) / response.slope)
        step = scaled(metric.blocks, gradient, _single(gain), _single(hidden))
        parameters, _, is_linear = move(frame, state.parameters, metric, step, settings)
        wanted = settings.damping_for(self._added(clip) / response.slope**2, self.steps)
        damping = settings.damping_after(float(course.damping), wanted, is_linear=bool(is_linear))
        done = int(state.step) + 1
        average = self._averaged(state.average, parameters, done)
        return State(
            parameters, course._replace(damping=_single(damping)), average, jnp.asarray(done)
        )

    def _checked(
        self, state: State, rows: Array, entropy: Entropy, noise: RoundedGaussian
    ) -> State:
        """The state after the check that is due now, if any."""
        step, course, checks = int(state.step), state.optimizer, self.checks
        if checks is None or not checks.is_due(step, steps=self.steps):
            return state
        candidates = state.parameters, state.average
        gains = checks.compare(
            self.blueprint,
            course.reference,
            candidates,
            rows,
            entropy=entropy,
            noise=noise,
            # numbers beyond those of the steps
            step=self.steps + checks.done_by(step, steps=self.steps),
        )
        decision = checks.decide(gains, is_last=step == self.steps)
        chosen = (*candidates, course.reference)[decision.chosen]
        bold = course.gain_factor * decision.shortening
        return State(
            chosen, course._replace(gain_factor=bold, reference=chosen), chosen, state.step
        )

    def _averaged(self, average: Parameters, parameters: Parameters, step: int) -> Parameters:
        """The average of the parameters since the last check."""
        if self.checks is None:
            return average
        count = self.checks.since(step, steps=self.steps)
        return _moved_towards(average, parameters, _single(1 / count))

    def _added(self, clip: float) -> float:
        """The variance of the noise in each coordinate of the mean."""
        return (self.noise_multiplier * clip / self.batches.batch_size) ** 2


@eqx.filter_jit
def _moved_towards(average: Parameters, parameters: Parameters, share: Array) -> Parameters:
    return jax.tree.map(lambda a, p: a + share * (p - a), average, parameters)


def _single(value: float) -> Array:
    return jnp.asarray(value, jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def _draw(batches: Batches, key: Array) -> Array:
    return batches.draw(key)

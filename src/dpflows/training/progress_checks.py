"""Progress checks: noisy comparisons that adapt the step length of a run.

At a few public steps a run compares its parameters, and their average since the last check, with
the reference parameters of the last check, by the rows' mean clipped log-ratio of densities. If
the steps improve the model, it continues unchanged. If they fluctuate, so that the average is
better, or nothing was gained, it continues with the best of the three and with shorter steps:
noise in a gradient cannot be distinguished from signal by the gradient alone.

Guarantee:
    A check releases one vector of two sums. A row adds at most ``CLIP`` to each, so at most
    ``Checks.bound`` in L2 norm, whatever it contains, and nothing where it is not drawn; the sums
    are of whole multiples of a power of two, and exact. ``Checks.compare`` adds noise of
    ``noise_multiplier * bound`` to both, once, and what follows is post-processing.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from dpflows.privacy.accounting import strength
from dpflows.privacy.events import SampledGaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy, RoundedGaussian
from dpflows.training.batches import Batches, make_batches, on_all_cores
from dpflows.training.ghost_clipping import Blueprint, Parameters

#: A row's log-ratio counts at most so many nats.
CLIP = 3.0
#: The part of the squared Gaussian budget that all checks of a run get together: so much that the
#: noise of a mean log-ratio has this standard deviation in nats, within limits.
_FINE, LEAST_SHARE, MOST_SHARE = 0.05, 0.01, 0.05
PURPOSE = "progress checks"
#: How many sums a check releases.
_CANDIDATES = 2
#: Larger tables are compared on random batches of so many rows.
_MOST_ROWS = 2**16
#: The least noise of a comparison on batches; with less, drawing rows saves no privacy.
_LEAST_NOISE = 2.5
#: Log-ratios are rounded to multiples of this.
_UNIT = 2.0**-20
#: Rows whose densities are computed at once.
_PIECE = 2048
#: Steps become shorter by these factors: where the average is better by more than this part of
#: what was gained, and where less than so many standard deviations of the noise was gained.
_CALMER, _MOST_JITTER = 0.6, 0.25
_SHORTER, _LEAST_GAIN = 0.5, 2.0


class Decision(NamedTuple):
    """The result of a check.

    Attributes:
        chosen: The parameters to continue with: the present ones, their average, or the reference.
        shortening: The factor on the length of later steps.
    """

    chosen: int
    shortening: float


@dataclasses.dataclass(frozen=True)
class Checks:
    """The number of progress checks of a run, and their noise.

    Attributes:
        batches: How rows are drawn for a check.
        count: How many checks there are.
        noise_multiplier: The noise's standard deviation over ``bound``.

    Example:
        >>> checks = Checks(make_batches("poisson", rows=100, batch_size=100), 4, 1.0)
        >>> [step for step in range(1, 11) if checks.is_due(step, steps=10)]
        [3, 5, 8, 10]
    """

    batches: Batches
    count: int
    noise_multiplier: float

    @property
    def bound(self) -> float:
        """The largest change one row can cause in the released vector."""
        return CLIP * math.sqrt(_CANDIDATES)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of a mean log-ratio."""
        return self.noise_multiplier * self.bound / self.batches.batch_size

    def event(self, count: int) -> SampledGaussianEvent:
        """The event of all checks."""
        event = self.batches.event(steps=count, noise_multiplier=self.noise_multiplier)
        return dataclasses.replace(event, purpose=PURPOSE)

    def done_by(self, step: int, *, steps: int) -> int:
        """The number of checks made after ``step`` of ``steps`` steps."""
        return step * self.count // steps

    def is_due(self, step: int, *, steps: int) -> bool:
        """Whether a check follows the step that made it ``step`` of ``steps``."""
        return self.done_by(step, steps=steps) > self.done_by(step - 1, steps=steps)

    def since(self, step: int, *, steps: int) -> int:
        """The number of steps made since the last check before ``step``."""
        last = self.done_by(step - 1, steps=steps)
        return step - math.ceil(last * steps / self.count)

    def compare(
        self,
        blueprint: Blueprint,
        reference: Parameters,
        candidates: tuple[Parameters, Parameters],
        rows: Float[Array, "rows columns"],
        *,
        entropy: Entropy,
        noise: RoundedGaussian,
        step: int,
    ) -> Float64[np.ndarray, "2"]:
        """Noisy mean differences of the candidates' log-densities from the reference's.

        Args:
            blueprint: The model without its parameters.
            reference: The parameters to compare the candidates with.
            candidates: Two sets of released parameters.
            rows: The private rows.
            entropy: Source of randomness of the batch.
            noise: Source of noise.
            step: The number of this release, which no other release of the run has.

        Guarantee:
            See the module.
        """
        key = jax.random.wrap_key_data(jnp.asarray(entropy.key("batch-rows", step=step)))
        size = int(self.batches.sizes(entropy, step=step, count=1)[0])
        # cut on the host: no compiled program, and so no file of one, may tell a batch's size
        drawn = rows[self.batches.draw(key)]
        before = log_probs(blueprint, reference, drawn)[:size]
        after = [log_probs(blueprint, one, drawn)[:size] for one in candidates]
        sums = [clipped_sum(one, before) for one in after]
        return self.release(np.asarray(sums), noise, step=step)

    def release(
        self, sums: Float64[np.ndarray, "2"], noise: RoundedGaussian, *, step: int
    ) -> Float64[np.ndarray, "2"]:
        """The sums with noise, over the public batch size."""
        if self.noise_multiplier > 0:
            sums = noise.add(sums, scale=self.noise_multiplier * self.bound, step=step)
        return sums / self.batches.batch_size

    def decide(self, gains: Float64[np.ndarray, "2"], *, is_last: bool = False) -> Decision:
        """The decision, by noisy gains of the present parameters and their average.

        Args:
            gains: As ``compare`` gives them.
            is_last: Whether no step follows, so that only the best counts.
        """
        now, average = (float(gain) for gain in gains)
        best = max(now, average, 0.0)
        chosen = (now, average, 0.0).index(best)
        if best < _LEAST_GAIN * self.deviation:
            return Decision(chosen, _SHORTER)
        if average - now > _MOST_JITTER * best:
            return Decision(chosen, _CALMER)
        return Decision(chosen if is_last else 0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {
            "batch_size": self.batches.batch_size,
            "count": self.count,
            "noise_multiplier": self.noise_multiplier,
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any], *, sampling: str, rows: int) -> "Checks":
        """Read back what ``to_dict`` wrote."""
        batches = make_batches(sampling, rows=rows, batch_size=int(description["batch_size"]))
        return cls(batches, int(description["count"]), float(description["noise_multiplier"]))


def plan_checks(budget: Budget, *, sampling: str, rows: int, count: int) -> Checks:
    """Plan ``count`` checks with their share of the budget.

    Example:
        >>> checks = plan_checks(Budget(1.0, 1e-5), sampling="poisson", rows=9000, count=10)
        >>> round(checks.deviation, 3)
        0.05
    """
    batches = make_batches(sampling, rows=rows, batch_size=min(rows, _MOST_ROWS))
    if not budget.is_private:
        return Checks(batches, count, 0.0)
    mu, rate = strength(budget), batches.batch_size / rows
    share = count * (Checks(batches, count, 1.0).bound / (_FINE * mu * rows)) ** 2
    share = min(max(share, LEAST_SHARE), MOST_SHARE)
    noise = rate * math.sqrt(count / share) / mu
    return Checks(batches, count, noise if rate == 1 else max(noise, _LEAST_NOISE))


def clipped_sum(
    candidate: Float64[np.ndarray, " rows"], reference: Float64[np.ndarray, " rows"]
) -> float:
    """The sum of rows' log-ratios, clipped to ``CLIP`` each.

    Guarantee:
        A row adds at most ``CLIP``, exactly, and nothing where its ratio is not a number:
        multiples of a power of two add up without rounding.
    """
    with np.errstate(invalid="ignore"):
        ratios = candidate - reference
    kept = np.clip(np.nan_to_num(ratios, nan=0.0, posinf=CLIP, neginf=-CLIP), -CLIP, CLIP)
    return float(np.sum(np.rint(kept / _UNIT)) * _UNIT)


def log_probs(
    blueprint: Blueprint, parameters: Parameters, rows: Float[Array, "rows columns"]
) -> Float64[np.ndarray, " rows"]:
    """Every row's log-density."""
    whole = math.ceil(len(rows) / _PIECE) * _PIECE
    padded = jnp.pad(rows, ((0, whole - len(rows)), (0, 0)))
    pieces = list(padded.reshape(-1, _PIECE, rows.shape[1]))
    each = on_all_cores(lambda piece: _log_probs(blueprint, parameters, piece), pieces)
    return np.concatenate([np.zeros(0), *each])[: len(rows)].astype(np.float64)


@eqx.filter_jit
def _log_probs(blueprint: Blueprint, parameters: Parameters, rows: Array) -> Array:
    return jax.vmap(blueprint.assemble(parameters).log_prob)(rows)

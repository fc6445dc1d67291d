"""The sparse vector technique: many questions, few of which are answered yes."""

from typing import final

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.events import PureEvent, Sensitivity, check_at_least, check_positive
from dpflows.privacy.mechanisms.samplers import sampler_for
from dpflows.privacy.randomness import Entropy

#: Values are rounded to this fraction of their sensitivity before exact integer noise.
_LATTICE = 2**20
_LARGEST_VALUE = 1e12


@final
class SparseVector:
    """Says which of a stream of values exceed a public threshold, until ``positives`` did.

    The split of epsilon between threshold and values, the noise drawn once for the
    threshold and anew for each value, and the stop follow Lyu, Su and Li (2017).

    Args:
        threshold: Public.
        sensitivity: How far one person can move any of the values.
        epsilon: The price of the whole stream when a row is blanked out.
        positives: How many yes answers are given before it stops.
        entropy: Where the noise comes from.
        purpose: For the record.

    Guarantee:
        ``event`` is pure and covers all answers together, however many were no. It must
        be charged before the first question. Noisy values are never revealed.

    Example:
        >>> stream = SparseVector(
        ...     50.0, sensitivity=Sensitivity.uniformly(1.0), epsilon=4.0, positives=1,
        ...     entropy=Entropy.from_os(),
        ... )
        >>> [stream.exceeds(value) for value in (0.0, 0.0, 100.0)]
        [False, False, True]
        >>> stream.exhausted
        True
    """

    def __init__(
        self,
        threshold: float,
        *,
        sensitivity: Sensitivity,
        epsilon: float,
        positives: int,
        entropy: Entropy,
        purpose: str = "sparse vector",
    ) -> None:
        check_positive("epsilon", epsilon)
        check_positive("sensitivity.zero_out", sensitivity.zero_out)
        check_at_least("positives", positives, 1)
        self._unit = sensitivity.zero_out / _LATTICE
        self._left, self._asked = positives, 0
        self._entropy, self._purpose = entropy, purpose
        self._scales = _scales(epsilon, positives)
        self._threshold = self._noisy(threshold, self._scales[0])
        self.event = PureEvent(epsilon=_relative(sensitivity, epsilon), purpose=purpose)
        self.stamp = entropy.stamp

    @property
    def exhausted(self) -> bool:
        """Whether all yes answers have been given."""
        return self._left == 0

    def exceeds(self, value: float) -> bool:
        """Whether the value exceeds the threshold, after noise on both."""
        if self.exhausted:
            raise BudgetError("positives are used up; start a new stream and charge it")
        answer = self._noisy(value, self._scales[1]) >= self._threshold
        self._left -= answer
        return answer

    def _noisy(self, value: float, scale: float) -> int:
        """The value on the lattice, NaN as the smallest, plus integer noise."""
        self._asked += 1
        tame = min(max(value, -_LARGEST_VALUE), _LARGEST_VALUE) if value == value else None
        steps = round((-_LARGEST_VALUE if tame is None else tame) / self._unit)
        sampler = sampler_for(self._entropy, f"{self._purpose}/{self._asked}")
        return sampler.discrete_laplace([_held(steps)], scale)[0]


def _held(steps: int) -> int:
    return min(max(steps, -(2**62)), 2**62)


def _scales(epsilon: float, positives: int) -> tuple[float, float]:
    """Noise on the threshold and on each value, in lattice steps."""
    weight = (2 * positives) ** (2 / 3)
    for_threshold = epsilon / (1 + weight)
    reach = _LATTICE + 1
    return reach / for_threshold, 2 * positives * reach / (epsilon - for_threshold)


def _relative(sensitivity: Sensitivity, epsilon: float) -> Sensitivity:
    if max(sensitivity.add_remove, sensitivity.replace_one) > _LATTICE * sensitivity.zero_out:
        raise InputError("sensitivity must be of one order of magnitude under all relations")
    factor = epsilon / sensitivity.zero_out
    return Sensitivity(epsilon, factor * sensitivity.add_remove, factor * sensitivity.replace_one)

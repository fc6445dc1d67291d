"""The plan of a local fit: how many components, how many releases, how much noise.

Guarantee:
    A plan follows from the budget and the numbers of rows and columns alone, and
    ``MixturePlan.events`` is exactly what running it releases.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from dpflows.errors import InputError
from dpflows.mixtures.frames import UNIT
from dpflows.mixtures.recipe import DEFAULT, Recipe
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, GaussianEvent, check_at_least
from dpflows.privacy.guarantee import Budget

Shape = Literal["full", "low-rank", "diagonal"]
Round = tuple[int, float]

PURPOSE = "mixture"
#: Up to so many columns covariances are always full.
_FULL_COLUMNS = 16
#: Beyond, the covariance is cut down until the budget allows so many components.
_WANTED = 8


@dataclasses.dataclass(frozen=True)
class MixturePlan:
    """What a local fit will do.

    Attributes:
        components: The final number of components.
        rounds: For each release the number of components and its share of squared mu;
            the shares sum to one.
        noise: One over the mu of all releases together; zero without privacy.
        rows: The public number of rows.
        columns: The number of columns.
        block: Covariances are full among so many leading directions, diagonal elsewhere.
        recipe: The constants of the fit.

    Example:
        >>> plan = plan_mixture(Budget(1.0, 1e-5), rows=20_000, columns=3)
        >>> plan.shape, len(plan.events) == len(plan.rounds)
        ('full', True)
        >>> MixturePlan.from_dict(plan.to_dict()) == plan
        True
    """

    components: int
    rounds: tuple[Round, ...]
    noise: float
    rows: int
    columns: int
    block: int
    recipe: Recipe = DEFAULT

    @property
    def shape(self) -> Shape:
        """The form of the covariances."""
        if self.block == self.columns:
            return "full"
        return "low-rank" if self.block > 1 else "diagonal"

    def noise_of(self, release: int) -> float:
        """The standard deviation of the noise on each sum of one release."""
        return self.noise / math.sqrt(self.rounds[release][1])

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """One event per release.

        Guarantee:
            The responsibilities of a row sum to at most one and its moments have unit
            norm, so a row that comes, goes or is blanked out moves the stacked sums by
            at most one; replacing it does both and moves them by at most two.
        """
        if not self.noise:
            return ()
        purpose = PURPOSE if self.components > 1 else "Gaussian"
        return tuple(
            GaussianEvent(noise=self.noise_of(j), sensitivity=UNIT, purpose=purpose)
            for j in range(len(self.rounds))
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return dataclasses.asdict(self) | {"rounds": [list(pair) for pair in self.rounds]}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "MixturePlan":
        """Read back what ``to_dict`` wrote; anything else is refused."""
        try:
            fields = dict(description)
            fields["rounds"] = tuple((int(k), float(share)) for k, share in fields["rounds"])
            fields["recipe"] = Recipe(**fields["recipe"])
            return cls(**fields)
        except (TypeError, KeyError, ValueError) as problem:
            raise InputError("mixture plan cannot be read; write it with to_dict") from problem


def plan_mixture(
    budget: Budget,
    *,
    rows: int,
    columns: int,
    accountant: str = "pld",
    components: int | None = None,
    before: Sequence[Event] = (),
    share: float = 1.0,
    recipe: Recipe = DEFAULT,
) -> MixturePlan:
    """The plan that spends what ``before`` leaves of a budget, or a share of that.

    Args:
        budget: What may be spent in all.
        rows: The public number of rows.
        columns: The number of columns.
        accountant: Who prices the releases.
        components: How many components; by default as many as the budget can describe.
        before: What was or will be released besides.
        share: The part of squared mu that the mixture may use; the caller spends the rest.
        recipe: The constants of the fit.

    Guarantee:
        ``before`` and the plan's events together cost at most the budget.

    Example:
        >>> plan_mixture(Budget(float("inf"), 1e-5), rows=5000, columns=2).noise
        0.0
    """
    _check(rows, columns, components, share)
    whole = calibrate_noise(
        budget,
        lambda noise: [*before, GaussianEvent(noise=noise, sensitivity=UNIT, purpose=PURPOSE)],
        accountant=accountant,
    )
    noise = whole / math.sqrt(share)
    block = _block(rows, columns, noise, recipe)
    k = components or _affordable(rows, columns, block, noise, recipe)
    rounds = _rounds(k, columns, block, recipe)
    return MixturePlan(k, rounds, noise, rows, columns, block, recipe)


def _check(rows: int, columns: int, components: int | None, share: float) -> None:
    check_at_least("rows", rows, 1)
    check_at_least("columns", columns, 1)
    check_at_least("components", 1 if components is None else components, 1)
    if not 0 < share <= 1:
        raise InputError(f"share must be in (0, 1], got {share}; give the part of squared mu")


def _numbers(columns: int, block: int) -> float:
    """How many numbers describe one component."""
    return 1 + 2 * columns + block * (block - 1) / 2


def _affordable(rows: int, columns: int, block: int, noise: float, recipe: Recipe) -> int:
    """The number of components whose parameters stand out of the noise."""
    per_noise, per_rows = recipe.noise_per_component * noise, recipe.rows_per_component
    numbers = max(per_noise, per_rows) * _numbers(columns, block)
    return max(1, min(int(rows / numbers), recipe.most_per_column * columns))


def _block(rows: int, columns: int, noise: float, recipe: Recipe) -> int:
    """The largest block that still allows a mixture worth the name."""
    if columns <= _FULL_COLUMNS:
        return columns
    for block in range(columns, 1, -1):
        if _affordable(rows, columns, block, noise, recipe) >= _WANTED:
            return block
    return 1


def _rounds(k: int, columns: int, block: int, recipe: Recipe) -> tuple[Round, ...]:
    """Zoom in with one component, then share the rest in proportion to the components."""
    if k == 1:
        first = [(1, recipe.zoom_first)] * (recipe.zoom_steps - 1)
        return (*first, (1, 1 - recipe.zoom_first * len(first)))
    levels = _levels(k, recipe)
    whole = _numbers(columns, columns)
    zoom = max(recipe.zoom_share, whole / (whole + k * _numbers(columns, block)))
    each = recipe.zoom_share / recipe.zoom_steps
    first = [(1, each)] * (recipe.zoom_steps - 1)
    last = zoom - each * len(first)
    return (*first, (1, last), *((level, (1 - zoom) * level / sum(levels)) for level in levels))


def _levels(k: int, recipe: Recipe) -> list[int]:
    """The number of components at each release after the first Gaussian."""
    doublings = math.ceil(math.log2(k))
    if not recipe.splitting:
        return [k] * (recipe.level_steps * (doublings - 1) + recipe.last_steps)
    scout = 1 if recipe.scouting else 0
    growing = [2**level + scout for level in range(1, doublings) for _ in range(recipe.level_steps)]
    return growing + [k] * recipe.last_steps

"""The ways to fit a private mixture, by name; a new one is one class and one line."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, final

from dpflows.errors import InputError
from dpflows.mixtures.em import EMPlan, Fitted, fit_corrected, plan_corrected
from dpflows.mixtures.local import fit_local
from dpflows.mixtures.mixture import Rows
from dpflows.mixtures.park import fit_faithful
from dpflows.mixtures.schedule import MixturePlan, plan_mixture
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy

#: What the originals used where the caller names no number.
_COMPONENTS, _STEPS = 3, 10


@dataclasses.dataclass(frozen=True)
class Options:
    """What a caller may fix; ``None`` leaves it to the variant.

    Attributes:
        components: How many components.
        radius: Of a public ball that holds the rows, where the cube is [-1, 1]^d.
        composition: How the faithful variant adds up its parameters' epsilons.
        law: The faithful variant's noise, ``gaussian`` or ``laplace``.
    """

    components: int | None = None
    radius: float | None = None
    composition: str = "moments"
    law: str = "gaussian"


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan of some variant: what it releases, how large it is, how to carry it out.

    Attributes:
        events: Every release.
        components: The number of components.
        releases: How often the rows are passed over.
        details: Public choices by name, ready for JSON.
        plan: What the variant itself needs.
    """

    events: tuple[Event, ...]
    components: int
    releases: int
    details: dict[str, Any]
    plan: Any


class Variant(abc.ABC):
    """One way to fit a mixture to rows inside the cube [-1, 1]^d."""

    @abc.abstractmethod
    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """What the fit will release within the budget, after ``before``."""

    @abc.abstractmethod
    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Carry out a plan.

        Guarantee:
            The mixture is a function of the planned events, or it carries a stamp.
        """


@final
class Local(Variant):
    """EM in local frames with noise-aware gains and splitting."""

    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """As many components as the budget can describe."""
        plan = plan_mixture(
            budget,
            rows=rows,
            columns=columns,
            accountant=accountant,
            components=options.components,
            before=before,
        )
        return Planned(plan.events, plan.components, len(plan.rounds), plan.to_dict(), plan)

    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Fit in local frames."""
        plan: MixturePlan = planned.plan
        return Fitted(fit_local(rows, plan, entropy=entropy), plan.events, ())


@final
@dataclasses.dataclass(frozen=True)
class Stacked(Variant):
    """Plain DP-EM with noisy stacked sums.

    Attributes:
        law: ``gaussian`` with exact composition; ``laplace`` adds up epsilons.
    """

    law: str

    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """Ten equal steps."""
        plan = plan_corrected(
            budget,
            rows=rows,
            columns=columns,
            components=options.components or _COMPONENTS,
            steps=_STEPS,
            law=self.law,
            radius=options.radius,
            accountant=accountant,
            before=before,
        )
        details = dataclasses.asdict(plan)
        return Planned(plan.events, plan.components, plan.steps, details, plan)

    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Fit in one public ball."""
        plan: EMPlan = planned.plan
        return fit_corrected(rows, plan, entropy=entropy)


@final
class Faithful(Variant):
    """DP-EM as its authors released it. NOT PRIVATE."""

    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """No events: nothing it releases is covered by one."""
        if before:
            raise InputError("the faithful variant takes no other releases in its budget")
        components = options.components or _COMPONENTS
        radius = columns**0.5 if options.radius is None else options.radius
        settings = {
            "components": components,
            "steps": _STEPS,
            "composition": options.composition,
            "law": options.law,
            "radius": radius,
        }
        return Planned((), components, _STEPS + 1, settings, (budget, settings))

    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Fit with the authors' noise."""
        budget, settings = planned.plan
        return fit_faithful(rows, budget, **settings, entropy=entropy)


VARIANTS: dict[str, Variant] = {
    "local": Local(),
    "corrected": Stacked("gaussian"),
    "laplace": Stacked("laplace"),
    "faithful": Faithful(),
}

"""Budgets and guarantees, and the guarantee in plain language.

A ``Budget`` is what the curator allows; a ``Guarantee`` is what a finished release costs.
Neither holds a private value, so both may be published. ``privacy_statement`` writes the
guarantee for the person who is responsible for the data.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from dpflows.errors import InputError, displayable
from dpflows.privacy.events import (
    NEIGHBOURS,
    Event,
    Neighbours,
    SampledGaussianEvent,
    check_choice,
    event_from_dict,
)

Kind = Literal["bound", "estimate", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not positive; infinity is allowed and means no privacy."""
    if not epsilon > 0:
        raise InputError(f"epsilon must be positive, got {epsilon}")


def check_delta(delta: float) -> None:
    """Refuse a delta outside the open unit interval."""
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), for example 1 / (10 * rows); got {delta}")


@dataclasses.dataclass(frozen=True)
class Budget:
    """A privacy budget: epsilon and delta under a neighbour relation.

    Args:
        epsilon: Positive; ``inf`` means no privacy, and results are marked NOT PRIVATE.
        delta: In (0, 1); far below one over the number of rows.
        neighbours: The neighbour relation: which change of one person's data is protected.

    Guarantee:
        A budget itself guarantees nothing; whatever is planned within it costs at most ``epsilon``
        at ``delta`` under ``neighbours``.

    Example:
        >>> Budget(1.0, 1e-6).neighbours
        'zero-out'
        >>> Budget(float("inf"), 1e-6).is_private
        False
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_choice("neighbours", self.neighbours, NEIGHBOURS)

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)


def require_small_delta(budget: Budget, rows: int, *, allowed: bool = False) -> None:
    """Refuse a delta that would allow publishing a few complete rows.

    Args:
        budget: The budget; an unlimited one guarantees nothing and is not checked.
        rows: Public number of rows.
        allowed: Whether the curator accepts it; ``large_delta_caveats`` then says so.

    Guarantee:
        Unless it is allowed, delta is below one over the number of rows. A mechanism that publishes
        one random row satisfies such a delta and does not protect that person.

    Example:
        >>> require_small_delta(Budget(1.0, 0.2), 50)
        Traceback (most recent call last):
        dpflows.errors.InputError: delta must be below 1 / rows = 0.02, got 0.2; give a smaller ...
    """
    if allowed or not _is_large(budget, rows):
        return
    raise InputError(
        f"delta must be below 1 / rows = {1 / rows:.4g}, got {budget.delta:g}; give a smaller "
        f"delta, for example {1 / (10 * rows):.2g}, or allow it with allow_large_delta=True "
        "(--allow-large-delta); the certificate will state it"
    )


def large_delta_caveats(budget: Budget, rows: int) -> tuple[str, ...]:
    """The caveats of a certificate whose delta was allowed to be large.

    Example:
        >>> large_delta_caveats(Budget(1.0, 1e-6), 50)
        ()
    """
    if not _is_large(budget, rows):
        return ()
    return (
        f"delta {budget.delta:.3g} is not below one over the number of rows ({rows:,}), and the "
        "curator accepted it. Publishing the whole row of a randomly drawn person would satisfy "
        "such a delta: the guarantee does not exclude it.",
    )


def _is_large(budget: Budget, rows: int) -> bool:
    return bool(budget.is_private and rows > 0 and budget.delta >= 1 / rows)


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """The privacy guarantee of a release.

    Attributes:
        epsilon: The cost of ``events`` at ``delta`` under ``neighbours``.
        kind: ``bound`` is proven, ``estimate`` may understate, ``none`` guarantees nothing.
        replace_one_epsilon: The epsilon for replace-one neighbours, if known.
        versions: The libraries that computed it.
        stamps: Warnings that must accompany everything made by this release.
        caveats: Sentences that the reader of the certificate must know, such as a delta that
            was allowed to be large. Unlike a stamp, a caveat leaves the guarantee valid.

    Guarantee:
        Holds for the stated events only. With a stamp, or with ``kind`` other than
        ``bound``, nothing is guaranteed.

    Example:
        >>> promise = Guarantee(1.0, 1e-6, "zero-out", "pld", "bound", (), None, {})
        >>> promise.is_private, Guarantee.from_dict(promise.to_dict()) == promise
        (True, True)
    """

    epsilon: float
    delta: float
    neighbours: Neighbours
    accountant: str
    kind: Kind
    events: tuple[Event, ...]
    replace_one_epsilon: float | None
    versions: dict[str, str]
    stamps: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def is_private(self) -> bool:
        """Whether the guarantee is proven and finite, and no stamp voids it."""
        return self.kind == "bound" and math.isfinite(self.epsilon) and not self.stamps

    @property
    def budget(self) -> Budget:
        """The guarantee as a budget."""
        return Budget(self.epsilon, self.delta, self.neighbours)

    def privacy_statement(self) -> str:
        """The guarantee in plain language, for the person who is responsible for the data.

        Example:
            >>> promise = Guarantee(1.0, 1e-6, "zero-out", "pld", "bound", (), 1.9, {})
            >>> "differential privacy" in promise.privacy_statement()
            True
        """
        return privacy_statement(self)

    def to_dict(self) -> dict[str, Any]:
        """A description that strict JSON can hold; an infinite epsilon becomes ``None``."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "epsilon": _finite(self.epsilon),
            "replace_one_epsilon": _finite(self.replace_one_epsilon),
            "events": [event.to_dict() for event in self.events],
            "versions": dict(self.versions),
            "stamps": list(self.stamps),
            "caveats": list(self.caveats),
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Guarantee":
        """Read back what ``to_dict`` wrote; anything else is refused."""
        try:
            return cls._read(dict(description))
        except (
            TypeError,
            KeyError,
            AttributeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as problem:
            reason = " ".join(str(problem).split())
            raise InputError(f"guarantee description cannot be read: {reason}") from problem

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> "Guarantee":
        check_choice("kind", fields["kind"], KINDS)
        check_choice("neighbours", fields["neighbours"], NEIGHBOURS)
        check_delta(fields["delta"])
        fields["epsilon"] = _read_epsilon(fields["epsilon"], math.inf)
        fields["replace_one_epsilon"] = _read_epsilon(fields["replace_one_epsilon"], None)
        fields["events"] = _read_events(fields["events"])
        fields["versions"] = {
            str(name): str(version) for name, version in fields["versions"].items()
        }
        for name in ("stamps", "caveats"):
            fields[name] = tuple(str(words) for words in fields.get(name, ()))
        return cls(**fields)


def _read_epsilon(value: Any, missing: float | None) -> Any:
    if value is None:
        return missing
    if type(value) not in (int, float) or not value >= 0:
        raise InputError("epsilon must be a number and not negative")
    return float(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _read_events(descriptions: Sequence[dict[str, Any]]) -> tuple[Event, ...]:
    return tuple(event_from_dict(description) for description in descriptions)


_RELATIONS: dict[Neighbours, str] = {
    "zero-out": "is replaced by an empty row (the number of rows is public)",
    "add-remove": "is added or removed",
    "replace-one": "is replaced by any other row",
}

_COVERAGE = (
    "Against whom: anyone who sees the released model and everything computed from it, whatever "
    "else they know, including all other rows.\n"
    "What it does not cover: the declared schema, bounds and category names (and, unless rows may "
    "be added, their number), which are taken as public; a person with more than one row, because "
    "one row per person is assumed; the fact that a table was refused or a fit failed, which may "
    "depend on the rows; facts about groups that a model trained without this person would show as "
    "well; "
    "other releases from the same rows, whose costs add up; and people with access to the original "
    "table, its logs or the computer."
)
# What the proof assumes of the machine's numbers.
_ARITHMETIC = (
    "The guarantee holds in finite precision: noise is sampled exactly, or rounded to a public "
    "lattice from normals whose distance from exact ones is included in delta. The proof assumes a "
    "secure system random generator and cipher (ChaCha20), and elementary functions that are "
    "accurate to a few last places."
)
_OLD_ARITHMETIC = (
    "The noise of gradient steps was drawn in single precision by version 0.1: the analysis "
    "assumes exact arithmetic, and the low bits of the parameters may reveal more. Fit the model "
    "again."
)


def privacy_statement(guarantee: "Guarantee") -> str:
    """The guarantee in plain language; the first line is the stamp if there is one."""
    if guarantee.stamps:
        return "\n".join(map(displayable, guarantee.stamps)) + "\n" + _void(guarantee)
    if guarantee.kind == "none" or not math.isfinite(guarantee.epsilon):
        return "NOT PRIVATE: no noise protects the people in the table\n" + _void(guarantee)
    scope = f"{_COVERAGE} {_arithmetic(guarantee)}"
    return "\n".join([_headline(guarantee), _meaning(guarantee), *_footnotes(guarantee), scope])


def _arithmetic(guarantee: "Guarantee") -> str:
    is_old = guarantee.versions.get("dpflows", "").startswith("0.1.")
    has_steps = any(isinstance(event, SampledGaussianEvent) for event in guarantee.events)
    return _OLD_ARITHMETIC if is_old and has_steps else _ARITHMETIC


def _headline(guarantee: "Guarantee") -> str:
    lead = f"({_rounded_up(guarantee.epsilon)}, {guarantee.delta:.3g})-differential privacy"
    return f"{lead}, neighbours: {guarantee.neighbours}, accountant: {_named(guarantee)}."


def _named(guarantee: "Guarantee") -> str:
    return displayable(guarantee.accountant)


def _meaning(guarantee: "Guarantee") -> str:
    return (
        f"Who is protected: every person who contributed one row. When that row "
        f"{_RELATIONS[guarantee.neighbours]}, {_odds(guarantee)}."
    )


def _odds(guarantee: "Guarantee") -> str:
    factor = f"e^epsilon = {_rounded_up(math.exp(min(guarantee.epsilon, 700)))}"
    up_to = f"up to delta = {guarantee.delta:.3g}"
    return f"the probability of any outcome changes by at most a factor {factor}, {up_to}"


def _rounded_up(value: float) -> str:
    """Four digits, rounded up, since a cost must not be understated."""
    if value == 0:
        return "0"
    # below this the unit itself would vanish
    value = max(value, 1e-300)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit - 1e-9) * unit:.4g}"


def _footnotes(guarantee: "Guarantee") -> list[str]:
    notes = []
    if guarantee.kind == "estimate":
        notes.append("This is an ESTIMATE that may understate the cost; it is not a guarantee.")
    if guarantee.neighbours != "replace-one":
        notes.append(_replace_one(guarantee.replace_one_epsilon, guarantee.delta))
    return notes + [f"Caveat: {displayable(caveat)}" for caveat in guarantee.caveats]


def _replace_one(epsilon: float | None, delta: float) -> str:
    if epsilon is None or not math.isfinite(epsilon):
        return "For replacing a row by any other row no finite epsilon is known."
    figure = f"epsilon is {_rounded_up(epsilon)} at delta {delta:.3g}"
    return f"For replacing a row by any other row, {figure}."


def _void(guarantee: "Guarantee") -> str:
    if not math.isfinite(guarantee.epsilon):
        return "Treat this release like the original table: it protects no one in the table."
    epsilon = _rounded_up(guarantee.epsilon)
    return (
        f"Without the above, the accounting would have given epsilon {epsilon} at "
        f"delta {guarantee.delta:.3g} ({guarantee.neighbours}). Treat this release like the "
        "original table: it protects no one in the table."
    )

"""A guarantee in plain words, for the person who answers for the data."""

import math
from typing import TYPE_CHECKING

from dpflows.display import displayable
from dpflows.privacy.events import Neighbours, SampledGaussianEvent

if TYPE_CHECKING:
    from dpflows.privacy.guarantee import Guarantee

_RELATIONS: dict[Neighbours, str] = {
    "zero-out": "is blanked out (the number of rows is public)",
    "add-remove": "is added or taken away",
    "replace-one": "is exchanged for any other row",
}

_COVERAGE = (
    "Against whom: anyone who sees the released model and everything made from it, whatever else "
    "they know, even every other row.\n"
    "What it does not cover: the declared schema, bounds and category names (and, unless rows may "
    "be added, their number), which are taken as public; a person with more than one row, because "
    "one row per person is assumed; the fact that a table was refused or a fit failed, which may "
    "depend on the rows; facts about groups that a model without this person would show as well; "
    "other releases from the same rows, whose costs add up; and whoever holds the original "
    "table, logs or machine."
)
# What the proof assumes of the machine's numbers.
_ARITHMETIC = (
    "Noise is proven in finite precision: it is sampled exactly, or rounded to a public lattice "
    "from normals whose distance from true ones is part of delta. The proof assumes a sound "
    "system generator and cipher (ChaCha20), and elementary functions right to a few last places."
)
_OLD_ARITHMETIC = (
    "The noise of gradient steps was drawn in single precision by version 0.1: the analysis "
    "assumes exact arithmetic, which low bits of the parameters may contradict. Fit the model "
    "again."
)


def privacy_statement(guarantee: "Guarantee") -> str:
    """The guarantee in plain words; its first line is the stamp if there is one."""
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
    """Four digits, never below the value: a promise must not shrink in print."""
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
        return "For exchanging a row for any other row no finite epsilon is known."
    figure = f"epsilon is {_rounded_up(epsilon)} at delta {delta:.3g}"
    return f"For exchanging a row for any other row, {figure}."


def _void(guarantee: "Guarantee") -> str:
    if not math.isfinite(guarantee.epsilon):
        return "Treat this release like the original table: nobody in it is protected."
    epsilon = _rounded_up(guarantee.epsilon)
    return (
        f"Without the above, the accounting would have given epsilon {epsilon} at "
        f"delta {guarantee.delta:.3g} ({guarantee.neighbours}). Treat this release like the "
        "original table: nobody in it is protected."
    )

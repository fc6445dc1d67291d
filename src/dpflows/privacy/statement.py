"""A guarantee in plain words, for the person who answers for the data."""

import math
from typing import TYPE_CHECKING

from dpflows.privacy.events import Neighbours

if TYPE_CHECKING:
    from dpflows.privacy.guarantee import Guarantee

_RELATIONS: dict[Neighbours, str] = {
    "zero-out": "a person's row being blanked out (the number of rows is public)",
    "add-remove": "a person's row being there or not there",
    "replace-one": "a person's row being exchanged for any other row",
}

_COVERAGE = (
    "Against whom: anyone who sees the released model and everything made from it, whatever else "
    "they know, even every other row.\n"
    "What it does not cover: the declared schema, bounds and category names and the number of "
    "rows, which are taken as public; a person who contributes several rows, unless a privacy "
    "unit was declared; facts about groups that a model without this person would show as well; "
    "other releases from the same rows, whose costs add up; and whoever holds the original "
    "table, logs or machine. The analysis assumes exact arithmetic and sound system randomness."
)


def privacy_statement(guarantee: "Guarantee") -> str:
    """The guarantee in plain words; its first line is the stamp if there is one."""
    if guarantee.stamps:
        return "\n".join(guarantee.stamps) + "\n" + _void(guarantee)
    if guarantee.kind == "none" or not math.isfinite(guarantee.epsilon):
        return "NOT PRIVATE: no noise protects the people in the table\n" + _void(guarantee)
    return "\n".join([_headline(guarantee), _meaning(guarantee), *_footnotes(guarantee), _COVERAGE])


def _headline(guarantee: "Guarantee") -> str:
    lead = f"({guarantee.epsilon:.4g}, {guarantee.delta:.3g})-differential privacy"
    return f"{lead}, neighbours: {guarantee.neighbours}, accountant: {guarantee.accountant}."


def _meaning(guarantee: "Guarantee") -> str:
    return (
        f"Who is protected: every person who contributed one row. {_odds(guarantee)} for "
        f"{_RELATIONS[guarantee.neighbours]}, except with a chance of about {guarantee.delta:.3g}."
    )


def _odds(guarantee: "Guarantee") -> str:
    factor = math.exp(min(guarantee.epsilon, 700))
    return f"The odds of anything that can be observed change by a factor of at most {factor:.4g}"


def _footnotes(guarantee: "Guarantee") -> list[str]:
    notes = []
    if guarantee.kind == "estimate":
        notes.append("This is an ESTIMATE that may understate the cost; it is not a guarantee.")
    if guarantee.neighbours != "replace-one":
        notes.append(_replace_one(guarantee.replace_one_epsilon, guarantee.delta))
    return notes


def _replace_one(epsilon: float | None, delta: float) -> str:
    if epsilon is None or not math.isfinite(epsilon):
        return "For exchanging a row for any other row no finite epsilon is known."
    return f"For exchanging a row for any other row, epsilon is {epsilon:.4g} at delta {delta:.3g}."


def _void(guarantee: "Guarantee") -> str:
    if not math.isfinite(guarantee.epsilon):
        return "Treat this release like the original table: nobody in it is protected."
    return (
        f"Without the above, the accounting would have given epsilon {guarantee.epsilon:.4g} at "
        f"delta {guarantee.delta:.3g} ({guarantee.neighbours}). Treat this release like the "
        "original table: nobody in it is protected."
    )

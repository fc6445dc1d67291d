"""Tables of every kind, with missing cells and hostile values, and what is declared of them."""

import numpy as np
import pandas as pd

from dpflows.table.columns import Column, Constraint
from dpflows.table.schema import Schema

#: One person's label. It is not declared, and must come out nowhere.
SENTINEL = "Xq7-only-here"
SEXES, WARDS = ("F", "M"), ("north", "south", "east")
#: The seconds of 2020-01-01 and 2021-12-31.
FIRST_DAY, LAST_DAY = 1_577_836_800, 1_640_908_800

EVERY_KIND = Schema(
    (
        Column("ward", "categorical", categories=WARDS, nullable=True),
        Column("sex", "categorical", categories=SEXES),
        Column("smoker", "boolean", nullable=True),
        Column("admitted", "date", min=FIRST_DAY, max=LAST_DAY),
        Column("age", "integer", min=0, max=110, nullable=True),
        Column("weight", "continuous", min=0.0, max=250.0, nullable=True),
        Column("cost", "integer", min=0, max=1_000_000, spikes=(0.0,)),
        Column("site", "categorical", categories=("only",)),
    ),
    target="sex",
    constraints=(Constraint("weight <= 200"), Constraint("sex = F -> age >= 1")),
)


def frame(rows=600, rng=None):
    """A pandas frame that the schema above describes."""
    rng = rng or np.random.default_rng()
    is_male = rng.random(rows) < 0.3
    age = pd.array(rng.integers(1, 100, rows), dtype="Int64")
    age[rng.random(rows) < 0.1] = pd.NA
    weight = np.where(is_male, 85.0, 65.0) + 8 * rng.normal(size=rows)
    weight[rng.random(rows) < 0.1] = np.nan
    smoker = pd.array(rng.random(rows) < 0.2, dtype="boolean")
    smoker[rng.random(rows) < 0.3] = pd.NA
    ward = np.where(rng.random(rows) < 0.1, None, np.array(WARDS, object)[rng.integers(0, 3, rows)])
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 730, rows), unit="D")
    cost = np.where(rng.random(rows) < 0.7, 0, rng.integers(1, 100_000, rows))
    return pd.DataFrame(
        {
            "ward": pd.Categorical(ward, categories=WARDS),
            "sex": pd.Series(np.where(is_male, "M", "F"), dtype=object),
            "smoker": smoker,
            "admitted": days.astype("datetime64[s]"),
            "age": age,
            "weight": weight,
            "cost": cost.astype("int32"),
            "site": pd.Series(["only"] * rows, dtype="string"),
        }
    )


def hostile():
    """The same table with values beyond what is declared."""
    rows = frame()
    rows["ward"] = rows["ward"].astype(object)
    rows.loc[0, "ward"] = SENTINEL
    rows.loc[1, "sex"] = SENTINEL
    rows.loc[2, "age"] = 10_000
    rows.loc[3, "weight"] = 1e300
    rows.loc[4, "cost"] = -5
    rows.loc[5, "admitted"] = pd.Timestamp("1900-01-01")
    return rows


def all_missing():
    """The same table with nothing in the columns that may be empty."""
    rows = frame()
    for name in ("ward", "smoker", "age", "weight"):
        rows[name] = pd.Series([None] * len(rows), dtype=rows[name].dtype)
    return rows


TABLES = {"every kind": frame, "hostile": hostile, "all missing": all_missing}

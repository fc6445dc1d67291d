"""Rules that rows keep: what they mean, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.table import Column, Schema
from dpflows.table.columns import MAX_COMPARISONS, MAX_LENGTH, Constraint

SCHEMA = Schema(
    (
        Column("sex", "categorical", categories=("F", "M", "it's", "both ways"), nullable=True),
        Column("partner", "categorical", categories=("F", "M", "none")),
        Column("pregnant", "boolean", nullable=True),
        Column("education-num", "integer", min=0, max=16),
        Column("age", "integer", min=0, max=120, nullable=True),
        Column("start", "date", min=0, max=1e9, nullable=True),
        Column("end", "date", min=0, max=1e9),
        Column("free", "categorical"),
        Column("a name", "continuous", min=-9, max=9),
    )
)
ROWS = {
    "sex": np.array(["F", "M", None, "it's"], dtype=object),
    "partner": np.array(["M", "M", "none", "F"], dtype=object),
    "pregnant": np.array([True, True, True, None], dtype=object),
    "education-num": np.array([9.0, 3.0, 9.0, 0.0]),
    "age": np.array([17.0, 18.0, np.nan, 90.0]),
    "start": np.array(["1970-01-02", "1970-01-05", "NaT", "1970-01-01"], dtype="datetime64[us]"),
    "end": np.array(["1970-01-02", "1970-01-04", "1970-01-09", "1970-01-02"], "datetime64[us]"),
    "a name": np.array([-5.0, 0.0, 5.0, 1e-3]),
}

MEANING = {
    "age >= 18": [False, True, True, True],
    "age>=18": [False, True, True, True],
    "age < 18.5": [True, True, True, False],
    "age != 17": [False, True, True, True],
    "age == 17": [True, False, True, False],
    "start <= end": [True, False, True, True],
    "start > 1970-01-01": [True, True, True, False],
    "start > '1970-01-01T12:00:00'": [True, True, True, False],
    "sex = F": [True, False, True, False],
    "sex = 'it''s'": [False, False, True, True],
    "sex != 'both ways'": [True, True, True, True],
    "sex != partner": [True, False, True, True],
    "pregnant = true": [True, True, True, True],
    "pregnant = false": [False, False, False, True],
    "pregnant = true -> sex = F": [True, False, True, True],
    "education-num = 9 -> sex = F": [True, True, True, True],
    "education-num=9->age>17": [False, True, True, True],
    # a missing condition asks for nothing, and a missing demand is met
    "age > 0 -> education-num = 0": [False, False, True, True],
    "pregnant = true and sex = F -> age >= 18": [False, True, True, True],
    "age >= 18 and education-num < 5": [False, True, False, True],
    '"a name" > -5': [False, True, True, True],
    '"a name" > -5 -> "education-num" != 3': [True, False, True, True],
    '"education-num" <= "age"': [True, True, True, True],
}


@pytest.mark.parametrize("text", MEANING)
def test_meaning(text):
    rule = Constraint(text)
    rule.check(SCHEMA)
    assert rule.holds(ROWS, SCHEMA).tolist() == MEANING[text]


def test_the_columns_of_a_rule():
    rule = Constraint("pregnant = true and sex != partner -> age > 3")
    assert rule.columns(SCHEMA) == {"pregnant", "sex", "partner", "age"}


FORM = "constraint must read like"
REFUSED = {
    "4711 < age": "what stands before '<' must be a column of the schema",
    "'sex' = F": FORM,
    "height4711 = 3": "what stands before '=' must be a column",
    'age = "4711"': "column 'age' is compared with no column of the schema",
    "sex = 4711": "column 'sex' is compared with a label that its categories do not hold",
    "free = 4711": "column 'free' is compared with a label that its categories do not hold",
    "sex < F": "column 'sex' is categorical, which has no order; use = or !=",
    "pregnant >= true": "column 'pregnant' is boolean, which has no order",
    "pregnant = 4711": "must be compared with true, false or a column of truth values",
    "age < x4711": "column 'age' must be compared with a number or a column of numbers",
    "age < nan": "column 'age' must be compared with a number",
    "age < 1e999": "column 'age' must be compared with a number",
    "start < 4711": "column 'start' must be compared with a date such as 2020-12-31",
    "start < age": "columns 'start' and 'age' are date and integer, which cannot be compared",
    "age": FORM,
    "age <": FORM,
    "age < 4711 and": FORM,
    "age < 4711 or age > 4712": FORM,
    "age < 4711 age > 4712": FORM,
    "age < > 4711": FORM,
    "-> age < 4711": FORM,
    "age < 4711 ->": FORM,
    "age < '4711": FORM,
    "age ! 4711": FORM,
    "a -> b -> c": "at most one arrow",
    " ": "1 to 2000 characters",
    "age < 4711".ljust(MAX_LENGTH) + " and age > 4712": "1 to 2000 characters",
    " and ".join(["age < 4711"] * (MAX_COMPARISONS + 1)): "16 comparisons",
    "__import__('os').system('4711')": FORM,
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_refusals_quote_no_value(text):
    with pytest.raises(InputError) as caught:
        Constraint(text).check(SCHEMA)
    assert REFUSED[text] in str(caught.value)
    assert "4711" not in str(caught.value)
    assert "\n" not in str(caught.value)


PIECES = st.sampled_from(
    [*SCHEMA.names, *"<>=!'\"-,()", "->", "<=", " and ", "and", "4711", "true", " ", "''", "\n"]
)


@given(text=st.lists(PIECES, max_size=12).map("".join))
def test_whatever_is_written_is_a_rule_or_a_refusal(text):
    refusal = ""
    try:
        rule = Constraint(text)
        rule.check(SCHEMA)
    except InputError as error:
        refusal = str(error)
    assert "4711" not in refusal
    if refusal:
        return
    answers = rule.holds(ROWS, SCHEMA)
    assert answers.shape == (4,)
    assert answers.dtype == bool


def test_a_schema_says_which_rule_is_wrong():
    with pytest.raises(InputError, match="constraint 2: what stands before"):
        Schema(SCHEMA.columns, constraints=(Constraint("age > 3"), Constraint("4711 > 3")))

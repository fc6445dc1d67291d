"""The page of an evaluation: self-contained, escaped, and public where it says so."""

import dataclasses
import html.parser
import itertools
import json

import numpy as np
import pytest

from dpflows.evaluation.measures import INTERNAL_STAMP, Coding, even_coding_of
from dpflows.evaluation.private import plan_evaluation
from dpflows.evaluation.report import (
    MEASURES,
    MOST_BARS,
    bars,
    element,
    matrix,
    render,
    shortened,
    shown,
)
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from evaluation.mixed import SCHEMA, fresh_rows, judged, table_of

#: What a page is made of; nothing that runs or loads.
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "span", "i"}
TAGS |= {"section", "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td"}
TAGS |= {"svg", "rect", "text"}
ATTRIBUTES = {"charset", "http-equiv", "content", "lang", "class", "viewbox", "width", "height"}
ATTRIBUTES |= {"role", "aria-label", "x", "y", "text-anchor", "transform", "fill-opacity"}
#: What learners found elsewhere.
LEARNED = {"prediction": {"auc": 0.8, "auc_of_real_rows": 0.85}, "detection": {"auc": 0.55}}
HOSTILE = "</title>,</text></style><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&$\\"


class Reader(html.parser.HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, text):
        self.text.append(text)


def internal(subject) -> dict:
    quick = [name for name in MEASURES if name not in LEARNED]
    figures = {name: MEASURES[name].of(subject) for name in quick} | LEARNED
    return {"internal": True, "stamps": [INTERNAL_STAMP], "rows": 300, "figures": figures}


def released(subject) -> dict:
    plan = plan_evaluation(Budget(1.0, 1e-6), rows=subject.table.rows, columns=6)
    guarantee = plan.guarantee()
    return {
        "internal": False,
        "stamps": [],
        "rows": subject.table.rows,
        "figures": plan.release(subject, Entropy.from_os()),
        "guarantee": guarantee.to_dict() | {"is_private": True},
        "plan": plan.to_dict(),
    }


def hostile_schema():
    columns = list(SCHEMA.columns)
    columns[2] = dataclasses.replace(columns[2], name=f"<script>{HOSTILE}", unit=HOSTILE)
    columns[5] = dataclasses.replace(columns[5], categories=("Rome", HOSTILE, "elsewhere"))
    return dataclasses.replace(SCHEMA, columns=tuple(columns))


def hostile_subject(schema=None):
    schema = schema or hostile_schema()
    return judged(dict(zip(schema.names, fresh_rows(300).values(), strict=True)), schema)


@pytest.fixture(scope="module")
def page():
    subject = judged(fresh_rows(300))
    return render(internal(subject), subject)


def test_a_page_loads_nothing_and_runs_nothing(page):
    found = Reader(page)
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert "default-src 'none'" in page
    assert not any(word in page for word in ("http:", "https:", "url(", "@import", "script"))


def test_an_internal_page_says_so_and_shows_both_sides(page):
    found = Reader(page)
    assert INTERNAL_STAMP in found.text
    assert page.index("INTERNAL") < page.index("Privacy guarantee of the model")
    assert {"real rows", "generated rows"} <= set(found.text)
    for drawn in ("real", "generated", "pair"):
        assert f'<rect class="{drawn}"' in page
    words = "".join(found.text)
    assert "(1, 1e-06)-differential privacy" in words
    for name in SCHEMA.names:
        assert name in found.text


def test_names_and_labels_stay_text():
    subject = hostile_subject()
    page = render(internal(subject), subject)
    found = Reader(page)
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert f"<script>{HOSTILE}" in found.text
    assert shortened(HOSTILE) in found.text


def test_the_search_for_tags_has_power():
    found = Reader(f"<p>{HOSTILE}</p>")
    assert "script" in found.tags - TAGS
    assert "onerror" in found.attributes - ATTRIBUTES


def test_a_public_page_is_no_function_of_the_rows():
    """Same model, same released figures, other rows: the same page, byte for byte."""
    ours = judged(fresh_rows(300))
    found = released(ours)
    page = render(found, ours)
    theirs = dataclasses.replace(ours, table=table_of(fresh_rows(300)))
    assert render(found, theirs) == page
    assert "INTERNAL" not in page
    assert "real rows" not in page
    assert 'class="real"' not in page
    assert "Privacy guarantee for the 300 rows of this evaluation" in page
    assert "Noise alone would show" in page


def test_an_internal_page_is_a_function_of_the_rows():
    """The twin: were the rows used for a public page, the test above would notice."""
    ours = judged(fresh_rows(300))
    theirs = dataclasses.replace(ours, table=table_of(fresh_rows(300)))
    found = internal(ours)
    assert render(found, theirs) != render(found, ours)


def test_many_bins_are_taken_together():
    labels = tuple(f"label {i}" for i in range(200))
    coding = Coding(Column("x", "categorical", categories=labels))
    shares = (np.arange(coding.size) / 20_100).tolist()
    drawn = shown(bars(coding, {"real": shares[::-1], "generated": shares}))
    assert drawn.count('class="generated"') == MOST_BARS
    assert f"{coding.size - MOST_BARS + 1} others" in drawn


def test_pictures_of_hundreds_of_columns_are_bounded():
    names = [f"column {i}" for i in range(200)]
    errors = {pair: 0.5 for pair in itertools.combinations(names, 2)}
    assert shown(matrix(names, errors)).count("<rect") == 60 * 59 // 2


def test_pictures_have_bins_of_one_width():
    column = Column("x", "continuous", min=0, max=100, nullable=True)
    coding = even_coding_of(column, np.linspace(0, 10, 1000), 10)
    assert np.ptp(np.diff(coding.cuts)) < 1e-9
    assert coding.cuts[-1] < 10
    assert even_coding_of(column, np.full(3, np.nan), 10).size == 11


def test_pictures_of_years_are_cut_at_midnight():
    rows = fresh_rows(500)["seen"] + np.timedelta64(5, "h")
    coding = even_coding_of(SCHEMA.column("seen"), rows, 10)
    assert not any("T" in name for name in coding.names)


def test_text_beside_elements_is_kept_in_order():
    made = element("p", "a", element("b", "c"), "<d>", "e", data_x_="1")
    assert shown(made) == '<p data-x="1">a<b>c</b>&lt;d&gt;e</p>'


def test_the_figures_in_the_page_are_those_of_the_document(page):
    subject = judged(fresh_rows(300))
    found = json.loads(json.dumps(internal(subject)))
    value = found["figures"]["total-variation"]["sex"]
    assert f"{value:.4f}" in render(found, subject)

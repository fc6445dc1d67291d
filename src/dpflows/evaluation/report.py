"""All measures by name, and the HTML report of an evaluation.

The report is one page without scripts or external resources; its elements escape their text.

Guarantee:
    The page of a private evaluation is made of its released figures, the model's guarantee
    and rows that the model generates. Only an INTERNAL page is made from the rows.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from dpflows.evaluation.fidelity import (
    PAIR_BINS,
    Correlations,
    Kolmogorov,
    PairCells,
    TotalVariation,
    TripleCells,
    joined,
    shares_of,
)
from dpflows.evaluation.learners import Detection, Prediction
from dpflows.evaluation.measures import (
    Coding,
    Figures,
    LogLikelihood,
    Measure,
    Subject,
    even_coding_of,
)
from dpflows.evaluation.private import noise_note
from dpflows.privacy.guarantee import Guarantee

Element = ElementTree.Element

#: Bars of one picture; the bins with the fewest generated rows are taken together.
MOST_BARS = 24
#: Columns of the picture of pairs.
MOST_ACROSS = 60
#: Characters of a name in a drawing; the whole name appears under the pointer.
NAME_LENGTH = 26

_LINE, _LEFT, _BAR, _CELL = 20, 180, 190, 22


def element(tag: str, *content: Element | str, **attributes: object) -> Element:
    """An HTML element with its content; text is escaped.

    Args:
        tag: Such as ``td``.
        content: Elements and text, in order.
        attributes: Underscores at the end are dropped, others become hyphens.

    Example:
        >>> shown(element("b", "<script>", class_="x"))
        '<b class="x">&lt;script&gt;</b>'
    """
    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    made = Element(tag, {names[key]: str(value) for key, value in attributes.items()})
    for part in content:
        if isinstance(part, str):
            _append_text(made, part)
        else:
            made.append(part)
    return made


def shown(page: Element) -> str:
    """An element as HTML."""
    return ElementTree.tostring(page, encoding="unicode", method="html")


def shortened(name: str) -> str:
    """A name shortened to fit into a plot.

    Example:
        >>> shortened("short"), len(shortened("x" * 99))
        ('short', 26)
    """
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "\u2026"


def bars(coding: Coding, shares: Mapping[str, Sequence[float]]) -> Element:
    """The shares of a column's bins, one bar for each side.

    Args:
        coding: The bins.
        shares: Of each side, one per bin; ``generated`` is one of the sides.
    """
    lines = _grouped(coding, shares)
    longest = max((max(values) for _, values in lines), default=0.0) or 1.0
    drawn = [_bar_line(i, line, longest, list(shares)) for i, line in enumerate(lines)]
    size = (_LEFT + _BAR + 60, _LINE * len(lines) + 4)
    label = f"Shares of the bins of column {coding.column.name}"
    return _drawing(size, label, list(itertools.chain.from_iterable(drawn)))


def matrix(names: Sequence[str], errors: Mapping[tuple[str, str], float]) -> Element:
    """Errors of pairs as a triangle of coloured cells."""
    names = list(names)[:MOST_ACROSS]
    largest = max(errors.values(), default=0.0) or 1.0
    # room for the longest name above, which is written aslant
    top = 20 + 5 * max(len(shortened(name)) for name in names)
    drawn = [_row_name(i, name, top) for i, name in enumerate(names)]
    drawn += [_column_name(i, name, top) for i, name in enumerate(names[:-1])]
    for (i, first), (j, second) in itertools.combinations(enumerate(names), 2):
        words = f"{first}, {second}: {errors[first, second]:.4f}"
        place = _LEFT + _CELL * i, top + _CELL * j
        drawn.append(_cell(place, words, errors[first, second] / largest))
    size = (_LEFT + _CELL * len(names) + top, _CELL * len(names) + top)
    return _drawing(size, "Errors of pairs of columns", drawn)


def _append_text(made: Element, text: str) -> None:
    if len(made):
        made[-1].tail = (made[-1].tail or "") + text
    else:
        made.text = (made.text or "") + text


def _drawing(size: tuple[int, int], label: str, content: Sequence[Element]) -> Element:
    box = f"0 0 {size[0]} {size[1]}"
    return element(
        "svg", *content, viewBox=box, width=size[0], height=size[1], role="img", aria_label=label
    )


def _grouped(
    coding: Coding, shares: Mapping[str, Sequence[float]]
) -> list[tuple[str, list[float]]]:
    """The bins in order, or the most frequent of them and one for the rest."""
    lines = [
        (name, [float(side[i]) for side in shares.values()]) for i, name in enumerate(coding.names)
    ]
    if len(lines) <= MOST_BARS:
        return lines
    own = list(shares).index("generated")
    order = sorted(range(len(lines)), key=lambda i: -lines[i][1][own])
    kept, rest = sorted(order[: MOST_BARS - 1]), order[MOST_BARS - 1 :]
    total = [sum(lines[i][1][side] for i in rest) for side in range(len(shares))]
    return [*(lines[i] for i in kept), (f"{len(rest)} others", total)]


def _bar_line(
    number: int, line: tuple[str, list[float]], longest: float, sides: list[str]
) -> list[Element]:
    name, values = line
    top, thickness = _LINE * number + 2, (_LINE - 4) / len(values)
    words = f"{name}: " + ", ".join(f"{s} {v:.4f}" for s, v in zip(sides, values, strict=True))
    drawn = [_text(shortened(name), _LEFT - 8, top + 12, words, anchor="end")]
    for i, (side, value) in enumerate(zip(sides, values, strict=True)):
        size = {"width": f"{_BAR * value / longest:.1f}", "height": f"{thickness - 0.5:.1f}"}
        place = {"x": _LEFT, "y": f"{top + i * thickness:.1f}"}
        drawn.append(element("rect", element("title", words), class_=side, **place, **size))
    end = _LEFT + _BAR * max(values) / longest + 6
    return [*drawn, _text(f"{100 * values[-1]:.1f}%", end, top + 12, words)]


def _text(text: str, x: float, y: float, full: str, *, anchor: str = "start") -> Element:
    return element("text", text, element("title", full), x=f"{x:.1f}", y=y, text_anchor=anchor)


def _row_name(i: int, name: str, top: int) -> Element:
    return _text(shortened(name), _LEFT - 8, top + _CELL * i + 15, name, anchor="end")


def _column_name(i: int, name: str, top: int) -> Element:
    x, y = _LEFT + _CELL * i + 15, top - 8
    made = _text(shortened(name), x, y, name)
    made.set("transform", f"rotate(-55 {x} {y})")
    return made


def _cell(place: tuple[int, int], words: str, strength: float) -> Element:
    """A cell whose colour is darker for a larger error."""
    attributes = {"x": place[0], "y": place[1], "width": _CELL - 2, "height": _CELL - 2}
    depth = f"{strength:.3f}"
    return element("rect", element("title", words), class_="pair", fill_opacity=depth, **attributes)


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        LogLikelihood(),
        Kolmogorov(),
        TotalVariation(),
        Correlations(),
        PairCells(),
        TripleCells(),
        Prediction(),
        Detection(),
    )
}


def evaluate(subject: Subject) -> dict[str, Figures]:
    """The figures of every applicable measure. INTERNAL: computed from the rows without noise.

    Example:
        >>> import numpy as np
        >>> from dpflows import DPGaussian
        >>> from dpflows.privacy.randomness import Entropy
        >>> from dpflows.table.reading import read_table
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPGaussian(1.0, 1e-5, bounds=(-4, 4)).fit(rows)
        >>> table = read_table(rows, model.encoding_.schema)
        >>> sorted(evaluate(Subject.of(model, table, Entropy.from_os())))
        ['correlations', 'detection', 'kolmogorov', 'log-likelihood', 'pair-cells', ...]
    """
    found = {measure.name: measure.of(subject) for measure in MEASURES.values()}
    return {name: figures for name, figures in found.items() if figures or MEASURES[name].each}


#: Lines of a table of pairs or triples: those with the largest figures.
MOST_LINES = 20
#: Bars of a column of numbers or dates.
PICTURE_BINS = 20

_PUBLIC = "These figures are noisy. They may be published under the guarantees below."
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5d6b7a; --line: #dde3ea;
  --generated: #2f6db3; --real: #e08a1e; --alarm: #a31621; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f6f8fa;
  margin: 0 auto; max-width: 1080px; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
section h2 { margin-top: 0; }
h3 { font-size: .95rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
section, figure, .banner { background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.2rem; margin: 0 0 1rem; }
.banner { font-weight: 600; border-left: 6px solid var(--generated); }
.banner.alarm { color: #fff; background: var(--alarm); border-color: var(--alarm); }
.banner p, section p { margin: .2rem 0 .6rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; unicode-bidi: isolate; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 1rem; }
.columns figure { margin: 0; } .wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; } .wide svg { max-width: none; }
svg text { font-size: 11px; fill: var(--soft); unicode-bidi: isolate; }
rect.generated { fill: var(--generated); } rect.real { fill: var(--real); }
rect.pair { fill: var(--alarm); stroke: var(--line); }
.key span { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; }
i.generated { background: var(--generated); } i.real { background: var(--real); }
.soft, figcaption { color: var(--soft); font-size: .88rem; }
"""


def render(found: Mapping[str, Any], subject: Subject) -> str:
    """The HTML page of an evaluation.

    Args:
        found: What ``dpflows evaluate`` found: ``figures`` by measure, ``stamps``, ``rows``,
            and the ``guarantee`` and ``plan`` of a private evaluation.
        subject: The model, and the rows that an INTERNAL page draws.

    Guarantee:
        With a ``guarantee`` in ``found`` the subject's rows are not used. Names and labels
        are text wherever they appear, and the page may neither run a script nor load
        anything.
    """
    sections = [
        _banner(found),
        *_promises(found, subject),
        _summary(found),
        *_pictures(subject, is_internal="guarantee" not in found),
        *_pair_picture(subject, found["figures"].get("pair-cells")),
        *_tables(found["figures"]),
    ]
    body = element("body", element("h1", "How well a model describes rows"), *sections)
    return "<!DOCTYPE html>\n" + shown(element("html", _head(), body, lang="en")) + "\n"


def _head() -> Element:
    policy = element("meta", http_equiv="Content-Security-Policy", content=_POLICY)
    title = element("title", "Evaluation")
    return element(
        "head", element("meta", charset="utf-8"), policy, title, element("style", _STYLE)
    )


def _banner(found: Mapping[str, Any]) -> Element:
    lines = list(found["stamps"]) or [_PUBLIC]
    sort = "banner alarm" if found["internal"] else "banner"
    return element("div", *(element("p", line) for line in lines), class_=sort)


def _promises(found: Mapping[str, Any], subject: Subject) -> Iterable[Element]:
    yield _promise("Privacy guarantee of the model", subject.model.guarantee_)
    if "guarantee" in found:
        fields = {name: of for name, of in found["guarantee"].items() if name != "is_private"}
        title = f"Privacy guarantee for the {found['rows']:,} rows of this evaluation"
        yield _promise(title, Guarantee.from_dict(fields))


def _promise(title: str, guarantee: Guarantee) -> Element:
    lines = guarantee.privacy_statement().split("\n")
    return element("section", element("h2", title), *(element("p", line) for line in lines))


def _summary(found: Mapping[str, Any]) -> Element:
    lines = [MEASURES[name].line(of) for name, of in found["figures"].items()]
    notes = ["Distances lie between 0 (equal) and 1."]
    if "plan" in found:
        notes.append(noise_note(found["plan"]))
    shown_notes = [element("p", note, class_="soft") for note in notes]
    shown_lines = [element("p", line) for line in lines]
    return element("section", element("h2", "Summary"), *shown_lines, *shown_notes)


def _pictures(subject: Subject, *, is_internal: bool) -> Iterable[Element]:
    sides = ("real", "generated") if is_internal else ("generated",)
    keys = [element("span", element("i", class_=side), f"{side} rows") for side in sides]
    yield element("h2", "Columns")
    yield element("p", *keys, "Numbers next to the bars refer to generated rows.", class_="key")
    columns = subject.schema.columns
    codings = [even_coding_of(of, subject.generated[of.name], PICTURE_BINS) for of in columns]
    figures = [_column(subject, coding, sides) for coding in codings]
    yield element("div", *figures, class_="columns")


def _column(subject: Subject, coding: Coding, sides: Sequence[str]) -> Element:
    name = coding.column.name
    # an attribute is looked up only if it is wanted: rows stay untouched on a public page
    shares = {
        side: shares_of(coding.counts(_rows_of(subject, side)[name])).tolist() for side in sides
    }
    unit = f", in {coding.column.unit}" if coding.column.unit else ""
    caption = element("figcaption", f"{coding.column.kind}{unit}")
    return element("figure", element("h3", name), bars(coding, shares), caption)


def _rows_of(subject: Subject, side: str) -> Mapping[str, Any]:
    return subject.generated if side == "generated" else subject.rows


def _pair_picture(subject: Subject, figures: Figures | None) -> Iterable[Element]:
    if not figures:
        return
    pairs = itertools.combinations(subject.names, 2)
    errors = {pair: figures[joined(pair)] for pair in pairs}
    caption = (
        f"The darkest colour is {max(figures.values()):.3f}. Numeric columns in {PAIR_BINS} bins."
    )
    if len(subject.names) > MOST_ACROSS:
        caption += f" Only the first {MOST_ACROSS} columns are shown."
    drawn = element("div", matrix(subject.names, errors), class_="wide")
    yield element("h2", MEASURES["pair-cells"].title)
    yield element("figure", drawn, element("figcaption", caption))


def _tables(figures: Mapping[str, Figures]) -> Iterable[Element]:
    by_column = {name: of for name, of in figures.items() if MEASURES[name].each == "column"}
    if by_column:
        yield _table("Figures of columns", list(by_column), _lines_of(by_column))
    for name, of in figures.items():
        if of and MEASURES[name].each not in ("", "column"):
            largest = sorted(of, key=lambda key: -of[key])[:MOST_LINES]
            title = MEASURES[name].title + (", the largest" if len(of) > MOST_LINES else "")
            yield _table(title, [name], [(key, [of[key]]) for key in largest])
    for name, of in figures.items():
        if not MEASURES[name].each:
            lines = [(key.replace("_", " "), [value]) for key, value in of.items()]
            yield _table(MEASURES[name].title, [name], lines)


def _lines_of(figures: Mapping[str, Figures]) -> list[tuple[str, list[float]]]:
    columns = next(iter(figures.values()))
    return [(column, [of[column] for of in figures.values()]) for column in columns]


def _table(title: str, heads: Sequence[str], lines: Sequence[tuple[str, list[float]]]) -> Element:
    top = element("tr", element("th", ""), *(element("th", h, class_="number") for h in heads))
    rows = [element("tr", element("td", name), *map(_number, of)) for name, of in lines]
    table = element("table", element("thead", top), element("tbody", *rows))
    return element("section", element("h2", title), table)


def _number(value: float) -> Element:
    is_count = value == round(value) and abs(value) >= 2
    return element("td", f"{value:,.0f}" if is_count else f"{value:.4f}", class_="number")

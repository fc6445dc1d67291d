"""Elements of a page, escaped by construction, and two drawings made of them."""

import itertools
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from dpflows.evaluation.coding import Coding

Element = ElementTree.Element

#: Bars of one picture; the bins with the fewest generated rows are taken together.
MOST_BARS = 24
#: Columns of the picture of pairs.
MOST_ACROSS = 60
#: Characters of a name in a drawing; the whole name appears under the pointer.
NAME_LENGTH = 26

_LINE, _LEFT, _BAR, _CELL = 20, 180, 190, 22


def element(tag: str, *content: Element | str, **attributes: object) -> Element:
    """An element with its content; text stays text, whatever it holds.

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
    """A name that fits into a drawing.

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
    """The bins in order, or the commonest of them and one for the rest."""
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
    """A cell whose colour is the stronger, the larger the error is."""
    attributes = {"x": place[0], "y": place[1], "width": _CELL - 2, "height": _CELL - 2}
    depth = f"{strength:.3f}"
    return element("rect", element("title", words), class_="pair", fill_opacity=depth, **attributes)

"""Generated schemas for property tests."""

from hypothesis import strategies as st

from dpflows.table import Column, Schema

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
FLOATS = st.floats(-1e300, 1e300, allow_nan=False).map(lambda x: x + 0.0)
WHOLE = st.integers(-(10**15), 10**15).map(float)
MOMENTS = st.integers(-62135596800, 253402300799).map(float)


def pairs(numbers, gap=0.0):
    ordered = st.tuples(numbers, numbers).map(sorted)
    return ordered.filter(lambda pair: pair[1] - pair[0] > gap)


@st.composite
def columns(draw, kinds=("continuous", "integer", "categorical", "boolean", "date"), full=False):
    kind = draw(st.sampled_from(kinds))
    extra = {} if full else {"nullable": draw(st.booleans()), "unit": draw(st.just("") | TEXT)}
    numbers = {"continuous": (FLOATS, 1e-299), "integer": (WHOLE, 0), "date": (MOMENTS, 0)}
    is_declared = full or draw(st.booleans())
    if is_declared and kind in numbers:
        low, high = draw(pairs(*numbers[kind]))
        extra |= {"min": low, "max": high}
        if not full and draw(st.booleans()):
            extra["spikes"] = draw(st.sampled_from([(), (low,), (low, high)]))
    if is_declared and kind == "categorical":
        extra["categories"] = tuple(draw(st.lists(TEXT, min_size=1, max_size=5, unique=True)))
        if not full and draw(st.booleans()):
            extra["other"] = extra["categories"][0]
    return {"name": draw(TEXT), "kind": kind} | extra


def schemas(**options):
    """The parts of a schema; the type checker draws random numbers, which strategies must not."""
    lists = st.lists(columns(**options), min_size=1, max_size=5, unique_by=lambda c: c["name"])
    return st.tuples(lists, st.booleans())


def numeric_schemas():
    return schemas(kinds=("continuous", "integer"), full=True)


def build(parts):
    return Schema(tuple(Column(**column) for column in parts[0]), values_read=parts[1])

"""The property: what is read of a row, and what is public, does not depend on another row."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contracts.neighbours import Pair
from contracts.text_files import Stored
from dpflows.errors import InputError
from dpflows.pipeline.domain import TableSpec, feature_names, stamps_of
from dpflows.table.reading import Encoding, MixedEncoding, Table
from dpflows.table.schema import Schema

#: What a pair can show.
SAME, REFUSED = "same", "refused"


@dataclasses.dataclass
class Reading:
    """What a fit takes from a table: its rows, their encodings, and what a file will say."""

    rows: int
    columns: dict[str, np.ndarray]
    encodings: dict[str, np.ndarray]
    header: dict[str, Any]

    @property
    def public(self) -> str:
        """The header as canonical JSON."""
        return json.dumps(self.header, sort_keys=True, allow_nan=False)


@dataclasses.dataclass(frozen=True)
class Inference:
    """A planted fault: something told from the rows, before or after they are read.

    Args:
        before: Changes a table before it is read.
        after: Changes what was read, knowing the table.
        concerns: Whether it can make a difference to a pair.
    """

    before: Callable[[Any, Pair], Any] | None = None
    after: Callable[[Reading, Any, Pair], Reading] | None = None
    concerns: Callable[[Pair], bool] = lambda pair: True

    def touches(self, pair: Pair) -> bool:
        """Whether it can make a difference to a pair, as far as can be told without reading."""
        if self.before is None or not self.concerns(pair):
            return self.concerns(pair)
        changed = ((self.before(source, pair), source) for source in pair.sources)
        return any(new is not old and new != old for new, old in changed)


def differences(pair: Pair, folder: Path, inference: Inference = Inference()) -> str:  # noqa: B008
    """``SAME``, ``REFUSED`` where a table is, or else what one row changed."""
    try:
        first, second = (_read(pair, source, folder, inference) for source in pair.sources)
    except InputError:
        return REFUSED
    return compare(first, second, pair.row)


def compare(first: Reading, second: Reading, row: int) -> str:
    """``SAME``, or what differs beside a row."""
    if first.public != second.public:
        return "the public header differs"
    if first.rows != second.rows:
        return "the numbers of rows differ"
    for name, values in {**first.columns, **first.encodings}.items():
        other = {**second.columns, **second.encodings}[name]
        if _bits(values, row) != _bits(other, row):
            return f"{name} differs in other rows"
    return SAME


def _bits(values: np.ndarray, row: int) -> Any:
    """All rows but one, bit by bit; truth values whether or not gaps stand among them."""
    kept = values[np.arange(len(values)) != row]
    if kept.dtype.kind in "bO":
        return [(type(value), value) for value in kept.tolist()]
    return kept.dtype.str, kept.tobytes()


def _read(pair: Pair, source: Any, folder: Path, inference: Inference) -> Reading:
    changed = source if inference.before is None else inference.before(source, pair)
    reading = taken_in(read(pair, opened(changed, folder)), pair)
    return reading if inference.after is None else inference.after(reading, source, pair)


def opened(source: Any, folder: Path) -> Any:
    """A table in memory, or the path of its file."""
    if not isinstance(source, Stored):
        return source
    path = folder / source.name
    path.write_bytes(source.content)
    return path


def read(pair: Pair, source: Any) -> Table:
    """Read a table as every estimator does."""
    is_declared = pair.schema is not None or pair.bounds is not None
    told = TableSpec(
        pair.schema, pair.bounds, None if is_declared else 0.5, pair.schema is not None
    )
    return told.read(source)


def taken_in(table: Table, pair: Pair) -> Reading:
    """What a fit would take from a table, with the same random numbers for both tables."""
    header, columns = _header(table), dict(table.columns)
    if table.schema.undeclared():
        # bounds that are bought follow the noise, and encodings follow them
        return Reading(table.rows, columns, {}, header)
    numbers = np.random.default_rng(pair.number)
    drawn = numbers.random(table.rows * len(table.columns))
    mixed, plain = MixedEncoding(table.schema), _numbers(table)
    encodings = {
        "mixed encoding": mixed.encode(table, lambda count: drawn[:count]),
        "mixed points": mixed.score_points(table),
    }
    if plain is not None:
        encoding = Encoding(plain.schema)
        encodings["encoding"] = encoding.encode(plain, lambda count: drawn[:count])
        encodings["points"] = encoding.score_points(plain)
    return Reading(table.rows, columns, encodings, header)


def _numbers(table: Table) -> Table | None:
    """The numeric columns, declared as if no cell were missing."""
    numeric = [c for c in table.schema.columns if c.kind in ("continuous", "integer")]
    if not numeric:
        return None
    schema = Schema(tuple(dataclasses.replace(column, nullable=False) for column in numeric))
    cells = {column.name: table.columns[column.name] for column in numeric}
    return dataclasses.replace(table, schema=schema, columns=cells)


def _header(table: Table) -> dict[str, Any]:
    """What a model file says about the table it was fitted to, whatever the model."""
    names = feature_names(table.form, table.schema)
    return {
        "schema": table.schema.to_dict(),
        "form": table.form.to_dict(),
        "stamps": stamps_of(table.schema),
        "feature_names": None if names is None else list(names),
    }

"""Which part a row belongs to: decided by a secret key and by the row itself, nothing else.

An ensemble is private because one row reaches one part. That fails if rows are dealt out
by rank, by a shuffle or in turn, since a row that leaves then moves others along. Here
every row finds its part alone.
"""

import dataclasses
import hashlib
from typing import Literal, final

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.errors import InputError
from dpflows.privacy.events import Neighbours, Sensitivity, check_at_least
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Table

Way = Literal["position", "content"]

_KEY_BYTES = 32
_WORD_BYTES = 8
_MOST_NOMINAL = 1000

Rows = Float64[np.ndarray, "rows columns"]
Parts = Int64[np.ndarray, " rows"]


@final
@dataclasses.dataclass(frozen=True)
class Assignment:
    """A keyed map from rows to parts.

    Attributes:
        parts: How many there are.
        way: ``position``: a keyed stream of random words, one for each place in the
            table. ``content``: a keyed hash of the row's own bytes, so that equal rows
            share a part.
        key: Secret, drawn for one fit and never kept. It is no source of privacy; it
            keeps people who know the rule from crowding into one part.

    Guarantee:
        Blanking or replacing the row at a position, or adding or removing a row by its
        content, leaves every other row in its part. ``sensitivity`` says how many parts
        one person can therefore reach.

    Example:
        >>> drawn = Assignment.drawn(4, "zero-out", Entropy.from_os())
        >>> bool((drawn.of(np.zeros((6, 2))) < 4).all()), drawn.sensitivity.zero_out
        (True, 1.0)
    """

    parts: int
    way: Way
    key: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        check_at_least("k", self.parts, 1)

    @classmethod
    def drawn(cls, parts: int, neighbours: Neighbours, entropy: Entropy) -> "Assignment":
        """A fresh assignment whose sensitivity is 1 under ``neighbours``."""
        return cls(
            parts, way_for(neighbours), entropy.bytes("batch-rows", step=0, count=_KEY_BYTES)
        )

    @property
    def sensitivity(self) -> Sensitivity:
        """How many parts one person can reach, hence how many votes one can turn."""
        return votes_turned(self.parts, self.way)

    def of(self, rows: Rows) -> Parts:
        """The part of each row.

        Args:
            rows: Cells inside their bounds, before any dither: a row must find its part
                again wherever it stands.
        """
        words = self._by_position(len(rows)) if self.way == "position" else self._by_content(rows)
        # The remainder favours no part by more than parts / 2^64.
        return (np.frombuffer(words, dtype="<u8") % np.uint64(self.parts)).astype(np.int64)

    def _by_position(self, count: int) -> bytes:
        # A longer output of this function begins with the shorter one, so a word depends
        # on its place and on the key alone.
        return hashlib.shake_128(self.key).digest(_WORD_BYTES * count)

    def _by_content(self, rows: Rows) -> bytes:
        # Zero has two signs; the sum has one.
        content = memoryview((rows + 0.0).astype("<f8").tobytes())
        width = _WORD_BYTES * rows.shape[1]
        hashed = hashlib.blake2b
        return b"".join(
            [
                hashed(content[start : start + width], digest_size=8, key=self.key).digest()
                for start in range(0, len(content), width)
            ]
        )


def split(
    table: Table, parts: int, neighbours: Neighbours, entropy: Entropy
) -> list[Float64[np.ndarray, "_ columns"]]:
    """The rows of each part, moved into their bounds.

    Example:
        >>> from dpflows.table.reading import read_table
        >>> from dpflows.table.schema import Schema
        >>> table = read_table(np.zeros((6, 2)), Schema.from_bounds([0, 0], 1))
        >>> sum(len(part) for part in split(table, 4, "zero-out", Entropy.from_os()))
        6
    """
    rows = np.clip(table.matrix, table.schema.lows(), table.schema.highs())
    part_of = Assignment.drawn(parts, neighbours, entropy).of(rows)
    return [rows[part_of == part] for part in range(parts)]


def nominal_rows(table: Table, parts: int, neighbours: Neighbours) -> int:
    """As many rows as a part has, up to a round number, which it is where rows are hidden."""
    if neighbours == "add-remove":
        return _MOST_NOMINAL
    if table.rows < 2 * parts:
        raise InputError(
            f"k must be at most half the number of rows, got {parts} for {table.rows}; parts "
            "would be empty"
        )
    return min(table.rows // parts, _MOST_NOMINAL)


def way_for(neighbours: Neighbours) -> Way:
    """How rows must be assigned so that one person reaches one part.

    Example:
        >>> way_for("add-remove")
        'content'
    """
    return "content" if neighbours == "add-remove" else "position"


def votes_turned(parts: int, way: Way) -> Sensitivity:
    """How many votes one person can turn, by neighbour relation.

    By position, a removed row moves all later rows, so every vote may turn. By content,
    a replaced row leaves one part and joins another.

    Example:
        >>> votes_turned(10, "content").replace_one
        2.0
    """
    by_position = Sensitivity(zero_out=1.0, add_remove=float(parts), replace_one=1.0)
    by_content = Sensitivity(zero_out=1.0, add_remove=1.0, replace_one=min(2.0, float(parts)))
    return by_position if way == "position" else by_content

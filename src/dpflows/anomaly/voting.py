"""Assignment of rows to parts, and the noisy vote of an ensemble.

An ensemble is private because one row reaches one part. That fails if rows are assigned by
rank, by a shuffle or in turn, since removing a row would then move others. Here a row's part
depends only on a secret key and the row itself.

A mechanism turns the number of votes into a yes or no; it is one class and one line in
``MECHANISMS``.
"""

import abc
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.anomaly.query_budget import QueryBudget
from dpflows.errors import InputError
from dpflows.privacy.events import (
    Event,
    Neighbours,
    PureEvent,
    Sensitivity,
    VoteEvent,
    check_at_least,
    check_choice,
    check_positive,
    only_these,
)
from dpflows.privacy.mechanisms import SparseVector, noisy_vote
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
        parts: Number of parts.
        way: ``position``: a keyed stream of random words, one for each place in the
            table. ``content``: a keyed hash of the row's own bytes, so that equal rows
            share a part.
        key: Secret, drawn for one fit and never stored. Privacy does not depend on it; it prevents
        people who know the rule from concentrating in one part.

    Guarantee:
        Zeroing out or replacing the row at a position, or adding or removing a row by its content,
        leaves every other row in its part. ``sensitivity`` is the number of parts that one person
        can therefore reach.

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
        """A new random assignment with sensitivity 1 under ``neighbours``."""
        return cls(
            parts, way_for(neighbours), entropy.bytes("batch-rows", step=0, count=_KEY_BYTES)
        )

    @property
    def sensitivity(self) -> Sensitivity:
        """The number of parts one person can reach, hence of votes one can change."""
        return votes_turned(self.parts, self.way)

    def of(self, rows: Rows) -> Parts:
        """The part of each row.

        Args:
            rows: Cells inside their bounds, before any dither: a row's part must not depend on its
            position.
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
    """The rows of each part, clipped to their bounds.

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
    """The nominal number of rows per part, rounded where the number of rows is private."""
    if neighbours == "add-remove":
        return _MOST_NOMINAL
    if table.rows < 2 * parts:
        raise InputError(
            f"k must be at most half the number of rows, got {parts} for {table.rows}; otherwise "
            "parts would be empty"
        )
    return min(table.rows // parts, _MOST_NOMINAL)


def way_for(neighbours: Neighbours) -> Way:
    """The assignment under which one person reaches one part.

    Example:
        >>> way_for("add-remove")
        'content'
    """
    return "content" if neighbours == "add-remove" else "position"


def votes_turned(parts: int, way: Way) -> Sensitivity:
    """The number of votes one person can change, by neighbour relation.

    By position, a removed row moves all later rows, so every vote may change. By content, a
    replaced row leaves one part and joins another.

    Example:
        >>> votes_turned(10, "content").replace_one
        2.0
    """
    by_position = Sensitivity(zero_out=1.0, add_remove=float(parts), replace_one=1.0)
    by_content = Sensitivity(zero_out=1.0, add_remove=1.0, replace_one=min(2.0, float(parts)))
    return by_position if way == "position" else by_content


#: Takes how many members say normal; tells whether the row is normal.
Ask = Callable[[int], bool]

_PURPOSE = "vote"
#: Beyond these lies a typing mistake, or a file that would keep its reader busy.
_MOST = 2_000
_LEAST = 1e-4


@final
@dataclasses.dataclass(frozen=True)
class VoteSettings:
    """The public settings of a mechanism.

    Attributes:
        voters: Number of members that vote.
        epsilon: The epsilon of one charge.
        neighbours: The neighbour relation.
        alarms: Number of reported anomalies after which a stream ends.

    Example:
        >>> VoteSettings(10, 0.1, "zero-out", 1).sensitivity.zero_out
        1.0
    """

    voters: int
    epsilon: float
    neighbours: Neighbours
    alarms: int

    def __post_init__(self) -> None:
        check_positive("epsilon_per_query", self.epsilon)
        for name, number in (("k", self.voters), ("alarms", self.alarms)):
            check_at_least(name, number, 1)
            if number > _MOST:
                raise InputError(f"{name} must be at most {_MOST:,}, got {number:,}")
        if self.epsilon < _LEAST:
            raise InputError(f"epsilon_per_query must be at least {_LEAST:g}, got {self.epsilon}")

    @property
    def sensitivity(self) -> Sensitivity:
        """The number of votes one person can change."""
        return votes_turned(self.voters, way_for(self.neighbours))


class Mechanism(abc.ABC):
    """Turns votes into noisy answers, charged to a query budget.

    Attributes:
        charge: What one charge covers, in words.

    Guarantee:
        ``admitted`` charges durably for every answer before it is computed. Votes are neither
        stored nor shown.
    """

    charge: ClassVar[str]

    def __init__(self, vote: VoteSettings) -> None:
        self._vote = vote

    @property
    @abc.abstractmethod
    def event(self) -> Event:
        """The event of one charge."""

    @abc.abstractmethod
    def admitted(
        self, queries: QueryBudget, count: int, entropy: Entropy
    ) -> contextlib.AbstractContextManager[Ask]:
        """Charge for ``count`` queries; raises ``BudgetError`` before any is read."""

    @abc.abstractmethod
    def guaranteed(self, queries: QueryBudget) -> int:
        """The number of queries that will still be answered, whatever the answers are."""


class _SingleVote(Mechanism):
    """Every answer is charged separately."""

    charge: ClassVar[str] = "one answer"
    law: ClassVar[Any]

    @property
    def event(self) -> Event:
        vote = self._vote
        return VoteEvent(
            voters=vote.voters,
            epsilon=vote.epsilon,
            law=self.law,
            sensitivity=vote.sensitivity,
            purpose=_PURPOSE,
        )

    @contextlib.contextmanager
    def admitted(self, queries: QueryBudget, count: int, entropy: Entropy) -> Iterator[Ask]:
        numbers = iter(range(first := queries.charge(count), first + count))
        yield lambda votes: self._answer(votes, next(numbers), entropy)

    def guaranteed(self, queries: QueryBudget) -> int:
        return queries.remaining()

    def _answer(self, votes: int, number: int, entropy: Entropy) -> bool:
        # a test seed gives equal noise to equal purposes
        event = dataclasses.replace(self.event, purpose=f"{_PURPOSE} {number}")
        with only_these([event]):
            return noisy_vote(
                votes,
                self._vote.voters,
                epsilon=self._vote.epsilon,
                law=self.law,
                sensitivity=self._vote.sensitivity,
                entropy=entropy,
                purpose=event.purpose,
            ).value


@final
class Exponential(_SingleVote):
    """The exponential mechanism of the original algorithm.

    Example:
        >>> Exponential(VoteSettings(10, 0.1, "zero-out", 1)).event.law
        'exponential'
    """

    law: ClassVar[Any] = "exponential"


@final
class Geometric(_SingleVote):
    """The majority after two-sided geometric noise on the number of votes.

    Example:
        >>> Geometric(VoteSettings(10, 0.1, "zero-out", 1)).event.law
        'geometric'
    """

    law: ClassVar[Any] = "geometric"


@final
class SparseVectorStream(Mechanism):
    """A stream of queries that is charged once and ends after ``alarms`` anomalies.

    Normal answers are free within a stream. A stream belongs to one process: after loading, and in
    every other process, the first query opens a new one.

    Guarantee:
        A stream is charged before its first query. The number of streams follows from the answers,
        which are released anyway.

    Example:
        >>> from dpflows.privacy.guarantee import Budget
        >>> stream = SparseVectorStream(VoteSettings(100, 0.5, "zero-out", 1))
        >>> queries = QueryBudget(Budget(1.0, 1e-9), stream.event, "pld")
        >>> with stream.admitted(queries, 2, Entropy.from_os()) as ask:
        ...     [ask(100), ask(100)]
        [True, True]
        >>> queries.taken(), stream.guaranteed(queries)
        (1, 2)
    """

    charge: ClassVar[str] = "one stream of answers, until it has reported its anomalies"

    def __init__(self, vote: VoteSettings) -> None:
        super().__init__(vote)
        self._stream: SparseVector | None = None
        self._alarms_left, self._process = 0, os.getpid()

    @property
    def event(self) -> Event:
        """A pure event: no more is known about a stream."""
        epsilon, turned = self._vote.epsilon, self._vote.sensitivity
        by_relation = (turned.zero_out, turned.add_remove, turned.replace_one)
        return PureEvent(
            epsilon=Sensitivity(*(epsilon * votes for votes in by_relation)), purpose="stream"
        )

    @contextlib.contextmanager
    def admitted(self, queries: QueryBudget, count: int, entropy: Entropy) -> Iterator[Ask]:
        """Locked until all are answered; otherwise another thread could end the stream."""
        before = self._stream
        try:
            with queries.held():
                queries.require(self._streams_for(count))
                yield lambda votes: self._answer(votes, queries, entropy)
        except BaseException:
            # Books may take back what was written on a page that ends with an error, and a
            # stream that nobody paid for must not be asked again.
            if self._stream is not before:
                self._stream, self._alarms_left = None, 0
            raise

    def guaranteed(self, queries: QueryBudget) -> int:
        """Since all answers might be anomalies, a stream counts as ``alarms`` answers."""
        with queries.held():
            return self._left() + self._vote.alarms * queries.remaining()

    def _streams_for(self, count: int) -> int:
        """The number of new streams if every answer is an anomaly."""
        return -(-max(count - self._left(), 0) // self._vote.alarms)

    def _left(self) -> int:
        """Anomalies that the open stream may still report; none in a forked process."""
        return self._alarms_left if self._process == os.getpid() else 0

    def _answer(self, votes: int, queries: QueryBudget, entropy: Entropy) -> bool:
        if self._stream is None or self._left() == 0:
            self._stream = self._opened(queries.charge(1), entropy)
            self._alarms_left, self._process = self._vote.alarms, os.getpid()
        is_anomaly = self._stream.exceeds(float(self._vote.voters - votes))
        self._alarms_left -= is_anomaly
        return not is_anomaly

    def _opened(self, number: int, entropy: Entropy) -> SparseVector:
        vote = self._vote
        return SparseVector(
            vote.voters / 2,
            sensitivity=vote.sensitivity,
            epsilon=vote.epsilon,
            positives=vote.alarms,
            entropy=entropy,
            purpose=f"stream {number}",
        )


MECHANISMS: dict[str, type[Mechanism]] = {
    "exponential": Exponential,
    "geometric": Geometric,
    "sparse-vector": SparseVectorStream,
}


def mechanism_for(name: str, vote: VoteSettings) -> Mechanism:
    """The mechanism of that name.

    Example:
        >>> mechanism_for("coin", VoteSettings(10, 0.1, "zero-out", 1))
        Traceback (most recent call last):
        dpflows.errors.InputError: mechanism must be one of exponential, geometric, ...
    """
    check_choice("mechanism", name, tuple(MECHANISMS))
    return MECHANISMS[name](vote)

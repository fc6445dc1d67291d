"""What a kind of column must know: how its cells are read, checked, cut, written and shown."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.table.bins import Bins, CutBins, FinestBins
from dpflows.table.raw import TextFormat

MAX_NAME_LENGTH = 1000

#: What may be missing from a declaration, and the keys that declare it.
BOUNDS, CATEGORIES = "bounds", "categories"
KEYS = {BOUNDS: ("min", "max"), CATEGORIES: ("categories",)}

#: What is wrong with a cell: nothing, its form, its size, or its fraction.
FINE, FORM, INFINITE, FRACTION = range(4)

#: Values of some cells, and what is wrong with each.
Reading = tuple[np.ndarray, np.ndarray]
#: Reads cells of one sort: numbers, text, truth values or moments, as ``raw.Cells`` holds them.
Reader = Callable[[Any, TextFormat], Reading]


@dataclass(frozen=True)
class Declaration:
    """The fields of a column; ``Column`` says what they mean, and checks them."""

    name: str
    kind: str
    min: float | None = None
    max: float | None = None
    nullable: bool = False
    unit: str = ""
    categories: tuple[str, ...] | None = None
    spikes: tuple[float, ...] | None = None
    other: str | None = None

    def refuse(self, reason: str) -> InputError:
        """An error that names the column."""
        return InputError(f"column {self.name!r}: {reason}")


@dataclass(frozen=True, eq=False)
class Kind(abc.ABC):
    """The rules of one column, by its kind. Missing cells and spikes are the same for all.

    A new kind is a subclass that is listed in ``kinds.KINDS`` or passed to ``register``. Whatever
    has a default below need not be written; kinds of numbers start from ``Bounded``, and kinds of
    a few labels from ``Labelled``.

    Args:
        column: What is declared.

    Attributes:
        name: In schema files.
        dtype: The type of values in ``Table.columns``.
        nothing: The value of a missing cell.
        fields: Which of min, max, categories, spikes and other may be declared.
        discovers: What may be missing from the declaration: bounds, categories, or nothing.
        is_number: Whether values are float64 numbers that models of plain numbers take.
        is_whole: Whether values are counted, not measured.
        is_ordinal: Whether the order of values means something.
        has_order: Whether values can be compared by size.
        has_labels: Whether there are a few values, each by itself.
        margin: How far a number is spread to either side before a density describes it.
        precedence: Proposals try kinds with lower numbers first.
        bound_form: What a bound must be in a schema file, for messages.
        spikes_form: What spikes must be in a schema file, for messages.
        operand_form: What a constraint may compare a column of this kind with, for messages.

    Guarantee:
        Every result depends on the declaration and on the cells that are passed, cell by cell.
        Only ``domain`` looks at many cells at once: it proposes values for a schema that is
        marked as read from the rows. Messages quote no cell.
    """

    column: Declaration

    name: ClassVar[str]
    dtype: ClassVar[Any]
    nothing: ClassVar[Any]
    fields: ClassVar[tuple[str, ...]] = ()
    discovers: ClassVar[str | None] = None
    is_number: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False
    is_ordinal: ClassVar[bool] = True
    has_order: ClassVar[bool] = False
    has_labels: ClassVar[bool] = False
    margin: ClassVar[float] = 0.0
    precedence: ClassVar[int] = 50
    bound_form: ClassVar[str] = "a number"
    spikes_form: ClassVar[str] = "numbers"
    operand_form: ClassVar[str]

    # Declarations

    def checked(self) -> dict[str, Any]:
        """The declared fields in their usual form.

        Raises:
            InputError: A field does not belong to the kind, or has no possible value.
        """
        for key in ("min", "max", "categories", "spikes", "other"):
            if getattr(self.column, key) is not None and key not in self.fields:
                verb, them = ("do", "them") if key.endswith("s") else ("does", "it")
                raise self.column.refuse(
                    f"{key} {verb} not belong to a {self.name} column; remove {them}"
                )
        return {}

    @property
    def lacks(self) -> tuple[str, ...]:
        """The keys that must be declared, or their values discovered, before a fit."""
        return ()

    @property
    def tells_classes(self) -> bool:
        """Whether a target of this kind has classes, and does not measure something."""
        return True

    @classmethod
    def read_bound(cls, value: Any) -> Any:
        """A bound or a spike as a schema file has it, as a number; None if it cannot be one."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number else None

    def describe_bound(self, value: float) -> Any:
        """A bound or a spike as a schema file has it."""
        return value

    # Cells

    @property
    @abc.abstractmethod
    def readers(self) -> Mapping[str, Reader]:
        """What reads cells, by their sort; cells of other sorts are of the wrong form.

        Guarantee:
            A reader reads each cell by itself.
        """

    @abc.abstractmethod
    def expected(self, text: TextFormat) -> str:
        """What cells must be, for messages."""

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Values of a column none of which is missing, in their narrowest type."""
        return values

    def numbers(self, values: np.ndarray) -> Float64[np.ndarray, " rows"]:
        """Values as numbers that have an order; missing ones are NaN."""
        raise self.column.refuse(f"{self.name} columns hold no numbers")

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Which cells lie outside what is declared."""
        return self.beyond(values)

    def beyond(self, values: np.ndarray) -> np.ndarray:
        """Which cells lie beyond the bounds, where a density is zero."""
        return np.zeros(len(values), dtype=bool)

    def inside(self, values: np.ndarray) -> np.ndarray:
        """The cells, with those beyond the bounds moved to the nearest bound."""
        return values

    # Densities

    @abc.abstractmethod
    def bins(self) -> FinestBins:
        """The finest bins of a declared column.

        Guarantee:
            They depend on the declaration alone.
        """

    @property
    @abc.abstractmethod
    def log_size(self) -> float:
        """The logarithm of how many values, or how much length, the declared domain has."""

    def cut_at(self, cuts: np.ndarray) -> tuple[float, ...]:
        """Where bins may meet that are wanted to meet here: increasing and inside the bounds."""
        raise self.column.refuse(f"{self.name} columns hold no numbers")

    def cut(self, cuts: tuple[float, ...]) -> Bins:
        """The bins that meet at these numbers; labels are always bins by themselves."""
        return CutBins(self.column.name, cuts, self._numbers_inside, self.column.nullable)

    def _numbers_inside(self, values: np.ndarray) -> np.ndarray:
        return self.numbers(self.inside(values))

    def even_cuts(self, low: float, high: float, bins: int) -> np.ndarray:
        """The inner ends of bins of one width, for pictures."""
        return np.linspace(low, high, bins + 1)[1:-1]

    def settled(self, low: float, high: float) -> tuple[float, float]:
        """Bounds that the column may have, around bounds that were found with noise."""
        return low, high

    # Proposals

    @classmethod
    def proposed_by_type(cls, dtype: pa.DataType) -> dict[str, Any] | None:
        """What to declare for cells of an Arrow type; None if they are of another kind."""
        return None

    @classmethod
    def proposed_by_text(cls, cells: pa.ChunkedArray, text: TextFormat) -> dict[str, Any] | None:
        """What to declare for cells of a text file; None if one is of another kind."""
        return None

    def domain(self, present: np.ndarray) -> dict[str, Any]:
        """Bounds or categories of some values, none of which is missing. Private if they are."""
        return {}

    # Constraints

    @property
    def compared_as(self) -> str:
        """Columns can be compared where this is the same."""
        return self.name

    @abc.abstractmethod
    def operand(self, text: str) -> object:
        """What a word of a constraint means for the column; None if it means nothing."""

    # Output

    @abc.abstractmethod
    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Values as an Arrow column, whose type depends on the declaration alone."""

    @property
    def pandas_type(self) -> str | None:
        """The type of a pandas column; None for the one that numpy gives."""
        return None

    @property
    def is_open(self) -> bool:
        """Whether there may be values that are neither declared nor moved to declared ones."""
        return False

    @property
    def labels(self) -> tuple[str, ...]:
        """What a report calls the labels; none for kinds of numbers."""
        return ()

    def shown(self, number: float) -> str:
        """A number in a report."""
        return f"{number:.15g}"

    def shown_below(self, cut: float) -> str:
        """The end of the bin below a cut in a report."""
        return self.shown(cut)


def is_storable(text: str) -> bool:
    """Whether text can be written to a file and is not too long."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return len(text) <= MAX_NAME_LENGTH


def check_name(name: Any) -> None:
    """Refuse what cannot be a column's name."""
    if not isinstance(name, str) or not name or not is_storable(name):
        raise InputError(f"column names must be text of 1 to {MAX_NAME_LENGTH} characters")


def fine(values: np.ndarray) -> Reading:
    """A reading in which nothing is wrong."""
    return values, np.zeros(len(values), dtype=np.uint8)


def marked(values: np.ndarray, wrong: np.ndarray) -> Reading:
    """A reading in which some cells are of the wrong form."""
    return values, np.where(wrong, FORM, FINE).astype(np.uint8)


def trimmed(cells: pa.ChunkedArray, text: TextFormat, labels: tuple[str, ...] = ()) -> Any:
    """Text without blanks around it, and nothing where it says that nothing is there."""
    bare = pc.utf8_trim_whitespace(cells)
    marks = pa.array([mark for mark in text.missing if mark not in labels], bare.type)
    return pc.if_else(pc.is_in(bare, value_set=marks), pa.scalar(None, bare.type), bare)


def words_of(cells: pa.ChunkedArray, text: TextFormat) -> tuple[list[str], np.ndarray]:
    """The different words of a column, and the place of every cell's; -1 where it is missing.

    Example:
        >>> words, places = words_of(pa.chunked_array([["b", "", "a", "b "]]), TextFormat())
        >>> words, places.tolist()
        (['b', 'a'], [0, -1, 1, 0])
    """
    bare = trimmed(cells, text)
    bare = bare.combine_chunks() if isinstance(bare, pa.ChunkedArray) else bare
    coded = bare.dictionary_encode()
    places = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return coded.dictionary.to_pylist(), places


#: The class of every kind, by its name in schema files; ``register`` adds to it.
KINDS: dict[str, type[Kind]] = {}


def register(kind: type[Kind]) -> type[Kind]:
    """Add a kind under its own name; a decorator for classes outside the package.

    Example:
        >>> from dpflows.table.kinds import Date
        >>> register(Date)
        Traceback (most recent call last):
        dpflows.errors.InputError: there is a kind of the name 'date' already; choose another
    """
    if kind.name in KINDS:
        raise InputError(f"there is a kind of the name {kind.name!r} already; choose another")
    KINDS[kind.name] = kind
    return kind


def kind_of(name: object) -> type[Kind]:
    """The class of a kind.

    Example:
        >>> kind_of("date").is_whole
        True
    """
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}")
    return KINDS[name]

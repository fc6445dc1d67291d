"""What a table means, from public declarations alone, and how it is written to schema files.

Bounds and categories in a schema are public knowledge. A schema whose bounds or
categories were read from the rows says so, and what is fitted with it is stamped.

A schema file is TOML or JSON. What is between the two is a plain description: dictionaries, lists
and texts. A message about a schema file names columns and keys. It quotes no value, because the
file may hold bounds that were read from rows, or may be the table itself.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from dpflows.errors import InputError, unchained
from dpflows.files import write_atomically
from dpflows.table.columns import Column, Constraint
from dpflows.table.kinds import KINDS, Kind
from dpflows.table.kinds.base import check_name
from dpflows.table.kinds.numbers import Continuous
from dpflows.table.proposals import propose
from dpflows.table.raw import (
    MAX_COLUMNS,
    PLAIN,
    TextFormat,
    check_width,
    default_names,
)

#: The most names that one message lists.
MAX_NAMES_SHOWN = 8
MAX_BYTES = 2**23
MAX_CONSTRAINTS = 100
KNOWN_TOP_KEYS = ("columns", "values_read", "target", "constraints", "text")

Choice = TypeVar("Choice")
#: A schema as plain JSON; ``columns`` is a list, so that their order is kept.
Description = dict[str, Any]

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "kind": ((str,), "text"),
    "nullable": ((bool,), "true or false"),
    "unit": ((str,), "text"),
    "categories": ((list,), "a list of labels"),
    "spikes": ((list,), "a list of values"),
    "other": ((str,), "text"),
}
KNOWN_KEYS = ("kind", "min", "max", "nullable", "unit", "categories", "spikes", "other")

_ADVICE = "declare from public knowledge"


@final
@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order.

    Args:
        columns: The columns; their names differ.
        values_read: Whether bounds or categories were read from the rows. What is
            fitted with such a schema is stamped, since its bounds are not paid for.
        names_read: Whether the names were taken from a table that came without a
            schema. Messages then count columns instead of naming them, because the
            first line of a file without a header is a row.
        target: The column that the others are to predict, if there is one.
        constraints: Rules that every row keeps.
        text: How cells of text are written, in files and elsewhere.
        is_proposed: Whether kinds, and what ``text`` says, were inferred from a table and nobody
            has looked at them yet.

    Example:
        >>> age = Column("age", "integer", min=0, max=120)
        >>> schema = Schema((age, Column("dose", "continuous")))
        >>> schema.undeclared()
        ('dose',)
        >>> schema.with_bounds("dose", 0, 5).highs().tolist()
        [120.0, 5.0]
    """

    columns: tuple[Column, ...]
    values_read: bool = False
    names_read: bool = field(default=False, compare=False, repr=False)
    target: str | None = None
    constraints: tuple[Constraint, ...] = ()
    text: TextFormat = field(default=PLAIN, repr=False)
    is_proposed: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise InputError("schema must declare at least one column")
        check_width(len(self.columns))
        if not all(isinstance(column, Column) for column in self.columns):
            raise InputError("schema must be made of Column objects")
        if len(set(self.names)) != len(self.columns):
            raise InputError("schema must not declare two columns of one name")
        if self.target is not None and not self.has_column(self.target):
            raise InputError("target must be a column of the schema")
        object.__setattr__(self, "constraints", tuple(self.constraints))
        self._check_constraints()
        self._check_text()

    def _check_text(self) -> None:
        if not isinstance(self.text, TextFormat):
            raise InputError("text must be a TextFormat")
        filled = [column.name for column in self.columns if not column.nullable]
        if filled and self.text.makes_missing:
            raise InputError(
                'unreadable = "missing" makes missing cells, which the schema does not allow in '
                f"column {listed(filled)}; declare nullable = true there, or "
                'unreadable = "refuse"'
            )

    def _check_constraints(self) -> None:
        if len(self.constraints) > MAX_CONSTRAINTS:
            raise InputError(f"constraints must be at most {MAX_CONSTRAINTS} rules")
        for number, constraint in enumerate(self.constraints, 1):
            try:
                constraint.check(self)
            except InputError as error:
                raise InputError(f"constraint {number}: {error}") from None

    @classmethod
    def from_bounds(cls, low: Any, high: Any, names: Any = None) -> "Schema":
        """Continuous columns inside ``low`` and ``high``, numbers or one per column.

        Example:
            >>> Schema.from_bounds([0, 0], 1).names
            ('x0', 'x1')
        """
        refusal = "bounds must be (low, high), numbers or one per column, as many as names"
        try:
            low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
            names = names if names is None else tuple(names)
            shape = np.broadcast_shapes(low.shape, high.shape) if names is None else (len(names),)
            low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
        except (TypeError, ValueError):
            raise InputError(refusal) from None
        if len(shape) != 1:
            raise InputError("bounds must be one per column; for plain numbers, pass names too")
        check_width(shape[0])
        names = default_names(shape[0]) if names is None else names
        for name in names:
            check_name(name)
        pairs = zip(names, low.tolist(), high.tolist(), strict=True)
        return cls(tuple(Column(name, "continuous", a, b) for name, a, b in pairs))

    @classmethod
    def from_frame(cls, frame: Any, *, read_values: bool = False) -> "Schema":
        """Propose a schema for a table from the types of its columns.

        Args:
            frame: A table of any kind that ``read_table`` accepts.
            read_values: Consent to write bounds and categories read from the rows into
                the schema, and to allow missing cells where there are some.

        Guarantee:
            A proposal is not public until somebody has looked at it: the types of a frame,
            and the kinds, delimiter, decimal mark and encoding of a text file, are inferred from
            the rows, and one row can change them. No value enters it without consent; with
            consent, ``values_read`` says that the schema is not public.

        Example:
            >>> Schema.from_frame(np.array([[1.5, 2.5]])).undeclared()
            ('x0', 'x1')
        """
        columns, text = propose(frame, read_values=read_values)
        return cls(columns, values_read=read_values, text=text, is_proposed=True)

    @classmethod
    @unchained
    def from_dict(cls, description: Any) -> "Schema":
        """Read back ``to_dict``, or a parsed schema file; the content may be hostile."""
        return cls(**_parsed(description))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Schema":
        """Read a schema from a ``.toml`` or ``.json`` file.

        Guarantee:
            Messages name columns and keys, and quote no value.
        """
        return cls.from_dict(_read_document(path))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.toml`` or ``.json`` file, whole or not at all.

        Example:
            >>> import tempfile
            >>> path = f"{tempfile.mkdtemp()}/schema.toml"
            >>> schema = Schema.from_bounds([0], [1], names=["dose"])
            >>> schema.write(path)
            >>> Schema.read(path) == schema
            True
        """
        _write_document({".toml": self.to_toml, ".json": self.to_json}, path)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain JSON; columns are a list, so that their order is kept.

        Example:
            >>> Schema.from_bounds([0], [1]).to_dict()["columns"]
            [{'name': 'x0', 'kind': 'continuous', 'min': 0.0, 'max': 1.0}]
        """
        parts = {
            "target": self.target,
            "constraints": [constraint.text for constraint in self.constraints],
            "text": self.text.to_dict(),
        }
        columns = [_described(column) for column in self.columns]
        description = {"columns": columns, "values_read": self.values_read}
        return description | {key: value for key, value in parts.items() if value}

    def to_json(self) -> str:
        """The schema as the text of a JSON file."""
        return _as_json(self.to_dict())

    def to_toml(self) -> str:
        """The schema as the text of a TOML file, with a gap for what is undeclared."""
        gaps = {column.name: column.rules.lacks for column in self.columns}
        return _as_toml(self.to_dict(), gaps, is_proposed=self.is_proposed)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names in order."""
        return tuple(column.name for column in self.columns)

    def has_column(self, name: str) -> bool:
        """Whether there is a column of that name."""
        return name in self._by_name

    def column(self, name: str) -> Column:
        """The column of that name."""
        if not self.has_column(name):
            raise InputError(f"schema has no such column; it has {listed(self.names)}")
        return self._by_name[name]

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @functools.cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def label(self, name: str) -> str:
        """How a message names a column: by name, or by number if names are private."""
        if self.names_read:
            return f"column number {self._places[name] + 1}"
        return f"column {name!r}"

    def lows(self) -> np.ndarray:
        """The lowest value per column; not a number where none is declared."""
        return np.array([math.nan if c.min is None else c.min for c in self.columns])

    def highs(self) -> np.ndarray:
        """The highest value per column; not a number where none is declared."""
        return np.array([math.nan if c.max is None else c.max for c in self.columns])

    def undeclared(self) -> tuple[str, ...]:
        """Names of the columns that lack bounds or categories."""
        return tuple(column.name for column in self.columns if not column.is_declared)

    @property
    def is_mixed(self) -> bool:
        """Whether rows are more than plain numbers between bounds.

        A target makes them so if it has classes; a measured one is a number like
        others.

        Example:
            >>> Schema((Column("sex", "categorical"),)).is_mixed
            True
        """
        has_classes = self.target is not None and self.column(self.target).rules.tells_classes
        declared = has_classes or bool(self.constraints)
        return declared or any(_is_mixed(column) for column in self.columns)

    def require_numbers(self) -> None:
        """Refuse columns that are not filled with numbers; decided by declarations alone."""
        for column in self.columns:
            if not column.rules.is_number:
                raise InputError(
                    f"{self.label(column.name)} is {column.kind}: not yet supported by this "
                    "estimator; use DPDensity with a schema, which models it, drop it, or declare "
                    "it continuous or integer"
                )
            if column.nullable:
                raise InputError(
                    f"{self.label(column.name)} is nullable: not yet supported by this "
                    "estimator; use DPDensity with a schema, which models missing cells, or fill "
                    "them and declare nullable = false, or drop it"
                )

    def require_numeric(self) -> None:
        """Refuse what estimators of plain numbers cannot keep.

        Spikes and a target are hints that such an estimator may leave aside; constraints
        are promises.
        """
        self.require_numbers()
        if self.constraints:
            raise InputError(
                "constraints are not yet supported by this estimator; use DPDensity, which keeps "
                "them, or take them out of the schema"
            )

    def with_bounds(self, name: str, low: float, high: float) -> "Schema":
        """The same schema with one column's bounds declared."""
        return self.with_columns([self.column(name).within(low, high)])

    def with_columns(self, described: Iterable[Column]) -> "Schema":
        """The same schema with some columns described anew."""
        anew = {column.name: column for column in described}
        columns = tuple(anew.get(column.name, column) for column in self.columns)
        return dataclasses.replace(self, columns=columns)


def _is_mixed(column: Column) -> bool:
    return not column.rules.is_number or column.nullable or bool(column.spikes)


def listed(names: tuple[str, ...] | list[str]) -> str:
    """Names for a message: quoted, and cut off after a few."""
    shown = ", ".join(repr(name) for name in names[:MAX_NAMES_SHOWN])
    more = len(names) - MAX_NAMES_SHOWN
    return shown if more <= 0 else f"{shown} and {more} more"


@unchained
def _read_document(path: str | os.PathLike[str]) -> Any:
    """The description in a schema file, by its ending; its content may be anything."""
    loads = _by_ending(path, {".toml": _loads_toml, ".json": _loads_json})
    return loads(_read_text(Path(path)))


def _write_document(writers: Mapping[str, Callable[[], str]], path: str | os.PathLike[str]) -> None:
    """Write a schema file, whole or not at all; its ending says who writes the text."""
    content = _by_ending(path, writers)().encode("utf-8")
    if len(content) > MAX_BYTES:
        raise InputError(f"schema is too large: a schema file holds at most {MAX_BYTES} bytes")
    with write_atomically(path) as file:
        file.write(content)


@unchained
def _parsed(description: Any) -> dict[str, Any]:
    """The fields of a schema that is described; columns are a mapping or a list."""
    if not isinstance(description, dict):
        raise InputError("schema must be a table with a part named columns")
    _check_keys("schema", description, KNOWN_TOP_KEYS)
    columns = description.get("columns")
    entries = _entries(columns)
    if not 1 <= len(entries) <= MAX_COLUMNS:
        raise InputError(f"schema must declare 1 to {MAX_COLUMNS} columns under [columns.NAME]")
    values_read = description.get("values_read", False)
    if not isinstance(values_read, bool):
        raise InputError("values_read must be true or false")
    return {
        "columns": tuple(_column(name, entry) for name, entry in entries),
        "values_read": values_read,
        "target": _target(description.get("target")),
        "constraints": _constraints(description.get("constraints", [])),
        "text": TextFormat.from_dict(description.get("text", {})),
    }


def _target(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InputError("target must be the name of a column")
    return name


def _constraints(texts: Any) -> tuple[Constraint, ...]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError('constraints must be a list of rules such as "start <= end"')
    if len(texts) > MAX_CONSTRAINTS:
        raise InputError(f"constraints must be at most {MAX_CONSTRAINTS} rules")
    return tuple(Constraint(text) for text in texts)


def _described(column: Column) -> Description:
    """A column as plain JSON, without what is left at its default."""
    bound = column.rules.describe_bound
    parts = {
        "name": column.name,
        "kind": column.kind,
        "min": None if column.min is None else bound(column.min),
        "max": None if column.max is None else bound(column.max),
        "nullable": column.nullable or None,
        "unit": column.unit or None,
        "categories": None if column.categories is None else list(column.categories),
        "spikes": None if column.spikes is None else [bound(value) for value in column.spikes],
        "other": column.other,
    }
    return {key: value for key, value in parts.items() if value is not None}


def _as_json(description: Description) -> str:
    """A description as the text of a JSON file."""
    document: dict[str, Any] = {"values_read": True} if description["values_read"] else {}
    document |= _beside(description) | _text(description)
    document["columns"] = dict(map(_named, description["columns"]))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _as_toml(
    description: Description, gaps: Mapping[str, tuple[str, ...]], *, is_proposed: bool = False
) -> str:
    """A description as the text of a TOML file.

    Args:
        description: The schema.
        gaps: By column, the keys that are still to be declared.
        is_proposed: Whether nobody has looked at it yet, which a comment then asks for.

    Example:
        >>> dose = {"name": "dose", "kind": "continuous"}
        >>> print(_as_toml({"columns": [dose], "values_read": False}, {"dose": ("min", "max")}))
        [columns.dose]
        kind = "continuous"
        # min =    declare from public knowledge
        # max =    declare from public knowledge
    """
    parts = [_PROPOSED] if is_proposed else []
    parts += [_VALUES_READ] if description["values_read"] else []
    parts += [f"{key} = {_toml_value(value)}\n" for key, value in _beside(description).items()]
    parts += [_text_section(text, is_proposed) for text in _text(description).values()]
    named = map(_named, description["columns"])
    return "\n".join(parts + [_section(name, entry, gaps.get(name, ())) for name, entry in named])


def _beside(description: Description) -> Description:
    return {key: description[key] for key in ("target", "constraints") if key in description}


def _text(description: Description) -> Description:
    return {"text": description["text"]} if "text" in description else {}


def _named(entry: Description) -> tuple[str, Description]:
    return entry["name"], {key: value for key, value in entry.items() if key != "name"}


_VALUES_READ = (
    "# bounds or categories below were read from the rows: not public\nvalues_read = true\n"
)
_PROPOSED = (
    "# proposed: kinds were told from the table, and one row can change them; check every line\n"
)
_TEXT_PROPOSED = "# read off the rows of the file: check every line\n"


def _text_section(text: Description, is_proposed: bool) -> str:
    lines = [f"{key} = {_toml_value(value)}\n" for key, value in text.items()]
    return (_TEXT_PROPOSED if is_proposed else "") + "[text]\n" + "".join(lines)


def _section(name: str, entry: Description, gaps: tuple[str, ...]) -> str:
    lines = [f"[columns.{_toml_key(name)}]"]
    lines += [f"{key} = {_toml_value(value)}" for key, value in entry.items()]
    lines += [f"# {key} =    {_ADVICE}" for key in gaps]
    return "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_string(name)


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for the delete character, which TOML wants escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value)


def _column(name: Any, entry: Any) -> Column:
    check_name(name)
    if not isinstance(entry, dict):
        raise InputError(f"column {name!r}: must be a table of keys: {', '.join(KNOWN_KEYS)}")
    _check_keys(f"column {name!r}", entry, KNOWN_KEYS)
    if "kind" not in entry:
        raise InputError(f"column {name!r}: kind is missing; declare what the column holds")
    declared = entry["kind"]
    # Column refuses a kind that is not known
    kind = KINDS.get(declared if isinstance(declared, str) else "", Continuous)
    return Column(name, **{key: _part(name, key, entry[key], kind) for key in entry})


def _part(name: str, key: str, value: Any, kind: type[Kind]) -> Any:
    if key in ("min", "max"):
        return _bound(name, key, value, kind, kind.bound_form)
    types, expected = _TYPES[key]
    if not _is_one_of(value, types):
        raise InputError(f"column {name!r}: {key} must be {expected}")
    if key == "spikes":
        return tuple(_bound(name, key, spike, kind, kind.spikes_form) for spike in value)
    return _labels(name, value) if key == "categories" else value


def _bound(name: str, key: str, value: Any, kind: type[Kind], form: str) -> Any:
    number = kind.read_bound(value)
    if number is None:
        raise InputError(f"column {name!r}: {key} must be {form}")
    return number


def _is_one_of(value: Any, types: tuple[type, ...]) -> bool:
    # a boolean is an integer to Python, but not to a reader
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _labels(name: str, labels: Any) -> tuple[str, ...]:
    if not all(isinstance(label, str) for label in labels):
        raise InputError(f"column {name!r}: categories must be labels of text")
    return tuple(labels)


def _check_keys(owner: str, entry: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in entry:
        if key not in known:
            # a key that does not look like a word may be a value in the wrong place
            is_word = isinstance(key, str) and re.fullmatch(r"[A-Za-z_-]{1,30}", key)
            shown = f"unknown key {key!r}" if is_word else "unknown key"
            raise InputError(f"{owner}: {shown}; known keys are {', '.join(known)}")


def _entries(columns: Any) -> list[tuple[Any, Any]]:
    if isinstance(columns, dict):
        return list(columns.items())
    if not isinstance(columns, list) or not all(isinstance(entry, dict) for entry in columns):
        raise InputError("schema must have a part named columns, as in [columns.age]")
    return [
        (entry.get("name"), {key: value for key, value in entry.items() if key != "name"})
        for entry in columns
    ]


def _by_ending(path: str | os.PathLike[str], choices: Mapping[str, Choice]) -> Choice:
    ending = Path(path).suffix.lower()
    if ending not in choices:
        raise InputError(f"schema file must end in .toml or .json, got {str(path)!r}; rename it")
    return choices[ending]


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            reason = "no such file" if not path.exists() else "not a regular file"
            raise InputError(f"cannot read schema {str(path)!r}: {reason}; check the path")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read schema {str(path)!r}; check the path") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"schema file must hold at most {MAX_BYTES} bytes; is it the table?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("schema file must be UTF-8 text; save it as such") from None


def _loads_toml(text: str) -> Any:
    with _syntax("TOML"):
        return tomllib.loads(text)


def _loads_json(text: str) -> Any:
    with _syntax("JSON"):
        return json.loads(text, object_pairs_hook=_without_repeats)


@contextlib.contextmanager
def _syntax(language: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        found = re.search(r"line (\d+),? column", str(error))
        where = f" at line {found[1]}" if found else ""
        raise InputError(f"schema file is not valid {language}{where}; correct it") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)

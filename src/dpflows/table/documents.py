"""Schema files: TOML and JSON in, TOML and JSON out.

What is between the two is a plain description: dictionaries, lists and texts. A message about a
schema file names columns and keys. It quotes no value, because the file may hold bounds that were
read from rows, or may be the table itself.
"""

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dpflows.errors import InputError, unchained
from dpflows.files import write_atomically
from dpflows.table.columns import Column, Constraint
from dpflows.table.kinds import KINDS, Kind
from dpflows.table.kinds.base import check_name
from dpflows.table.kinds.numbers import Continuous
from dpflows.table.raw import MAX_COLUMNS, TextFormat

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


@unchained
def read(path: str | os.PathLike[str]) -> Any:
    """The description in a schema file, by its ending; its content may be anything."""
    loads = _by_ending(path, {".toml": _loads_toml, ".json": _loads_json})
    return loads(_read_text(Path(path)))


def write(writers: Mapping[str, Callable[[], str]], path: str | os.PathLike[str]) -> None:
    """Write a schema file, whole or not at all; its ending says who writes the text."""
    content = _by_ending(path, writers)().encode("utf-8")
    if len(content) > MAX_BYTES:
        raise InputError(f"schema is too large: a schema file holds at most {MAX_BYTES} bytes")
    with write_atomically(path) as file:
        file.write(content)


@unchained
def parse(description: Any) -> dict[str, Any]:
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


def describe(column: Column) -> Description:
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


def to_json(description: Description) -> str:
    """A description as the text of a JSON file."""
    document: dict[str, Any] = {"values_read": True} if description["values_read"] else {}
    document |= _beside(description) | _text(description)
    document["columns"] = dict(map(_named, description["columns"]))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def to_toml(
    description: Description, gaps: Mapping[str, tuple[str, ...]], *, is_proposed: bool = False
) -> str:
    """A description as the text of a TOML file.

    Args:
        description: The schema.
        gaps: By column, the keys that are still to be declared.
        is_proposed: Whether nobody has looked at it yet, which a comment then asks for.

    Example:
        >>> dose = {"name": "dose", "kind": "continuous"}
        >>> print(to_toml({"columns": [dose], "values_read": False}, {"dose": ("min", "max")}))
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

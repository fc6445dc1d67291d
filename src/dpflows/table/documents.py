"""Schema files: TOML and JSON in, TOML and JSON out.

A message about a schema file names columns and keys. It quotes no value, because
the file may hold bounds that were read from rows, or may be the table itself.
"""

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpflows.errors import InputError, unchained
from dpflows.files import write_atomically
from dpflows.table.columns import Column, check_name
from dpflows.table.constraints import Constraint
from dpflows.table.moments import iso, moment
from dpflows.table.schema import MAX_COLUMNS, MAX_CONSTRAINTS, Schema
from dpflows.table.text_format import TextFormat

MAX_BYTES = 2**23
KNOWN_TOP_KEYS = ("columns", "values_read", "target", "constraints", "text")

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "kind": ((str,), "text"),
    "min": ((int, float), "a number"),
    "max": ((int, float), "a number"),
    "nullable": ((bool,), "true or false"),
    "unit": ((str,), "text"),
    "categories": ((list,), "a list of labels"),
    "spikes": ((list,), "a list of values"),
    "other": ((str,), "text"),
}
KNOWN_KEYS = tuple(_TYPES)

_ADVICE = "declare from public knowledge"


@unchained
def read(path: str | os.PathLike[str]) -> Schema:
    """Read a schema file by its ending."""
    loads = _by_ending(path, {".toml": _loads_toml, ".json": _loads_json})
    text = _read_text(Path(path))
    return parse(loads(text))


def write(schema: Schema, path: str | os.PathLike[str]) -> None:
    """Write a schema file by its ending, whole or not at all."""
    dumps = _by_ending(path, {".toml": to_toml, ".json": to_json})
    content = dumps(schema).encode("utf-8")
    if len(content) > MAX_BYTES:
        raise InputError(f"schema is too large: a schema file holds at most {MAX_BYTES} bytes")
    with write_atomically(path) as file:
        file.write(content)


@unchained
def parse(description: Any) -> Schema:
    """A schema from plain dictionaries and lists; columns are a mapping or a list."""
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
    return Schema(
        tuple(_column(name, entry) for name, entry in entries),
        values_read,
        target=_target(description.get("target")),
        constraints=_constraints(description.get("constraints", [])),
        text=TextFormat.from_dict(description.get("text", {})),
    )


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


def rules(schema: Schema) -> dict[str, Any]:
    """The target and the constraints as plain JSON, where they are declared."""
    target = {} if schema.target is None else {"target": schema.target}
    texts = [constraint.text for constraint in schema.constraints]
    return target | ({"constraints": texts} if texts else {})


def describe(column: Column) -> dict[str, Any]:
    """A column as plain JSON without its name and without what is left at its default."""
    parts = {
        "kind": column.kind,
        "min": _bound(column, column.min),
        "max": _bound(column, column.max),
        "nullable": column.nullable or None,
        "unit": column.unit or None,
        "categories": None if column.categories is None else list(column.categories),
        "spikes": None if column.spikes is None else [_bound(column, v) for v in column.spikes],
        "other": column.other,
    }
    return {key: value for key, value in parts.items() if value is not None}


def to_json(schema: Schema) -> str:
    """The schema as the text of a JSON file."""
    document: dict[str, Any] = {"values_read": True} if schema.values_read else {}
    document |= rules(schema)
    if written := schema.text.to_dict():
        document["text"] = written
    document["columns"] = {column.name: describe(column) for column in schema.columns}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def to_toml(schema: Schema) -> str:
    """The schema as the text of a TOML file, with a gap for what is undeclared.

    Example:
        >>> print(to_toml(Schema((Column("dose", "continuous"),))))
        [columns.dose]
        kind = "continuous"
        # min =    declare from public knowledge
        # max =    declare from public knowledge
    """
    parts = [_PROPOSED] if schema.is_proposed else []
    parts += [_VALUES_READ] if schema.values_read else []
    parts += [f"{key} = {_toml_value(value)}\n" for key, value in rules(schema).items()]
    parts += [_text_section(schema)] if schema.text.to_dict() else []
    return "\n".join(parts + [_section(column) for column in schema.columns])


_VALUES_READ = (
    "# bounds or categories below were read from the rows: not public\nvalues_read = true\n"
)
_PROPOSED = (
    "# proposed: kinds were told from the table, and one row can change them; check every line\n"
)
_TEXT_PROPOSED = "# read off the rows of the file: check every line\n"


def _text_section(schema: Schema) -> str:
    lines = [f"{key} = {_toml_value(value)}\n" for key, value in schema.text.to_dict().items()]
    return (_TEXT_PROPOSED if schema.is_proposed else "") + "[text]\n" + "".join(lines)


def _section(column: Column) -> str:
    lines = [f"[columns.{_toml_key(column.name)}]"]
    lines += [f"{key} = {_toml_value(value)}" for key, value in describe(column).items()]
    lines += [f"# {key} =    {_ADVICE}" for key in _undeclared_keys(column)]
    return "\n".join(lines) + "\n"


def _undeclared_keys(column: Column) -> tuple[str, ...]:
    if column.is_declared:
        return ()
    return ("categories",) if column.kind == "categorical" else ("min", "max")


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


def _bound(column: Column, value: float | None) -> float | int | str | None:
    if value is None or column.kind == "continuous":
        return value
    if column.kind == "date":
        return iso(value)
    return int(value)


def _column(name: Any, entry: Any) -> Column:
    check_name(name)
    if not isinstance(entry, dict):
        raise InputError(f"column {name!r}: must be a table of keys: {', '.join(KNOWN_KEYS)}")
    _check_keys(f"column {name!r}", entry, KNOWN_KEYS)
    if "kind" not in entry:
        raise InputError(f"column {name!r}: kind is missing; declare what the column holds")
    is_date = entry["kind"] == "date"
    return Column(name, **{key: _part(name, key, entry[key], is_date) for key in entry})


def _part(name: str, key: str, value: Any, is_date: bool) -> Any:
    if is_date and key in ("min", "max"):
        return _seconds(name, key, value)
    types, expected = _TYPES[key]
    if not _is_one_of(value, types):
        raise InputError(f"column {name!r}: {key} must be {expected}")
    if key == "spikes":
        return tuple(_spike(name, spike, is_date) for spike in value)
    return _labels(name, value) if key == "categories" else value


def _is_one_of(value: Any, types: tuple[type, ...]) -> bool:
    # a boolean is an integer to Python, but not to a reader
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _labels(name: str, labels: Any) -> tuple[str, ...]:
    if not all(isinstance(label, str) for label in labels):
        raise InputError(f"column {name!r}: categories must be labels of text")
    return tuple(labels)


def _spike(name: str, value: Any, is_date: bool) -> Any:
    if is_date:
        return _seconds(name, "spikes", value)
    if not _is_one_of(value, (int, float)):
        raise InputError(f"column {name!r}: spikes must be numbers")
    return value


def _seconds(name: str, key: str, value: Any) -> float:
    seconds = moment(value)
    if seconds is None:
        raise InputError(f"column {name!r}: {key} must be a date such as 2020-12-31")
    return seconds


def _check_keys(owner: str, entry: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in entry:
        if key not in known:
            # a key that looks like no word may be a value that strayed
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


def _by_ending(
    path: str | os.PathLike[str], choices: dict[str, Callable[[Any], Any]]
) -> Callable[[Any], Any]:
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

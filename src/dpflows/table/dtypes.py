"""What the column types of each library are called, and what such columns hold."""

import re
import zoneinfo
from dataclasses import dataclass
from typing import final

import pyarrow as pa

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_PLAIN = {name: name for name in [*_INTEGERS, "float16", "float32", "float64"]}
_ARROW = {name: name for name in _INTEGERS} | {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_POLARS = {
    **{name.replace("i", "I").replace("u", "U"): name for name in _INTEGERS},
    "Float32": "float32",
    "Float64": "float64",
}
#: The numeric types of each library, by its own name, and what numpy calls them.
NUMBERS: dict[str, dict[str, str]] = {
    "numpy": _PLAIN,
    "pandas": _PLAIN | _POLARS | {f"{own}[pyarrow]": name for own, name in _ARROW.items()},
    "polars": _POLARS,
    "arrow": _ARROW,
}

#: The other types of each library, and what their columns hold.
_WORDS: dict[str, dict[str, str]] = {
    "numpy": {"bool": "truth", "object": "object", "str": "text", "datetime64[D]": "day"},
    "pandas": {
        "bool": "truth",
        "boolean": "truth",
        "bool[pyarrow]": "truth",
        "str": "text",
        "string": "text",
        "string[pyarrow]": "text",
        "large_string[pyarrow]": "text",
        "object": "object",
        "object[date]": "day",
        "date32[day][pyarrow]": "day",
        "category": "labels",
        "category[ordered]": "labels",
        "category[int64]": "labels",
        "category[int64, ordered]": "labels",
    },
    "polars": {
        "Boolean": "truth",
        "String": "text",
        "Date": "day",
        "Categorical": "labels",
        "Enum": "labels",
    },
    "arrow": {
        "bool": "truth",
        "string": "text",
        "large_string": "text",
        "date32[day]": "day",
        "date64[ms]": "day",
    },
}

_ZONE = r"[A-Za-z0-9_/+:-]{1,50}"
_STAMP = rf"timestamp\[(s|ms|us|ns)(?:, tz=({_ZONE}))?\]"
_MOMENTS = {
    "numpy": r"datetime64\[(s|ms|us|ns)\]()",
    "pandas": rf"datetime64\[(s|ms|us|ns)(?:, ({_ZONE}))?\]|{_STAMP}\[pyarrow\]",
    "polars": rf"Datetime\(time_unit='(ms|us|ns)', time_zone=(?:None|'({_ZONE})')\)",
    "arrow": _STAMP,
}
_DICTIONARY = (
    r"dictionary<values=(large_string|string|int64), indices=(u?int\d{1,2}), ordered=[01]>"
)


@final
@dataclass(frozen=True)
class Dtype:
    """A column's type.

    Args:
        own: Its name in the words of its library; empty if it is not known.
        sort: What it holds: number, truth, text, labels, moment, day or object.
        numpy: What numpy calls a numeric type.
        unit: The unit of moments.
        zone: The time zone in which moments are shown.

    Example:
        >>> dtype_of("pandas", "datetime64[ns, UTC]")
        Dtype(own='datetime64[ns, UTC]', sort='moment', numpy='', unit='ns', zone='UTC')
    """

    own: str = ""
    sort: str = ""
    numpy: str = ""
    unit: str = ""
    zone: str | None = None

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers."""
        return "int" in self.numpy

    @property
    def has_integer_labels(self) -> bool:
        """Whether it holds a number of labels that are whole numbers."""
        return self.sort == "labels" and "int64" in self.own.partition(", indices")[0]


def dtype_of(library: str, own: str) -> Dtype | None:
    """What a type's name means; None if it is not known. The name may be hostile."""
    if own in NUMBERS[library]:
        return Dtype(own, "number", numpy=NUMBERS[library][own])
    if own in _WORDS[library]:
        return Dtype(own, _WORDS[library][own])
    if library == "arrow" and (found := re.fullmatch(_DICTIONARY, own)):
        return Dtype(own, "labels") if found[2] in _INTEGERS else None
    found = re.fullmatch(_MOMENTS[library], own)
    return None if found is None else _moment(own, found)


def _moment(own: str, found: re.Match[str]) -> Dtype | None:
    unit, zone = (found[1], found[2]) if found[1] else (found[3], found[4])
    if zone and not _is_zone(zone):
        return None
    return Dtype(own, "moment", unit=unit, zone=zone or None)


def _is_zone(zone: str) -> bool:
    if re.fullmatch(r"[+-]\d\d:\d\d", zone):
        return True
    try:
        zoneinfo.ZoneInfo(zone)
    except (KeyError, OSError, ValueError):
        return False
    return True


def public_name(library: str, own: str, held: pa.DataType) -> str:
    """A type's name without what it says about rows, and with what it leaves unsaid.

    Labels that a library keeps in its type are left out: the schema has those that are
    public.

    Example:
        >>> public_name("polars", "Enum(categories=['secret'])", pa.string())
        'Enum'
    """
    if library == "numpy" and re.fullmatch(r"str\d*|StringDType.*", own):
        return "str"
    if library == "polars":
        return own.partition("(")[0] if own.startswith(("Enum", "Categorical")) else own
    if library != "pandas":
        return own
    if own == "object" and pa.types.is_date(held):
        return "object[date]"
    if own == "category" and pa.types.is_dictionary(held):
        return _category(held)
    return own


def _category(held: pa.DictionaryType) -> str:
    integers = ["int64"] if pa.types.is_integer(held.value_type) else []
    details = ", ".join(integers + (["ordered"] if held.ordered else []))
    return f"category[{details}]" if details else "category"

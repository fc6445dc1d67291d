"""How cells are written as text: marks, encoding and what becomes of cells that break the rules.

Everything here is declared, or a public default. Nothing is inferred from the rows.
"""

import codecs
import datetime
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from dpflows.errors import InputError

#: What a cell of text holds when it holds nothing, unless something else is declared.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None")

REFUSE, AS_MISSING = "refuse", "missing"
MAX_MARKS = 100
MAX_MARK_LENGTH = 100

#: Delimiters that files usually have.
USUAL_DELIMITERS = (",", ";", "\t", "|")

#: Encodings in which a line end is one byte that stands for nothing else, so that every
#: line can be decoded by itself.
_BY_LINE = {
    *("utf-8", "ascii", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "mac-greek"),
    *("mac-latin2", "mac-turkish", "gbk", "gb2312", "gb18030", "big5", "euc_jp", "euc_kr"),
    *("shift_jis", "cp932", "cp949", "cp950", "cp437", "cp737", "cp775", "cp850", "cp852"),
    *("cp855", "cp857", "cp858", "cp860", "cp861", "cp862", "cp863", "cp865", "cp866", "cp874"),
    *(f"cp125{i}" for i in range(9)),
    *(f"iso8859-{i}" for i in range(1, 17)),
}
#: Encodings of two bytes or more per character; files in them are decoded whole.
_WHOLE = {"utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"}
_FORBIDDEN_MARKS = re.compile(r"[0-9A-Za-z+\-\x00-\x08\x0a-\x1f\x7f]")


@final
@dataclass(frozen=True)
class TextFormat:
    r"""How the cells of a table are written as text.

    Args:
        delimiter: What stands between cells; ``None`` is a tab in files whose name ends in
            ``.tsv``, and a comma in others.
        decimal: What stands before the fraction of a number.
        thousands: What may stand between groups of three digits; empty for nothing.
        encoding: Of files; a mark at the start of a file is left out.
        quote: What may stand around a cell; empty for nothing.
        header: Whether a file's first line holds the names of the columns.
        missing: What a cell holds that holds nothing; blanks around it do not count.
        date_formats: How dates are written, in the codes of ``datetime.strptime``, tried in
            order; empty for the forms of ISO 8601, such as ``2020-12-31T23:59:00Z``.
        multiline: Whether quoted cells may hold line ends.
        unreadable: What becomes of cells and lines that break these rules: ``"refuse"``
            refuses the table, ``"missing"`` makes them missing cells of their row.

    Guarantee:
        A cell is read by these public rules alone, whatever other rows hold.

    Example:
        >>> TextFormat(delimiter=";", decimal=",").to_dict()
        {'delimiter': ';', 'decimal': ','}
    """

    delimiter: str | None = None
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    quote: str = '"'
    header: bool = True
    missing: tuple[str, ...] = MISSING
    date_formats: tuple[str, ...] = ()
    multiline: bool = False
    unreadable: str = REFUSE

    def __post_init__(self) -> None:
        _check_types(vars(self))
        for key in ("missing", "date_formats"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        object.__setattr__(self, "encoding", _encoding(self.encoding))
        self._check_marks()
        for written in self.date_formats:
            _check_date_format(written)
        if self.unreadable not in (REFUSE, AS_MISSING):
            raise InputError(f'unreadable must be "{REFUSE}" or "{AS_MISSING}"')
        if self.multiline and not self.quote:
            raise InputError("multiline needs a quote, between which line ends may stand")

    def _check_marks(self) -> None:
        _check_ascii("delimiter", self.delimiter, can_be_empty=False)
        _check_ascii("quote", self.quote, can_be_empty=True)
        if self.quote and self.quote == self.delimiter:
            raise InputError("quote and delimiter must differ")
        for key in ("decimal", "thousands"):
            mark = getattr(self, key)
            if len(mark) > 1 or _FORBIDDEN_MARKS.search(mark):
                raise InputError(f"{key} must be one character that is no digit, letter or sign")
        if not self.decimal or self.decimal in (self.thousands, " ", "\t"):
            raise InputError("decimal must be a visible character other than thousands")

    @property
    def is_decoded_whole(self) -> bool:
        """Whether lines cannot be separated before a file is decoded."""
        return self.encoding in _WHOLE

    @property
    def makes_missing(self) -> bool:
        """Whether unreadable cells are missing ones, and not a reason to refuse."""
        return self.unreadable == AS_MISSING

    def delimiter_of(self, path: str | os.PathLike[str]) -> str:
        r"""The delimiter of a file: as declared, or by the ending of its name.

        Example:
            >>> TextFormat().delimiter_of("rows.tsv.gz"), TextFormat().delimiter_of("rows.csv")
            ('\t', ',')
        """
        if self.delimiter is not None:
            return self.delimiter
        name = Path(path).name.lower().removesuffix(".gz")
        return "\t" if name.endswith(".tsv") else ","

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain JSON."""
        differing = {key: value for key, value in vars(self).items() if value != _DEFAULTS[key]}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in differing.items()}

    @classmethod
    def from_dict(cls, description: Any) -> "TextFormat":
        """Read back ``to_dict``; the content may be hostile."""
        if not isinstance(description, dict):
            raise InputError(f"text must be a table of keys: {', '.join(_DEFAULTS)}")
        if any(key not in _DEFAULTS for key in description):
            raise InputError(f"text: unknown key; known keys are {', '.join(_DEFAULTS)}")
        try:
            _check_types(description)
            lists = {k: tuple(v) for k, v in description.items() if isinstance(v, list)}
            return cls(**description | lists)
        except InputError as error:
            message = f"text: {error}"
        raise InputError(message)


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(TextFormat)}


def _check_types(given: dict[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(_DEFAULTS[key], bool):
            if not isinstance(value, bool):
                raise InputError(f"{key} must be true or false")
        elif isinstance(_DEFAULTS[key], tuple):
            _check_texts(key, value)
        elif not isinstance(value, str) and value is not _DEFAULTS[key]:
            raise InputError(f"{key} must be text")


def _check_texts(key: str, given: Any) -> None:
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise InputError(f"{key} must be a list of texts")
    if len(given) > MAX_MARKS or any(len(text) > MAX_MARK_LENGTH for text in given):
        raise InputError(f"{key} must be at most {MAX_MARKS} texts of {MAX_MARK_LENGTH} characters")


def _check_ascii(key: str, mark: str | None, *, can_be_empty: bool) -> None:
    if mark is None or (can_be_empty and mark == ""):
        return
    is_plain = len(mark) == 1 and (mark == "\t" or " " <= mark <= "~") and not mark.isalnum()
    if not is_plain or mark in ".+-":
        raise InputError(f'{key} must be one ASCII character such as "," and no letter or digit')


def _encoding(name: str) -> str:
    """The usual name of an encoding that can be read."""
    try:
        usual = codecs.lookup(name).name
    except (LookupError, ValueError):
        usual = ""
    usual = {"utf-8-sig": "utf-8", "latin-1": "iso8859-1"}.get(usual, usual)
    if usual not in _BY_LINE | _WHOLE:
        raise InputError(
            "encoding must be one that is known, such as utf-8, utf-16, latin-1 or cp1252"
        )
    return usual


def _check_date_format(written: str) -> None:
    day = datetime.datetime(2021, 11, 23, tzinfo=datetime.UTC)
    try:
        is_known = datetime.datetime.strptime(day.strftime(written), written).date() == day.date()
    except (ValueError, re.error):
        is_known = False
    if not is_known:
        raise InputError('date_formats must hold year, month and day, such as "%d.%m.%Y %H:%M"')


#: What holds where nothing is declared.
PLAIN = TextFormat()

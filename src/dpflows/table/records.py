"""The records of a text file, each found without looking at the others.

A record is a line. A quote that is opened on a line is closed there, or that line cannot be
read; otherwise one stray quote would swallow the rows behind it. Only where line ends inside
quotes are declared are records found by the quotes of the whole file, which must then be
balanced.
"""

import bisect
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from dpflows.errors import InputError
from dpflows.table.columns import counted
from dpflows.table.text_format import TextFormat

#: The longest line that is taken for a row rather than for something else.
MAX_LINE_BYTES = 2**22

_UNREADABLE = 'correct them, or declare unreadable = "missing" in [text]'
#: What is wrong with a record, and what to do.
DEFECTS = {
    "encoding": (
        "with bytes that are not {encoding}",
        f"declare the encoding in [text] (--encoding), {_UNREADABLE}",
    ),
    "controls": ("with control characters", f"export the file as CSV, {_UNREADABLE}"),
    "quote": (
        "with a quote that is not closed where it should be",
        f"declare multiline = true in [text] if cells hold line ends, {_UNREADABLE}",
    ),
    "blank": ("without cells", f"remove blank lines, {_UNREADABLE}"),
    "long": (f"of more than {MAX_LINE_BYTES} bytes", f"is it a table? {_UNREADABLE}"),
}

_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_CONTROLS_IN_CELLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NO_CONTROLS = bytes(i for i in range(256) if not _CONTROLS_IN_CELLS.match(bytes([i])))
_BLANK = re.compile(rb"(?m)^\r?\n")


@final
@dataclass(frozen=True, repr=False)
class Records:
    """A file in UTF-8 whose every record ends with a line end.

    Args:
        content: The file.
        start: Where rows begin.
        text: How it is written.
        delimiter: What stands between cells.
        defects: What is known to be wrong already, by where the record begins.
    """

    content: bytes
    start: int
    text: TextFormat
    delimiter: str
    defects: dict[int, str]

    @functools.cached_property
    def starts(self) -> list[int]:
        """Where the rows of a file with line ends inside quotes begin.

        Raises:
            InputError: Its quotes are not balanced.
        """
        record = re.compile(grammar(self.text, self.delimiter))
        starts, at = [], self.start
        while at < len(self.content):
            found = record.match(self.content, at)
            if found is None:
                raise InputError(
                    "file has a quote that is not closed or stands inside a cell, and multiline "
                    "= true needs quotes as in RFC 4180; correct the file"
                )
            starts.append(at)
            at = found.end()
        return starts

    def count(self) -> int:
        """How many rows there are."""
        if self.text.multiline:
            return len(self.starts)
        return self.content.count(b"\n", self.start)

    def start_of(self, at: int) -> int:
        """Where the record begins that holds a byte."""
        if self.text.multiline:
            return self.starts[bisect.bisect_right(self.starts, at) - 1]
        return self.content.rfind(b"\n", self.start, at) + 1 or self.start

    def end_of(self, at: int) -> int:
        """Behind the line end of the record that holds a byte."""
        if not self.text.multiline:
            return self.content.find(b"\n", at) + 1 or len(self.content)
        following = bisect.bisect_right(self.starts, at)
        return self.starts[following] if following < len(self.starts) else len(self.content)

    def numbers(self, starts: list[int]) -> list[int]:
        """The numbers of rows that begin at these places, which ascend; the first is 0."""
        if self.text.multiline:
            return [bisect.bisect_left(self.starts, at) for at in starts]
        numbers, number, before = [], 0, self.start
        for at in starts:
            number, before = number + self.content.count(b"\n", before, at), at
            numbers.append(number)
        return numbers

    def found_defects(self, columns: int) -> dict[int, str]:
        """What is wrong with records before their cells are counted, by where they begin."""
        found = dict(self.defects)
        checks = {"controls": self._controls(), "quote": self._quotes(), "long": self._long()}
        if columns > 1:
            checks["blank"] = self._blanks()
        for name, places in checks.items():
            for at in places:
                found.setdefault(self.start_of(at), name)
        return dict(sorted(found.items()))

    def _controls(self) -> Iterator[int]:
        # looking for them one by one takes ten times as long as knowing that there are none
        if not self.content.translate(None, _NO_CONTROLS) and not self._has_returns():
            return
        pattern, at = _CONTROLS_IN_CELLS if self.text.multiline else _CONTROLS, self.start
        while found := pattern.search(self.content, at):
            yield found.start()
            at = self.end_of(found.start())

    def _has_returns(self) -> bool:
        return self.content.count(b"\r") != self.content.count(b"\r\n")

    def _quotes(self) -> Iterator[int]:
        quote = self.text.quote.encode()
        if not quote or self.text.multiline or self.content.find(quote, self.start) < 0:
            return
        lines, at = re.compile(b"(?:" + grammar(self.text, self.delimiter) + b")*+"), self.start
        while (at := lines.match(self.content, at).end()) < len(self.content):  # type: ignore[union-attr]
            yield at
            at = self.end_of(at)

    def _blanks(self) -> Iterator[int]:
        if self.text.multiline:
            yield from (at for at in self.starts if _BLANK.match(self.content, at))
        elif self.content.startswith((b"\n", b"\r\n"), self.start) or self._has_blanks():
            yield from (found.start() for found in _BLANK.finditer(self.content, self.start))

    def _has_blanks(self) -> bool:
        return b"\n\n" in self.content or b"\n\r\n" in self.content

    def _long(self) -> Iterator[int]:
        at = self.start
        while len(self.content) - at > MAX_LINE_BYTES:
            last = self.content.rfind(b"\n", at, at + MAX_LINE_BYTES)
            if last < 0:
                yield at
                at = self.end_of(at)
            else:
                at = last + 1

    def refuse(self, defects: dict[int, str]) -> None:
        """Refuse a file that has defects; by their number and the first row, quoting nothing."""
        if not defects:
            return
        first, name = next(iter(defects.items()))
        count = sum(other == name for other in defects.values())
        what, cure = DEFECTS[name]
        what = what.format(encoding=self.text.encoding)
        row = self.numbers([first])[0] + 1
        raise InputError(
            f"file has {counted(count, 'line')} {what}, the first is row {row}; {cure}"
        )

    def without(self, starts: list[int], columns: int) -> bytes:
        """The rows, with empty cells in place of some of them."""
        pieces, before = [], self.start
        filler = self.delimiter.encode() * (columns - 1) + b"\n"
        for at in starts:
            pieces += [self.content[before:at], filler]
            before = self.end_of(at)
        return b"".join([*pieces, self.content[before:]])


def grammar(text: TextFormat, delimiter: str) -> bytes:
    r"""What a record with quotes looks like, as a pattern for bytes.

    Example:
        >>> record = re.compile(grammar(TextFormat(), ","))
        >>> [bool(record.fullmatch(line)) for line in (b'"a,b",c\n', b'"a,b\n')]
        [True, False]
    """
    quote, part = (re.escape(mark).encode() for mark in (text.quote, delimiter))
    if not quote:
        return b"[^\\n]*+\\n"
    inside = b"[^%b]" % quote if text.multiline else b"[^%b\\n]" % quote
    # beside line ends inside quotes, a quote inside a bare cell would shift all that follows
    rest = b"[^%b%b\\r\\n]" % (quote, part) if text.multiline else b"[^%b\\n]" % part
    quoted = b"%b(?:%b++|%b%b)*+%b" % (quote, inside, quote, quote, quote)
    cell = b"(?:%b|[^%b%b\\r\\n]%b*+|)" % (quoted, quote, part, rest)
    return b"%b(?:%b%b)*+\\r?\\n" % (cell, part, cell)

"""Text of unknown origin, made safe to show.

A name or a purpose may come from a file that somebody made to deceive: an escape
sequence moves the cursor, a line break starts a line of its own, an override turns the
direction of writing. Whatever is shown or written as text passes here first.
"""

import unicodedata

#: Controls, formats (bidirectional overrides are among them), line and paragraph separators,
#: halves of surrogate pairs, and code points that stand for nothing.
_UNSAFE = ("Cc", "Cf", "Zl", "Zp", "Cs", "Cn")


def displayable(text: str) -> str:
    r"""The text on one line, with what must not be shown written as an escape.

    Guarantee:
        The result has no control character, no line break, no bidirectional override and
        no half of a surrogate pair. Text without any of them is returned unchanged.

    Example:
        >>> displayable("age\nNOT PRIVATE"), displayable("größe [cm]")
        ('age\\nNOT PRIVATE', 'größe [cm]')
    """
    return "".join(letter if _is_safe(letter) else _escaped(letter) for letter in text)


def is_displayable(text: str) -> bool:
    r"""Whether ``displayable`` would leave the text as it is.

    Example:
        >>> is_displayable("training"), is_displayable("\x1b[2J")
        (True, False)
    """
    return all(_is_safe(letter) for letter in text)


def _is_safe(letter: str) -> bool:
    return unicodedata.category(letter) not in _UNSAFE


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")

"""What a ledger accepts as words: short and printable, so that no rows end up in it."""

import re
import secrets
from collections.abc import Iterable

from dpflows.errors import InputError
from dpflows.privacy.events import Event, SelectionEvent

LONGEST_RUN, LONGEST_PURPOSE = 100, 200

_HEX = re.compile(r"[0-9a-f]+")
_NAME = re.compile(r"[a-z0-9-]{1,32}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_DIGEST_LENGTH, _IDENTITY_LENGTH = 64, 32


def random_name() -> str:
    """A name that nobody else will choose: 128 random bits.

    Example:
        >>> len(random_name())
        32
    """
    return secrets.token_hex(16)


def check_run(run: str) -> str:
    """Refuse a run id that is not short, printable and free of blanks.

    Example:
        >>> check_run("night-7")
        'night-7'
    """
    plain = run.isascii() and run.isprintable() and " " not in run
    if not (plain and 1 <= len(run) <= LONGEST_RUN):
        raise InputError(
            f"run must be 1 to {LONGEST_RUN} printable ASCII characters without blanks; leave it "
            "out to get a random one"
        )
    return run


def check_purpose(purpose: str) -> str:
    """Refuse a purpose that is empty, long or not printable.

    Example:
        >>> check_purpose("fit")
        'fit'
    """
    if not purpose:
        raise InputError("purpose must say in a few words what the charge is for, got nothing")
    _check_label(purpose)
    return purpose


def check_events(events: Iterable[Event]) -> None:
    """Refuse labels inside events that are long or not printable."""
    for event in events:
        _check_label(event.purpose)
        if isinstance(event, SelectionEvent):
            check_events(event.run)


def check_artefact(artefact: str) -> str:
    """Refuse anything but a SHA-256 in hexadecimal, or nothing.

    Example:
        >>> check_artefact("")
        ''
    """
    if artefact and not is_digest(artefact):
        raise InputError("artefact must be the SHA-256 of a file, 64 hexadecimal digits, or empty")
    return artefact


def check_identity(identity: str) -> str:
    """Refuse anything but the random name of a ledger.

    Example:
        >>> check_identity("0f" * 16) == "0f" * 16
        True
    """
    if len(identity) != _IDENTITY_LENGTH or not is_hex(identity):
        raise InputError("a ledger's identity must be 32 hexadecimal digits")
    return identity


def check_name(name: str) -> str:
    """Refuse anything but a short name in lower case, with hyphens.

    Example:
        >>> check_name("gdp-filter")
        'gdp-filter'
    """
    if _NAME.fullmatch(name) is None:
        raise InputError("a name must be up to 32 small letters, digits and hyphens")
    return name


def check_time(time: str) -> str:
    """Refuse anything but a time in UTC to the second; it is shown on screens.

    Example:
        >>> check_time("2026-11-16T15:28:27Z")
        '2026-11-16T15:28:27Z'
    """
    if _TIME.fullmatch(time) is None:
        raise InputError("time must be written like 2026-11-16T15:28:27Z")
    return time


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return len(text) == _DIGEST_LENGTH and is_hex(text)


def is_hex(text: str) -> bool:
    """Whether a text consists of hexadecimal digits."""
    return _HEX.fullmatch(text) is not None


def _check_label(label: str) -> None:
    if len(label) > LONGEST_PURPOSE or not label.isprintable():
        raise InputError(
            f"purpose must be at most {LONGEST_PURPOSE} printable characters; name what is paid "
            "for, not what is in the rows"
        )

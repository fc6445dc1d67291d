"""Refusals of bad parameters, in one line that names the parameter."""

import math

from dpflows.errors import InputError


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of ``choices``, naming the parameter."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a positive finite number, naming the parameter."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number, got {value}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below ``least``, naming the parameter."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")

"""Members as they lie in an ensemble's file."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpflows.anomaly.members import Member
from dpflows.errors import InputError

INTERNAL_STAMP = "INTERNAL: this file must not be published; only its answers may"

_THRESHOLDS = "thresholds"


def written_members(
    members: Sequence[Member],
) -> tuple[list[dict[str, Any] | None], dict[str, np.ndarray]]:
    """Headers by member, and all arrays under names that tell whose they are."""
    described = [member.to_file() for member in members]
    arrays = {
        f"{i}/{name}": array
        for i, (_, own, _) in enumerate(described)
        for name, array in own.items()
    }
    thresholds = np.array([threshold for _, _, threshold in described], dtype=np.float64)
    return [header for header, _, _ in described], arrays | {_THRESHOLDS: thresholds}


def read_members(
    headers: Any, arrays: dict[str, np.ndarray], *, expected: int, columns: int
) -> list[Member]:
    """Read back ``written_members``; the content may be hostile."""
    thresholds = arrays[_THRESHOLDS]
    if not isinstance(headers, list) or len(headers) != expected:
        raise InputError("the file does not hold as many members as it states")
    if thresholds.shape != (expected,) or np.isnan(thresholds).any():
        raise InputError("the file does not hold a threshold for every member")
    members = [
        Member.from_file((header, _own(arrays, i), float(threshold)))
        for i, (header, threshold) in enumerate(zip(headers, thresholds, strict=True))
    ]
    if any(member.columns not in (None, columns) for member in members):
        raise InputError("the file's members do not have the columns of its schema")
    return members


def _own(arrays: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    prefix = f"{index}/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }

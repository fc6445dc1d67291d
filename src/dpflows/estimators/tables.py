"""Tables in, tables of the same kind out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from dpflows.errors import InputError


@dataclass(frozen=True)
class Columns:
    """What is public about a table's columns: how many, their names, the frame's kind."""

    count: int
    names: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Columns":
        """Read back ``dataclasses.asdict``."""
        count, names = description["count"], description["names"]
        names = None if names is None else tuple(str(name) for name in names)
        if not isinstance(count, int) or (names is not None and len(names) != count):
            raise InputError("the columns in the file do not fit together")
        return cls(count, names)

    def frame(self, rows: Float[np.ndarray, "n d"]) -> Any:
        """Rows as the kind of table that was fitted."""
        if self.names is None:
            return rows
        import pandas as pd

        return pd.DataFrame(rows, columns=list(self.names))


def read_rows(table: Any) -> tuple[Float[np.ndarray, "n d"], Columns]:
    """A numeric table as double-precision rows, and its columns.

    Guarantee:
        An error names what is wrong, never a value or where it stands.
    """
    names = getattr(table, "columns", None)
    try:
        rows = np.asarray(table, dtype=float)
    except (TypeError, ValueError):
        raise InputError("the table must hold numbers only; encode other columns first") from None
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(f"the table must have rows and columns, got shape {rows.shape}")
    if np.isnan(rows).any():
        raise InputError("the table has missing values; fill them or drop their rows first")
    columns = None if names is None else tuple(str(name) for name in names)
    return rows, Columns(rows.shape[1], columns)


def read_bounds(bounds: Any, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Declared ``(low, high)``, numbers or one per column, as two vectors."""
    if bounds is None:
        raise InputError(
            "bounds are not declared and must not be read from private rows: "
            "pass bounds=(low, high), numbers or one per column"
        )
    try:
        low, high = (np.broadcast_to(np.asarray(b, float), (columns,)) for b in bounds)
    except (TypeError, ValueError):
        raise InputError(
            f"bounds must be (low, high), numbers or one per each of {columns} columns"
        ) from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError("bounds must be finite with low below high in every column")
    return low.copy(), high.copy()

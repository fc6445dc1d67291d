"""``dpflows score``: the log-density of every row of a table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpflows.cli import output
from dpflows.cli.settings import (
    AnswersFile,
    AsJson,
    DropExtra,
    Force,
    ModelFile,
    NoHeader,
    RowsFile,
    reads_text,
    require_target,
    with_text,
)
from dpflows.errors import InputError

CHUNK = 100_000
NOTE = (
    "INTERNAL: scores of private rows are themselves private, and no guarantee covers them. Store "
    "the file as you store the rows."
)


@reads_text(hidden=False)
def score(
    model: ModelFile,
    rows: RowsFile,
    target: AnswersFile = None,
    force: Force = False,
    drop_extra: DropExtra = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    *,
    text: dict[str, str],
) -> None:
    """Write the log-density of every row of a table; INTERNAL."""
    from dpflows.anomaly.persistence import density_of, load
    from dpflows.cli.tables import read_rows

    target = require_private_target(target, "scores", rows, force=force)
    fitted = density_of(load(model))
    schema = with_text(fitted.encoding_.schema, text)
    frame = read_rows(rows, schema, drop_extra=drop_extra, no_header=no_header)
    write_answers(
        frame, target, lambda piece: {"log_density": fitted.score_samples(piece)}, force=force
    )
    if as_json:
        output.print_json({"file": str(target), "column": "log_density", "internal": True})
    else:
        for line in (NOTE, f"Scores: {target}"):
            output.say(output.console(), line)


def require_private_target(target: Path | None, what: str, rows: Path, *, force: bool) -> Path:
    """Require an output file that can be written; private results are not printed."""
    from dpflows.cli.tables import WRITERS

    if target is None:
        raise InputError(
            f"--output must be given: {what} are private, so they are written only to a file"
        )
    require_target(target, tuple(WRITERS), source=rows, force=force)
    return target


def write_answers(
    frame: Any,
    target: Path,
    answer: Callable[[Any], dict[str, Any]],
    chunk: int | None = None,
    *,
    force: bool,
) -> None:
    """Compute answers in chunks and write them in the order of the rows.

    Args:
        frame: The rows.
        target: The output file, written atomically.
        answer: Gives the output columns for a chunk of rows.
        chunk: Number of rows per chunk.
        force: Whether an existing file of that name may be overwritten.
    """
    import pyarrow as pa

    from dpflows.cli.tables import write_table

    with write_table(target, overwrite=force) as write:
        for start in range(0, frame.num_rows, chunk or CHUNK):
            write(pa.table(answer(frame.slice(start, chunk or CHUNK))))

"""``dpflows score``: the log-density of every row of a table."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, DropExtra, ModelFile, NoHeader, RowsFile, require_target
from dpflows.errors import InputError

CHUNK = 100_000
NOTE = (
    "INTERNAL: scores of private rows are themselves private, and no guarantee covers them. "
    "Keep the file where the rows are kept."
)


def score(
    model: ModelFile,
    rows: RowsFile,
    target: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="A .csv, .csv.gz or .parquet file."),
    ] = None,
    drop_extra: DropExtra = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """Write the log-density of every row, in the order of the rows; INTERNAL."""
    from dpflows.cli.tables import WRITERS, read_rows
    from dpflows.estimators.persistence import load

    if target is None:
        raise InputError("output must be named: scores are private, so they go to a file alone")
    require_target(target, tuple(WRITERS), source=rows)
    fitted = load(model)
    frame = read_rows(rows, fitted.encoding_.schema, drop_extra=drop_extra, no_header=no_header)
    _write(fitted, frame, target)
    if as_json:
        output.print_json({"file": str(target), "column": "log_density", "internal": True})
    else:
        for line in (NOTE, f"Scores: {target}"):
            output.say(output.console(), line)


def _write(fitted: Any, frame: Any, target: Path) -> None:
    """Score and write piece by piece; what is outside the bounds has -inf."""
    import pyarrow as pa

    from dpflows.cli.tables import write_table

    with write_table(target) as write:
        for start in range(0, frame.num_rows, CHUNK):
            logs = fitted.score_samples(frame.slice(start, CHUNK))
            write(pa.table({"log_density": logs}))

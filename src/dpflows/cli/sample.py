"""``dpflows sample``: synthetic rows from a fitted model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, ModelFile, require_target
from dpflows.errors import InputError


def sample(
    model: ModelFile,
    rows: Annotated[int, typer.Option(help="How many rows to draw.")],
    target: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="A .csv, .csv.gz or .parquet file.")
    ],
    chunk: Annotated[int, typer.Option(help="Rows held in memory at a time.")] = 100_000,
    as_json: AsJson = False,
) -> None:
    """Draw synthetic rows from a model; costs no privacy."""
    from dpflows.anomaly.persistence import density_of, load
    from dpflows.cli.tables import WRITERS

    for name, value in (("rows", rows), ("chunk", chunk)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    require_target(target, tuple(WRITERS), source=model)
    fitted = density_of(load(model))
    _draw(fitted, rows, chunk, target)
    stamps = list(fitted.guarantee_.stamps)
    if as_json:
        output.print_json({"file": str(target), "rows": rows, "stamps": stamps})
    else:
        for line in [*stamps, f"Rows: {rows:,} synthetic rows in {target}"]:
            output.say(output.console(), line)


def _draw(fitted: Any, rows: int, chunk: int, target: Path) -> None:
    from dpflows.cli.tables import write_table
    from dpflows.table.forms import Form

    # whatever table was fitted, columns come out under the schema's names
    fitted.form_ = Form("arrow")
    with write_table(target) as write:
        for start in range(0, rows, chunk):
            write(fitted.sample(min(chunk, rows - start)))

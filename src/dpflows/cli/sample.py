"""``dpflows sample``: synthetic rows from a fitted model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, Force, ModelFile, require_target
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.cli.tables import Write


def sample(
    model: ModelFile,
    rows: Annotated[int, typer.Option(help="Number of rows to draw.")],
    target: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Where to write the rows: a .csv, .csv.gz or .parquet file.",
        ),
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE", help="Draw only rows with this value; may be repeated."
        ),
    ] = None,
    chunk: Annotated[int, typer.Option(help="Number of rows held in memory at a time.")] = 100_000,
    escape_formulas: Annotated[
        bool,
        typer.Option(
            "--escape-formulas", help="Escape text that a spreadsheet would run as a formula."
        ),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw synthetic rows from a model; costs no privacy."""
    from dpflows.anomaly.persistence import density_of, load
    from dpflows.cli.tables import WRITERS, write_table

    for name, value in (("rows", rows), ("chunk", chunk)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    require_target(target, tuple(WRITERS), source=model, force=force)
    is_text = not target.name.lower().endswith(".parquet")
    if escape_formulas and not is_text:
        raise InputError("--escape-formulas applies only to .csv output; remove it")
    fitted, conditions = density_of(load(model)), read_conditions(where or [])
    with write_table(target, overwrite=force) as write:
        kept = _draw(
            fitted, rows, conditions, chunk, _escaping(write) if escape_formulas else write
        )
    stamps = list(fitted.guarantee_.stamps)
    if as_json:
        facts = {"file": str(target), "rows": rows, "stamps": stamps, "acceptance": kept}
        output.print_json(facts | {"escaped_formulas": escape_formulas})
        return
    lines = [*stamps, f"Rows: {rows:,} synthetic rows in {target}", *output.permissions(target)]
    if kept < 1:
        lines.append(f"Share of draws that met the conditions and constraints: {kept:.1%}")
    if is_text and not escape_formulas:
        lines += _warnings(fitted)
    for line in lines:
        output.say(output.console(), line)


def read_conditions(words: list[str]) -> dict[str, str]:
    """The wanted values by column.

    Example:
        >>> read_conditions(["sex=F", "note=a=b"])
        {'sex': 'F', 'note': 'a=b'}
    """
    pairs = [word.partition("=") for word in words]
    if any(not name or not sign for name, sign, _ in pairs):
        raise InputError("--where must have the form COLUMN=VALUE")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise InputError("--where must name each column only once")
    return {name: value for name, _, value in pairs}


def _escaping(write: "Write") -> "Write":
    from dpflows.cli.tables import escaped

    return lambda rows: write(escaped(rows))


def _warnings(fitted: Any) -> list[str]:
    """Warnings for those who open the file in a spreadsheet."""
    from dpflows.cli.tables import columns_with_formulas

    if not (found := columns_with_formulas(fitted.encoding_.schema)):
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"Warning: text in column {found[0]!r}{more} begins like a formula, which a spreadsheet "
        "may run; use --escape-formulas to prevent this"
    ]


def _draw(fitted: Any, rows: int, conditions: dict[str, str], chunk: int, write: "Write") -> float:
    """Write the rows; the smallest share of draws that a chunk kept."""
    from dpflows.table.reading import Form, MixedEncoding

    # whatever form was fitted, columns are written under the schema's names
    fitted.form_ = Form("arrow")
    given = {"conditions": conditions} if conditions else {}
    if given and not isinstance(fitted.encoding_, MixedEncoding):
        raise InputError(
            "--where needs a model of mixed column kinds; this model has numeric "
            "columns only, so remove --where"
        )
    kept = 1.0
    for start in range(0, rows, chunk):
        write(fitted.sample(min(chunk, rows - start), **given))
        kept = min(kept, getattr(fitted, "acceptance_", 1.0))
    return kept

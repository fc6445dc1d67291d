"""``dpflows schema``: propose a schema for a table."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, Force, RowsFile, require_target

if TYPE_CHECKING:
    from dpflows.table import Column, Schema

WARNING = (
    "WARNING: this schema holds values read from the rows. It is as private as the table, and "
    "every model fitted with it is marked NOT PRIVATE."
)

PROPOSED = (
    "The column kinds and the [text] section were inferred from the rows, so a single row can "
    "change them. Check every line before you use or publish the file."
)


def schema(
    rows: RowsFile,
    target: Annotated[
        Path,
        typer.Option(
            "--output", metavar="FILE", help="Where to write the schema, a .toml or .json file."
        ),
    ],
    read_values: Annotated[
        bool,
        typer.Option(
            "--read-values",
            help="Include values read from the rows; models fitted with it are NOT PRIVATE.",
        ),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Propose a schema for a table; check it before use."""
    from dpflows.cli.tables import spoken
    from dpflows.table.schema import Schema

    require_target(target, (".toml", ".json"), source=rows, force=force)
    with spoken():
        proposal = Schema.from_frame(rows, read_values=read_values)
    proposal.write(target)
    if as_json:
        output.print_json(_result(proposal, target))
    else:
        _tell(proposal, target)


def _result(proposal: "Schema", target: Path) -> dict[str, Any]:
    return {
        "file": str(target),
        "columns": [{"name": c.name, "kind": c.kind} for c in proposal.columns],
        "text": proposal.text.to_dict(),
        "proposed": True,
        "undeclared": {c.name: list(c.rules.lacks) for c in _gaps(proposal)},
        "values_read": proposal.values_read,
    }


def _tell(proposal: "Schema", target: Path) -> None:
    screen = output.console()
    output.say(screen, f"Schema: {target} ({len(proposal.columns)} columns)")
    output.say(screen, PROPOSED)
    for key, value in proposal.text.to_dict().items():
        output.say(screen, f"  [text] {key} = {json.dumps(value)}")
    if proposal.values_read:
        output.say(screen, WARNING)
    gaps = _gaps(proposal)
    if gaps:
        output.say(screen, "To be declared in this file, from public knowledge, not from the rows:")
    for column in gaps:
        output.say(screen, f"  {column.name}: {' and '.join(column.rules.lacks)} ({column.kind})")
    if gaps:
        output.say(
            screen, f"Or spend a share of epsilon on finding {_findable(gaps)}: --discover 0.1"
        )
    output.say(screen, f"Next: dpflows plan --schema {target} --rows 10000 --epsilon 1")


def _gaps(proposal: "Schema") -> "list[Column]":
    names = set(proposal.undeclared())
    return [column for column in proposal.columns if column.name in names]


def _findable(gaps: "list[Column]") -> str:
    return " and ".join(sorted({str(column.rules.discovers) for column in gaps}))

"""``dpflows compare``: dpflows and baseline methods on the same rows and budget."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.experiments.baselines.base import Columns
    from dpflows.experiments.baselines.comparison import Line
    from dpflows.table.schema import Schema

#: The share of the rows that is held out where no test file is named.
HELD_OUT = 0.2

LEGEND = (
    "TV1, TV2: mean total variation distance of columns and of pairs of columns, against held-out "
    "rows. AUC: of a classifier of the target, trained on synthetic and tested on held-out rows (R "
    "squared for a numeric target). detect: AUC of a classifier that separates synthetic from "
    "held-out rows; 0.5 is best. epsilon: each method's total for {neighbours} neighbours, by its "
    "own accountant; replace: for replace-one neighbours."
)


@settings.reads_text(hidden=False)
def compare(
    rows: settings.RowsFile,
    schema: settings.SchemaFile,
    epsilon: Annotated[float, typer.Option(help="Total epsilon of each method.")],
    delta: settings.Delta = None,
    neighbours: settings.Neighbours = "zero-out",
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column to predict [default: the schema's target]."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Methods, such as DPDensity,mst,aim [default: all]."),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Held-out rows [default: a random fifth of ROWS]."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Time limit of each baseline, in seconds.")
    ] = 600.0,
    document: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write all figures to this .json file."),
    ] = None,
    force: settings.Force = False,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
    *,
    text: dict[str, str],
) -> None:
    """Compare methods at one budget on held-out rows; INTERNAL."""
    from dpflows.experiments.baselines.base import require_finite
    from dpflows.experiments.baselines.comparison import (
        Comparison,
        check_methods,
        methods_for,
        missing_of,
    )

    settings.check_limits(epsilon=epsilon, delta=delta)
    require_finite(settings.budget_of(epsilon, settings.settle_delta(delta, 1), neighbours))
    if document is not None:
        settings.require_target(document, (".json",), source=rows, force=force)
    declared = settings.with_text(_declared(schema, target), text)
    every, left_out = methods_for(declared), () if methods else missing_of(methods_for(declared))
    able = [name for name in every if name not in dict(left_out)]
    chosen = check_methods(methods.split(",") if methods else able, declared)
    read = {"drop_extra": drop_extra, "header": False if no_header else None}
    train, held = _sides(rows, test, declared, read)
    count = len(next(iter(train.values())))
    budget = settings.budget_of(epsilon, settings.settle_delta(delta, count), neighbours)
    compared = Comparison(train, held, declared, budget, seconds=seconds)
    lines = _run(compared, chosen, quiet=as_json)
    found = _document(lines, compared) | {"left_out": [why for _, why in left_out]}
    if document is not None:
        _write(found, document, force)
    if as_json:
        output.print_json(found | {"file": None if document is None else str(document)})
    else:
        _show(lines, found, document)


def _declared(path: Path, target: str | None) -> "Schema":
    from dpflows.table.schema import Schema

    schema = Schema.read(path)
    if missing := schema.undeclared():
        raise InputError(
            f"column {missing[0]!r} is not fully declared; declare it in the schema, "
            "since compare does not discover bounds or categories"
        )
    return schema if target is None else dataclasses.replace(schema, target=target)


def _sides(
    rows: Path, test: Path | None, schema: "Schema", read: dict[str, Any]
) -> "tuple[Columns, Columns]":
    from dpflows.cli.tables import spoken
    from dpflows.experiments.baselines.comparison import split
    from dpflows.privacy.randomness import Entropy
    from dpflows.table.reading import read_table

    with spoken():
        table = read_table(rows, schema, **read)
        if test is not None:
            return table.columns, read_table(test, schema, **read).columns
    return split(table.columns, HELD_OUT, Entropy.from_os())


def _run(compared: Any, methods: tuple[str, ...], *, quiet: bool) -> "list[Line]":
    from dpflows.experiments.baselines.comparison import compare

    total, lines = len(methods) + 2, []
    with output.counting("comparing", quiet=quiet) as advance:
        advance(0, total, "")
        for line in compare(compared, methods):
            lines.append(line)
            advance(len(lines), total, line.method)
    return lines


def _document(lines: "list[Line]", compared: Any) -> dict[str, Any]:
    from dpflows.evaluation.measures import INTERNAL_STAMP

    return {
        "internal": True,
        "stamps": [INTERNAL_STAMP],
        "budget": dataclasses.asdict(compared.budget),
        "rows": {
            "fitted": compared.rows,
            "held_out": len(next(iter(compared.test.values()))),
        },
        "target": compared.schema.target,
        "lines": [line.to_dict() for line in lines],
    }


def _write(found: dict[str, Any], document: Path, force: bool) -> None:
    from dpflows.files import write_atomically

    with write_atomically(document, overwrite=force) as file:
        file.write(json.dumps(found, indent=2, allow_nan=False).encode() + b"\n")


def _show(lines: "list[Line]", found: dict[str, Any], document: Path | None) -> None:
    screen = output.console()
    output.say(screen, found["stamps"][0])
    screen.print(_table(found))
    budget = found["budget"]
    output.say(screen, LEGEND.format(neighbours=budget["neighbours"]))
    output.say(screen, f"All at delta {budget['delta']:g}; figures of one run each.")
    for line in lines:
        for remark in (line.remark, *(line.guarantee.stamps if line.guarantee else ())):
            if remark:
                output.say(screen, f"{line.method}: {remark}")
    for why in found["left_out"]:
        output.say(screen, f"Not run: {why}")
    if document is not None:
        output.say(screen, f"Figures: {document}")


def _table(found: dict[str, Any]) -> Table:
    table = Table("method", "epsilon", "replace", "TV1", "TV2", "AUC", "detect", "secs")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for line in found["lines"]:
        spent = [_number(line[name], ".4g") for name in ("epsilon", "replace_one_epsilon")]
        names = ("one_way", "two_way", "learning", "detection")
        figures = [_number(line.get(name), ".3f") for name in names]
        table.add_row(line["method"], *spent, *figures, f"{line['seconds']:.0f}")
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

"""``dpflows reproduce``: the tables and figures of the paper, reproduced."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dpflows.cli import output
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.experiments.running import Experiment, Job, ResultTable, Workspace

#: Names the folder of the real tables where no option does.
DATA_VARIABLE = "DPFLOWS_DATA"


def reproduce(
    name: Annotated[str, typer.Argument(help="Name of an experiment, or all; see --list.")] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            help=f"Folder of the data sets [default: {DATA_VARIABLE}, or generated where possible]."
        ),
    ] = None,
    folds: Annotated[int | None, typer.Option(min=1, max=10, help="Number of test folds.")] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Privacy budget; may be repeated.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of fits in parallel [default: one per core].")
    ] = None,
    output_folder: Annotated[
        Path, typer.Option("--output", help="Output folder for tables, plots and models.")
    ] = Path("results"),
    download: Annotated[
        bool, typer.Option("--download", help="Download missing data sets into the cache.")
    ] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the experiments and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment of the paper; resumes a stopped run."""
    from dpflows.experiments.catalogue import EXPERIMENTS, experiments_called
    from dpflows.experiments.running import Workspace

    if list_only:
        _show_list(list(EXPERIMENTS.values()), as_json)
        return
    if not name:
        raise InputError(
            "an experiment must be named, or all; dpflows reproduce --list shows the names"
        )
    chosen = experiments_called(name)
    place, named = _made(output_folder), _data_folder(data)
    names = sorted({dataset for experiment in chosen for dataset in experiment.datasets()})
    if download:
        folder = _downloaded(names, quiet=as_json)
    else:
        folder = named or _drawn(names, place, quiet=as_json)
    workspace = Workspace(folder, place)
    command = _command(name, named, folds, epsilon, jobs, download=download)
    documents = [
        _run(experiment, workspace, folds, epsilon, jobs, command, quiet=as_json)
        for experiment in chosen
    ]
    if as_json:
        output.print_json({"cells": [cell for document in documents for cell in document]})


def _run(
    experiment: "Experiment",
    workspace: "Workspace",
    folds: int | None,
    epsilons: Sequence[float] | None,
    jobs: int | None,
    command: str,
    *,
    quiet: bool,
) -> list[dict[str, Any]]:
    from dpflows.experiments import running

    screen = output.console(quiet=quiet)
    output.say(screen, experiment.title)
    with output.counting(experiment.name, quiet=quiet) as advance:

        def told(done: int, total: int, job: "Job | None") -> None:
            advance(done, total, job.key if job else "")

        found = running.run(
            experiment,
            workspace,
            folds=folds or experiment.folds,
            epsilons=epsilons or experiment.epsilons,
            parallel=jobs or running.EVERY_CORE,
            progress=told,
        )
    made = running.provenance(command)
    pictures = experiment.draw(found, workspace, workspace.output)
    tables = running.write_tables(
        workspace.output, experiment.name, experiment.title, found, made, pictures
    )
    for result_table in running.result_tables(found):
        screen.print(_table(result_table))
    output.say(screen, "wrote " + ", ".join(str(path) for path in [*tables, *pictures]))
    return running.cells(found)


def _table(result_table: "ResultTable") -> Table:
    table = Table(*result_table.head, title=result_table.caption)
    table.columns[0].no_wrap = True
    for line in result_table.lines:
        table.add_row(*line)
    return table


def _show_list(experiments: "Sequence[Experiment]", as_json: bool) -> None:
    if as_json:
        output.print_json([{"name": e.name, "title": e.title} for e in experiments])
        return
    table = Table("name", "what", "epsilon", "folds")
    for each in experiments:
        budgets = ", ".join(f"{epsilon:g}" for epsilon in each.epsilons)
        table.add_row(each.name, each.title, budgets, str(each.folds))
    output.console().print(table)


def _data_folder(given: Path | None) -> Path | None:
    """The folder of the real data sets, if one is named."""
    folder = given or os.environ.get(DATA_VARIABLE)
    if folder and not Path(folder).is_dir():
        raise InputError(f"data must be a folder that exists, got {str(folder)!r}")
    return Path(folder) if folder else None


def _drawn(names: Sequence[str], place: Path, *, quiet: bool) -> Path:
    """A folder beside the results, with fresh rows of the generated data sets."""
    from dpflows.experiments.data import DATASETS, draw_into

    folder = place / "data"
    for path in draw_into(folder, [name for name in names if name in DATASETS]):
        output.say(output.console(quiet=quiet), f"generated {path}; use --data for other rows")
    return folder


def _downloaded(names: Sequence[str], *, quiet: bool) -> Path:
    from dpflows.experiments.data import SOURCES, download
    from dpflows.pipeline.plan import cache_folder

    screen = output.console(quiet=quiet)
    sources = [source for name in names for source in SOURCES[name]]
    return download(sources, cache_folder(), told=lambda where: output.say(screen, f"get {where}"))


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise InputError(f"output must be a folder, got {str(folder)!r}; choose another") from None
    return folder


def _command(
    name: str,
    data: Path | None,
    folds: int | None,
    epsilon: Sequence[float] | None,
    jobs: int | None,
    *,
    download: bool,
) -> str:
    """The command that makes the same table, without paths of this machine."""
    words = ["dpflows", "reproduce", name]
    words += ["--download"] if download else ["--data", "FOLDER"] if data else []
    words += [] if folds is None else ["--folds", str(folds)]
    words += [word for value in epsilon or () for word in ("--epsilon", f"{value:g}")]
    words += [] if jobs is None else ["--jobs", str(jobs)]
    return shlex.join(words)

"""``dpflows tune``: private selection among candidate settings within one budget."""

import json
import math
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.estimators.base import DensityEstimator
    from dpflows.estimators.select import DPSelect, SelectionPlan
    from dpflows.table.schema import Schema

_LARGEST_FILE = 2**20
_FORM = (
    "candidates must be a .toml or .json file with either a list named candidate, whose elements "
    "are tables of settings, or a table named grid with a list of values for each setting"
)


def tune(
    rows: settings.RowsFile,
    schema: settings.SchemaFile,
    epsilon: Annotated[float, typer.Option(help="Total budget of the whole selection.")],
    candidates: Annotated[
        Path, typer.Option(metavar="FILE", help="Candidate settings, a .toml or .json file.")
    ],
    model: Annotated[
        Path,
        typer.Option("--output", metavar="FILE", help="Where to write the model, a .dpflow file."),
    ],
    delta: settings.Delta = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Allow a delta of 1 / rows or more.")
    ] = False,
    neighbours: settings.Neighbours = "zero-out",
    estimator: Annotated[
        str, typer.Option(help="Estimator: flow, mixture, gaussian, histogram, kernel.")
    ] = "flow",
    mean_runs: Annotated[
        float | None,
        typer.Option(help="Expected number of fits [default: one per candidate]."),
    ] = None,
    law: Annotated[
        str, typer.Option(help="Law of the number of fits: geometric or logarithmic.")
    ] = "geometric",
    score_low: Annotated[float | None, typer.Option(hidden=True)] = None,
    score_high: Annotated[float | None, typer.Option(hidden=True)] = None,
    ledger: settings.LedgerPlace = None,
    cap_epsilon: settings.CapEpsilon = None,
    cap_delta: settings.CapDelta = None,
    force: settings.Force = False,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """Select the best of several settings, within one budget."""
    from dpflows.cli.tables import read_rows
    from dpflows.estimators.select import DPSelect

    settings.check_limits(epsilon=epsilon, delta=delta)
    settings.require_target(model, (".dpflow",), source=rows, force=force)
    settings.require_apart(ledger, rows, model)
    declared = settings.read_schema(schema, None, mixed=estimator in ("flow", "autoregressive"))
    options = read_candidates(candidates)
    frame = read_rows(rows, declared, drop_extra=drop_extra, no_header=no_header)
    search = DPSelect(
        _estimator(estimator, declared, neighbours),
        options,
        epsilon=epsilon,
        delta=settings.settle_delta(delta, frame.num_rows),
        mean_runs=mean_runs,
        law=law,
        score_range=_range(score_low, score_high),
        allow_large_delta=allow_large_delta,
    )
    _require_price(search, declared, ledger)
    books = settings.open_ledger(ledger, cap_epsilon, cap_delta, neighbours)
    search.fit(frame, ledger=books, on_plan=_announce)
    search.save(model, overwrite=force)
    charged = settings.LedgerReport.of(books, ledger, search.receipt_)
    _tell(search, model, charged, by_rule=delta is None, as_json=as_json)


def read_candidates(path: Path) -> Any:
    """Read the candidates of a file: a list of settings or a grid.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "candidates.toml"
        >>> _ = path.write_text("grid = {steps = [100, 200], prior = ['none']}")
        >>> read_candidates(path)
        {'steps': [100, 200], 'prior': [None]}
    """
    found = _document(path)
    listed = found if isinstance(found, list) else found.get("candidate")
    if isinstance(listed, list) and all(isinstance(one, dict) for one in listed) and listed:
        return [{name: _setting(name, value) for name, value in one.items()} for one in listed]
    grid = found.get("grid") if isinstance(found, dict) else None
    if isinstance(grid, dict) and all(isinstance(values, list) for values in grid.values()):
        return {name: [_setting(name, value) for value in values] for name, values in grid.items()}
    raise InputError(_FORM)


def _document(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"candidates must be a file of at most {_LARGEST_FILE:,} bytes")
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(_FORM) from None


def _setting(name: str, value: Any) -> Any:
    """A setting as the estimator takes it; TOML has no null, so it is written 'none'."""
    if isinstance(value, dict | list):
        raise InputError(f"candidates must set {name} to a number, a text or true or false")
    return None if value == "none" else value


def _estimator(name: str, declared: "Schema", neighbours: str) -> "DensityEstimator":
    from dpflows.estimators.persistence import estimator_class

    is_network = name == "flow" and declared.is_mixed
    kind = estimator_class("autoregressive" if is_network else name)
    return kind(schema=declared, neighbours=neighbours)


def _range(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise InputError("--score-low and --score-high must be given together")
    return low, high


def _require_price(search: "DPSelect", declared: "Schema", ledger: str | None) -> None:
    """Refuse to charge a non-private selection, before a ledger is created."""
    from dpflows.estimators.charging import require_price
    from dpflows.pipeline.domain import stamps_of

    if ledger is not None:
        require_price((*stamps_of(declared), *search.stamps()))


def _announce(plan: "SelectionPlan") -> None:
    """Print the plan on stderr, since it is not a result."""
    print(f"{plan.sentence}.", file=sys.stderr)


def _tell(
    search: "DPSelect",
    model: Path,
    charged: settings.LedgerReport,
    *,
    by_rule: bool,
    as_json: bool,
) -> None:
    promise, plan = search.guarantee_, search.plan_
    command = f"dpflows sample {model} --rows {plan.rows} --output synthetic.csv"
    rule = settings.DELTA_RULE if by_rule else None
    chosen = {name: _plain(value) for name, value in search.best_params_.items()}
    if as_json:
        facts = {
            "file": str(model),
            "guarantee": promise.to_dict() | {"is_private": promise.is_private},
            "chosen": chosen,
            "score": search.best_score_,
            "plan": plan.to_dict(),
            "delta_rule": rule,
            "next": command,
        }
        output.print_json(facts | charged.facts)
        return
    head = promise.stamps or (promise.privacy_statement().split("\n")[0],)
    words = ", ".join(f"{name} = {value}" for name, value in chosen.items())
    lines = [
        *(f"Guarantee of the whole selection: {line}" for line in head),
        *(f"Caveat: {caveat}" for caveat in promise.caveats),
        *([f"Delta by the public rule: {rule}."] if rule else []),
        f"Each single fit: {_own(plan)}",
        f"Chosen: {words} (noisy score {search.best_score_:.3f} nats per row)",
        *charged.lines,
        f"Model: {model}",
        f"Next: {command}",
    ]
    for line in lines:
        output.say(output.console(), line)


def _own(plan: "SelectionPlan") -> str:
    if not math.isfinite(plan.run.epsilon):
        return "no privacy"
    return f"epsilon {plan.run.epsilon:.4g}, {plan.mean:g} fits on average ({plan.law} law)"


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)

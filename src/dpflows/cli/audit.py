"""``dpflows audit``: attack training and compare the result with the claimed guarantee."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.evaluation.audit import Finding

#: Default number of canaries, or of repetitions of a step.
SIZES = {"gradients": 5000, "rows": 500, "step": 100_000}
#: The attacks that use a setting.
_SETTINGS = {
    "score": ("rows",),
    "prior": ("rows",),
    "guesses": ("gradients", "rows"),
    "steps": ("gradients", "rows"),
}
#: The generated table of an audit by rows.
MADE_UP_ROWS, MADE_UP_COLUMNS = 2000, 10


@settings.reads_text(hidden=False)
def audit(
    rows: Annotated[
        Path | None,
        typer.Argument(
            metavar="[ROWS]",
            help="A table to insert canary rows into [default: a generated table].",
        ),
    ] = None,
    way: Annotated[str, typer.Option(help="Attack: gradients, rows or step.")] = "gradients",
    epsilon: Annotated[float, typer.Option(help="Claimed epsilon.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Claimed delta.")] = 1e-5,
    canaries: Annotated[
        int | None,
        typer.Option(help="Number of canaries, or of repetitions of a step [default: by --way]."),
    ] = None,
    guesses: Annotated[
        int | None,
        typer.Option(help="Number of guesses [default: the best number, planned beforehand]."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    score: Annotated[
        str | None,
        typer.Option(help="Score for --way rows: density or updates [default: density]."),
    ] = None,
    steps: settings.Steps = None,
    prior: settings.Prior = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Schema of ROWS, a .toml or .json file.")
    ] = None,
    drop_extra: settings.DropExtra = False,
    no_header: settings.NoHeader = False,
    as_json: AsJson = False,
    *,
    text: dict[str, str],
) -> None:
    """Attack training to test a claimed epsilon."""
    settings.check_limits(epsilon=epsilon, delta=delta, steps=steps)
    _check(way, rows, schema, canaries, epsilon)
    _check_ways(way, score=score, prior=prior, guesses=guesses, steps=steps)
    if way != "rows":
        finding = _attack(way, epsilon, delta, canaries or SIZES[way], guesses, confidence, steps)
    else:
        source, declared = _table(rows, schema, text, drop_extra, no_header)
        given = dict(epsilon=epsilon, delta=delta, steps=steps, prior=prior)
        game = (canaries or SIZES[way], guesses, confidence)
        finding = _attack_rows(
            source, declared, given, game, score or "density", internal=rows is not None
        )
    _tell(finding, as_json=as_json)
    if finding.is_flagged:
        # the code of a bug in dpflows, which is what a refuted claim is
        raise typer.Exit(output.UNEXPECTED)


def _check(
    way: str, rows: Path | None, schema: Path | None, canaries: int | None, epsilon: float
) -> None:
    from dpflows.privacy.events import check_choice

    check_choice("way", way, tuple(SIZES))
    if rows is not None and way != "rows":
        raise InputError(f"ROWS can only be used with --way rows; --way {way} needs no table")
    if (rows is None) != (schema is None):
        raise InputError("ROWS and --schema must be given together")
    if canaries is not None and not 2 <= canaries <= 10**7:
        raise InputError(f"canaries must lie between 2 and 1e+07, got {canaries}")
    if epsilon == float("inf"):
        raise InputError("epsilon must be finite: an audit tests a finite claim")


def _check_ways(way: str, **given: Any) -> None:
    """Refuse settings that the chosen attack does not use."""
    for name, value in given.items():
        if value is not None and way not in _SETTINGS[name]:
            raise InputError(
                f"--{name} can only be used with --way {' or '.join(_SETTINGS[name])}; remove it"
            )


def _attack(
    way: str,
    epsilon: float,
    delta: float,
    size: int,
    guesses: int | None,
    confidence: float,
    steps: int | None,
) -> "Finding":
    from dpflows.evaluation.audit import STEPS, Game, audit_gradients, audit_step
    from dpflows.privacy.guarantee import Budget
    from dpflows.privacy.randomness import Entropy

    budget, entropy = Budget(epsilon, delta), Entropy.from_os()
    if way == "step":
        return audit_step(budget, entropy=entropy, repetitions=size, confidence=confidence)
    game = Game(size, confidence, guesses)
    return audit_gradients(budget, game, entropy=entropy, steps=steps or STEPS)


def _table(
    rows: Path | None,
    schema: Path | None,
    text: dict[str, str],
    drop_extra: bool,
    no_header: bool,
) -> Any:
    """The given table and its schema, or generated ones."""
    from dpflows.evaluation.audit import made_up_table
    from dpflows.privacy.randomness import Entropy
    from dpflows.table.schema import Schema

    if rows is None or schema is None:
        made_up = made_up_table(MADE_UP_ROWS, MADE_UP_COLUMNS, Entropy.from_os())
        return made_up, Schema.from_bounds([-4.0] * MADE_UP_COLUMNS, 4.0)
    from dpflows.cli.tables import read_rows

    declared = settings.with_text(settings.read_schema(schema, None), text)
    return read_rows(rows, declared, drop_extra=drop_extra, no_header=no_header), declared


def _attack_rows(
    source: Any,
    declared: Any,
    given: dict[str, Any],
    game: tuple[int, int | None, float],
    score: str,
    *,
    internal: bool,
) -> "Finding":
    from dpflows.evaluation.audit import Game, audit_rows
    from dpflows.privacy.randomness import Entropy

    estimator = settings.make_estimator(None, declared, **given)
    canaries, guesses, confidence = game
    return audit_rows(
        estimator,
        source,
        Game(canaries, confidence, guesses),
        entropy=Entropy.from_os(),
        score=score,
        internal=internal,
    )


def _tell(finding: "Finding", *, as_json: bool) -> None:
    if as_json:
        output.print_json(finding.to_dict())
        return
    for line in lines(finding):
        output.say(output.console(), line)


def lines(finding: "Finding") -> list[str]:
    """The finding as text: the bound, its confidence, the largest possible bound, the claim.

    Example:
        >>> from dpflows.evaluation.audit import Finding
        >>> lines(Finding("step", 1.0, 1e-5, 0.9, 0.95, 9.0, 1000))[1]
        'Lower bound:  epsilon 0.900 at delta 1e-05 (confidence 0.95)'
    """
    from dpflows.evaluation.audit import INTERNAL_STAMP, MEANING

    unit = "repetitions of a step on each side" if finding.way == "step" else "canaries"
    found = finding.details
    played = f", {found['correct']:,} of {found['guesses']:,} right" if "guesses" in found else ""
    return [
        *([INTERNAL_STAMP] if finding.internal else []),
        f"Attack:       by {finding.way}, {finding.trials:,} {unit}{played}",
        f"Lower bound:  epsilon {finding.bound:.3f} at delta {finding.delta:g} "
        f"(confidence {finding.confidence:.6g})",
        f"Upper limit:  epsilon {finding.largest:.3f}, if every guess were right",
        f"Claim:        epsilon {finding.claimed:.3f}, {finding.verdict}",
        MEANING,
    ]

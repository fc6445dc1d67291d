"""Options that several verbs share, and the checks and objects made from them."""

import dataclasses
import functools
import inspect
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.estimators.base import DensityEstimator
    from dpflows.privacy.guarantee import Budget
    from dpflows.privacy.ledger import Ledger, Receipt
    from dpflows.table.schema import Schema

#: The default delta is this, or 1 / (10 rows) if that is less.
LARGEST_DELTA = 1e-6
DELTA_RULE = "the smaller of 1e-6 and 1 / (10 rows)"

#: Ranges in which the accountants compute without overflow.
LIMITS: dict[str, tuple[float, float]] = {
    "rows": (2, 1e12),
    "epsilon": (1e-9, 100),
    "delta": (1e-100, 0.1),
    "cap_epsilon": (1e-9, 1e4),
    "cap_delta": (1e-100, 0.1),
    "steps": (1, 1e7),
    "batch_size": (1, 1e12),
    "learning_rate": (1e-12, 1e3),
    "noise_multiplier": (0.2, 1e3),
}

RowsFile = Annotated[
    Path, typer.Argument(metavar="ROWS", help="The table: CSV, TSV (also .gz), Parquet or Arrow.")
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A fitted .dpflow file.")]
SchemaFile = Annotated[
    Path, typer.Option(metavar="FILE", help="Schema of the table, a .toml or .json file.")
]
Epsilon = Annotated[float, typer.Option(help="Total privacy budget; inf trains without privacy.")]
Delta = Annotated[
    float | None, typer.Option(help="Total delta [default: smaller of 1e-6 and 1/(10 rows)].")
]
#: Hidden where the help is long enough; the refusal names it.
AllowLargeDelta = Annotated[bool, typer.Option("--allow-large-delta", hidden=True)]
Neighbours = Annotated[
    str,
    typer.Option(
        show_default=False, help="Neighbours: zero-out or replace-one [default: zero-out]."
    ),
]
Accountant = Annotated[str | None, typer.Option(help="Privacy accountant [default: pld].")]
Sampling = Annotated[
    str | None, typer.Option(help="Batch sampling: poisson or uniform [default: poisson].")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model: density (by a public rule), flow, autoregressive, gaussian-mixture, gaussian, "
        "histogram or kernel-density [default: density].",
    ),
]
Prior = Annotated[str | None, typer.Option(help="Prior of a flow: none (a Gaussian) or mixture.")]
Architecture = Annotated[str | None, typer.Option(help="Flow family, such as nsf or maf.")]
Normalisation = Annotated[
    str | None, typer.Option(help="Normaliser: histograms, moments or bounds.")
]
Discover = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Share of epsilon to find undeclared bounds or categories."),
]
Optimizer = Annotated[str | None, typer.Option(help="Optimizer: natural, adam or sgd.")]
Steps = Annotated[int | None, typer.Option(help="Number of training steps.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected number of rows per batch.")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate of the optimizer.")]
NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Noise standard deviation over the clipping norm.")
]
DropExtra = Annotated[
    bool, typer.Option("--drop-extra", help="Ignore columns that the schema does not declare.")
]
NoHeader = Annotated[
    bool,
    typer.Option("--no-header", help="The file has no header line."),
]
AnswersFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Output file: .csv, .csv.gz or .parquet.",
    ),
]
LedgerPlace = Annotated[
    str | None,
    typer.Option("--ledger", metavar="FILE", help="Ledger of the data set to charge."),
]
CapEpsilon = Annotated[
    float | None, typer.Option(help="Cap on the total epsilon, for a new ledger.")
]
CapDelta = Annotated[float | None, typer.Option(help="Delta of the cap, for a new ledger.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")]
#: How the text of a file is written, where it differs from the schema: metavar and help.
TEXT_OPTIONS = {
    "delimiter": ("MARK", "Delimiter between cells; write tab for a tab."),
    "decimal": ("MARK", "Decimal mark of numbers."),
    "thousands": ("MARK", "Mark between groups of three digits."),
    "encoding": ("NAME", "Text encoding, such as utf-8, cp1252 or utf-16."),
    "unreadable": ("RULE", "Unreadable cells: refuse (an error) or missing."),
}
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]


def read_schema(path: Path, discover: float | None, *, mixed: bool = False) -> "Schema":
    """Read a schema for a fit: fully declared unless ``discover``, numeric unless ``mixed``."""
    from dpflows.table.reading import require_declared
    from dpflows.table.schema import Schema

    schema = Schema.read(path)
    if not mixed:
        schema.require_numeric()
    if discover is None:
        require_declared(schema)
    return schema


def reads_text(*, hidden: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    r"""Add the options for the text format to a verb, which receives them as ``text``.

    Args:
        hidden: Whether to leave them out of the verb's help.

    Example:
        >>> @reads_text(hidden=False)
        ... def count(rows: int, text: dict[str, str]) -> None:
        ...     print(rows, text)
        >>> count(3, delimiter="tab", decimal=None)
        3 {'delimiter': '\t'}
    """
    added = [
        _text_option(name, *described, hidden=hidden) for name, described in TEXT_OPTIONS.items()
    ]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def call(*args: Any, **kwargs: Any) -> None:
            given = {name: kwargs.pop(name, None) for name in TEXT_OPTIONS}
            verb(*args, **kwargs, text=_named(given))

        own = [p for p in inspect.signature(verb).parameters.values() if p.name != "text"]
        call.__dict__["__signature__"] = inspect.Signature([*own, *added])
        call.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
        return call

    return decorate


def _text_option(name: str, word: str, charged: str, *, hidden: bool) -> inspect.Parameter:
    option = typer.Option(metavar=word, help=charged, hidden=hidden)
    kind = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _named(given: dict[str, str | None]) -> dict[str, str]:
    named = {name: value for name, value in given.items() if value is not None}
    is_tab = named.get("delimiter") in ("tab", r"\t")
    return named | ({"delimiter": "\t"} if is_tab else {})


def with_text(schema: "Schema", text: dict[str, str]) -> "Schema":
    """The schema with the text options of the command line in place of its own."""
    given: dict[str, Any] = dict(text)
    return dataclasses.replace(schema, text=dataclasses.replace(schema.text, **given))


def settle_delta(delta: float | None, rows: int) -> float:
    """The given delta, or that of the public rule; the number of rows is public.

    Example:
        >>> settle_delta(None, 1_000_000)
        1e-07
    """
    return min(LARGEST_DELTA, 1 / (10 * max(rows, 1))) if delta is None else delta


def check_limits(**given: Any) -> None:
    """Refuse numbers outside the supported range, naming the option; ``None`` is not checked.

    Example:
        >>> check_limits(steps=0)
        Traceback (most recent call last):
        dpflows.errors.InputError: steps must lie between 1 and 1e+07, got 0
    """
    for name, (low, high) in LIMITS.items():
        value = given.get(name)
        is_unlimited = name == "epsilon" and value == math.inf
        if value is None or is_unlimited or low <= value <= high:
            continue
        ends = f"{low:g} and {high:g}" + (", or be inf" if name == "epsilon" else "")
        raise InputError(f"{name} must lie between {ends}, got {value}")


def make_estimator(model: str | None, schema: "Schema", **settings: Any) -> "DensityEstimator":
    """Make an estimator with the given settings; those left at ``None`` keep their defaults.

    Args:
        model: An estimator's short name. ``None`` is ``density``, or the flow or network if a
        training setting is given.
        schema: The schema of the table.
        settings: Parameters of the estimator by name.
    """
    from dpflows.estimators.persistence import estimator_class, short_name

    check_limits(**settings)
    _check_architecture(settings.get("architecture"))
    given = {name: value for name, value in settings.items() if value not in (None, "auto")}
    kind = estimator_class(model or "density")
    unknown = given.keys() - kind._get_param_names()
    if model is None and unknown:
        kind = estimator_class("autoregressive" if schema.is_mixed else "flow")
        unknown = given.keys() - kind._get_param_names()
    if unknown:
        raise InputError(
            f"{sorted(unknown)[0]} is not a setting of the model {short_name(kind.__name__)}; "
            "remove it or choose another --model"
        )
    if given.get("prior") == "none":
        given["prior"] = None
    return kind(schema=schema, **given)


def _check_architecture(name: str | None) -> None:
    """Refuse an unknown flow family, naming the option."""
    from dpflows.models.architectures import ARCHITECTURES
    from dpflows.privacy.events import check_choice

    if name is not None:
        check_choice("architecture", name, tuple(ARCHITECTURES))


def open_ledger(
    place: str | None,
    cap_epsilon: float | None = None,
    cap_delta: float | None = None,
    neighbours: str = "zero-out",
) -> "Ledger | None":
    """Open the named ledger; it is created if it does not exist and a cap is given.

    Args:
        place: A file, or an address that begins with ``postgresql://``; ``None`` for no ledger.
        cap_epsilon: The cap on the total epsilon of all charges.
        cap_delta: The delta of the cap.
        neighbours: The neighbour relation of a new ledger's cap.

    Example:
        >>> open_ledger(None, cap_epsilon=1.0)
        Traceback (most recent call last):
        dpflows.errors.InputError: --cap-epsilon and --cap-delta need --ledger; add --ledger FILE
    """
    caps = (cap_epsilon, cap_delta)
    if place is None and caps != (None, None):
        raise InputError("--cap-epsilon and --cap-delta need --ledger; add --ledger FILE")
    if None in caps and caps != (None, None):
        raise InputError("--cap-epsilon and --cap-delta must be given together")
    if place is None:
        return None
    from dpflows.privacy.ledger import Ledger

    check_limits(cap_epsilon=cap_epsilon, cap_delta=cap_delta)
    if cap_epsilon is None or cap_delta is None:
        return Ledger(place)
    return Ledger(place, cap=budget_of(cap_epsilon, cap_delta, neighbours))


def budget_of(epsilon: float, delta: float, neighbours: str) -> "Budget":
    """A budget from the options of the command line.

    Example:
        >>> budget_of(1.0, 1e-6, "everybody")
        Traceback (most recent call last):
        dpflows.errors.InputError: neighbours must be one of ...
    """
    from dpflows.privacy.events import NEIGHBOURS, Neighbours, check_choice
    from dpflows.privacy.guarantee import Budget

    check_choice("neighbours", neighbours, NEIGHBOURS)
    return Budget(epsilon, delta, cast(Neighbours, neighbours))


def require_apart(ledger: str | None, *others: Path | None) -> None:
    """Refuse a ledger path that is also another file of the command."""
    files = [other.resolve() for other in others if other is not None]
    if ledger is not None and "://" not in ledger and Path(ledger).resolve() in files:
        raise InputError(
            "ledger must not be one of the other files of the command; choose another name"
        )


@dataclasses.dataclass(frozen=True)
class LedgerReport:
    """The state of the ledger after a charge, for the curator; empty without a ledger.

    Attributes:
        lines: As text.
        facts: As JSON values.
    """

    lines: tuple[str, ...] = ()
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, ledger: "Ledger | None", place: str | None, receipt: "Receipt | None" = None
    ) -> "LedgerReport":
        """The charge, the total and what remains."""
        if ledger is None or place is None:
            return cls()
        charge = () if receipt is None else (f"Charged: entry {receipt.entry}, run {receipt.run}",)
        facts = {
            "identity": ledger.identity,
            "receipt": None if receipt is None else receipt.to_dict(),
            "spent": ledger.spent(),
            "remaining": ledger.remaining(),
            "cap": dataclasses.asdict(ledger.cap),
        }
        return cls((*charge, _ledger_line(ledger, place)), {"ledger": facts})


def _ledger_line(ledger: "Ledger", place: str) -> str:
    from dpflows.privacy.ledger.compositions import rounded_down

    # An address may hold a password.
    cap, name = ledger.cap, place if "://" not in place else ledger.identity
    return (
        f"Ledger: {name}, epsilon {ledger.spent():.4g} of {cap.epsilon:g} spent at delta "
        f"{cap.delta:g} ({cap.neighbours}), remaining for one further fit: epsilon "
        f"{rounded_down(ledger.remaining())}"
    )


def require_target(
    path: Path, endings: tuple[str, ...], *, source: Path | None = None, force: bool = False
) -> None:
    """Refuse an output path that cannot be written, before any work is done.

    Args:
        path: Where the output will go.
        endings: The allowed file name endings.
        source: A file that must not be overwritten.
        force: Whether an existing file of that name may be overwritten.
    """
    if endings and not path.name.lower().endswith(endings):
        raise InputError(f"output must end in {' or '.join(endings)}, got {str(path)!r}")
    try:
        _require_place(path)
        both_exist = source is not None and source.exists() and path.exists()
        is_source = both_exist and path.samefile(cast(Path, source))
    except InputError:
        raise
    except (OSError, ValueError):
        raise InputError(f"cannot write {str(path)!r}; check the path") from None
    if is_source:
        raise InputError("output must not be the input file; choose another name")
    if not force:
        from dpflows.files import require_absent

        require_absent(path, instead="use --force")


def _require_place(path: Path) -> None:
    folder = path.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(f"cannot write {str(path)!r}; choose a folder that exists and is writable")
    # a device would be replaced by a file
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"output must be a regular file, got {str(path)!r}; add a file name")

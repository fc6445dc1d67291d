"""Options that several verbs share, and what they mean together."""

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

#: Delta where none is given: this, or a tenth of one row's share if that is less.
LARGEST_DELTA = 1e-6
DELTA_RULE = "the smaller of 1e-6 and 1 / (10 rows)"

#: Where the accountants compute without overflow; far beyond these lies a typing mistake.
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
    Path, typer.Option(metavar="FILE", help="Meaning of columns, .toml or .json.")
]
Epsilon = Annotated[float, typer.Option(help="Total budget; inf for no privacy.")]
Delta = Annotated[float | None, typer.Option(help="Else the smaller of 1e-6 and 1 / (10 rows).")]
#: Hidden where the help is long enough; the refusal names it.
AllowLargeDelta = Annotated[bool, typer.Option("--allow-large-delta", hidden=True)]
Neighbours = Annotated[str, typer.Option(show_default=False, help="zero-out, or replace-one.")]
Accountant = Annotated[str | None, typer.Option(help="Who prices the run; else pld.")]
Sampling = Annotated[str | None, typer.Option(help="poisson or uniform batches.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="density (by a public rule), flow, autoregressive, gaussian-mixture, gaussian, "
        "histogram or kernel-density.  [default: density]",
    ),
]
Prior = Annotated[str | None, typer.Option(help="Of a flow: none (a Gaussian) or mixture.")]
Architecture = Annotated[str | None, typer.Option(help="A family of flows, such as nsf or maf.")]
Normalisation = Annotated[str | None, typer.Option(help="histograms, moments or bounds.")]
Discover = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of epsilon to find missing bounds.")
]
Optimizer = Annotated[str | None, typer.Option(help="natural, adam or sgd.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps.")]
BatchSize = Annotated[int | None, typer.Option(help="Rows per step, on average.")]
LearningRate = Annotated[float | None, typer.Option(help="Step size of the optimizer.")]
NoiseMultiplier = Annotated[float | None, typer.Option(help="Noise over the clipping norm.")]
DropExtra = Annotated[
    bool, typer.Option("--drop-extra", help="Leave out columns that are not declared.")
]
NoHeader = Annotated[
    bool,
    typer.Option("--no-header", help="No names above the rows; score --help: more."),
]
AnswersFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="A .csv, .csv.gz or .parquet file."),
]
LedgerPlace = Annotated[
    str | None,
    typer.Option("--ledger", metavar="FILE", help="Charge it to the ledger of the data set."),
]
CapEpsilon = Annotated[float | None, typer.Option(help="What a new ledger allows in all.")]
CapDelta = Annotated[float | None, typer.Option(help="The delta of a new ledger.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that exists.")]
#: How cells of text are written, where a file is not as the schema says: a word for what
#: is meant, and help.
TEXT_OPTIONS = {
    "delimiter": ("MARK", "Between cells; tab for a tab."),
    "decimal": ("MARK", "Before the fraction of a number."),
    "thousands": ("MARK", "Between groups of three digits."),
    "encoding": ("NAME", "Such as utf-8, cp1252 or utf-16."),
    "unreadable": ("WORD", "Bad cells: refuse them, or make them missing."),
}
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def read_schema(path: Path, discover: float | None, *, mixed: bool = False) -> "Schema":
    """A schema that a fit can use: declared or to be discovered, of numbers unless ``mixed``."""
    from dpflows.table.encoding import require_declared
    from dpflows.table.schema import Schema

    schema = Schema.read(path)
    if not mixed:
        schema.require_numeric()
    if discover is None:
        require_declared(schema)
    return schema


def reads_text(*, hidden: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    r"""Give a verb the options that say how text is written; it gets them as ``text``.

    Args:
        hidden: Whether the help of the verb leaves them out.

    Example:
        >>> @reads_text(hidden=False)
        ... def count(rows: int, text: dict[str, str]) -> None:
        ...     print(rows, text)
        >>> count(3, delimiter="tab", decimal=None)
        3 {'delimiter': '\t'}
    """
    added = [_text_option(name, *told, hidden=hidden) for name, told in TEXT_OPTIONS.items()]

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


def _text_option(name: str, word: str, told: str, *, hidden: bool) -> inspect.Parameter:
    option = typer.Option(metavar=word, help=told, hidden=hidden)
    kind = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _named(given: dict[str, str | None]) -> dict[str, str]:
    named = {name: value for name, value in given.items() if value is not None}
    is_tab = named.get("delimiter") in ("tab", r"\t")
    return named | ({"delimiter": "\t"} if is_tab else {})


def with_text(schema: "Schema", text: dict[str, str]) -> "Schema":
    """The schema with what the command line says about text in place of its own."""
    given: dict[str, Any] = dict(text)
    return dataclasses.replace(schema, text=dataclasses.replace(schema.text, **given))


def settle_delta(delta: float | None, rows: int) -> float:
    """The given delta, or the public rule's; the number of rows is public.

    Example:
        >>> settle_delta(None, 1_000_000)
        1e-07
    """
    return min(LARGEST_DELTA, 1 / (10 * max(rows, 1))) if delta is None else delta


def check_limits(**given: Any) -> None:
    """Refuse numbers that no run could use, naming the option; ``None`` is left to the rules.

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
    """An estimator with the given settings; those left at ``None`` follow its own rules.

    Args:
        model: An estimator by its short name. ``None`` is ``density``, or the flow or network that
            a setting of training belongs to.
        schema: What the columns mean.
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
            "leave it out or choose another --model"
        )
    if given.get("prior") == "none":
        given["prior"] = None
    return kind(schema=schema, **given)


def _check_architecture(name: str | None) -> None:
    """Refuse an unknown family by the name of the option."""
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
    """The ledger that was named; it is made if it is missing and a cap is given.

    Args:
        place: A file, or an address that begins with ``postgresql://``; ``None`` for no ledger.
        cap_epsilon: What all charges together may cost.
        cap_delta: At which delta.
        neighbours: Which change of one person's data a new ledger's cap is about.

    Example:
        >>> open_ledger(None, cap_epsilon=1.0)
        Traceback (most recent call last):
        dpflows.errors.InputError: --cap-epsilon and --cap-delta belong to --ledger; name it
    """
    caps = (cap_epsilon, cap_delta)
    if place is None and caps != (None, None):
        raise InputError("--cap-epsilon and --cap-delta belong to --ledger; name it")
    if None in caps and caps != (None, None):
        raise InputError("--cap-epsilon and --cap-delta are given together, or not at all")
    if place is None:
        return None
    from dpflows.privacy.ledger import Ledger

    check_limits(cap_epsilon=cap_epsilon, cap_delta=cap_delta)
    if cap_epsilon is None or cap_delta is None:
        return Ledger(place)
    return Ledger(place, cap=budget_of(cap_epsilon, cap_delta, neighbours))


def budget_of(epsilon: float, delta: float, neighbours: str) -> "Budget":
    """A budget as the command line names it.

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
    """Refuse a ledger that is another file of the command."""
    files = [other.resolve() for other in others if other is not None]
    if ledger is not None and "://" not in ledger and Path(ledger).resolve() in files:
        raise InputError("ledger must be a file of its own; choose another name")


@dataclasses.dataclass(frozen=True)
class Told:
    """What a curator is told about the ledger after a charge; nothing where there is none.

    Attributes:
        lines: For a reader.
        facts: For a machine.
    """

    lines: tuple[str, ...] = ()
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, ledger: "Ledger | None", place: str | None, receipt: "Receipt | None" = None
    ) -> "Told":
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
        return cls((*charge, _standing(ledger, place)), {"ledger": facts})


def _standing(ledger: "Ledger", place: str) -> str:
    from dpflows.privacy.ledger.compositions import rounded_down

    # An address may hold a password.
    cap, name = ledger.cap, place if "://" not in place else ledger.identity
    return (
        f"Ledger: {name}, epsilon {ledger.spent():.4g} of {cap.epsilon:g} spent at delta "
        f"{cap.delta:g} ({cap.neighbours}), largest single fit still affordable: epsilon "
        f"{rounded_down(ledger.remaining())}"
    )


def require_target(
    path: Path, endings: tuple[str, ...], *, source: Path | None = None, force: bool = False
) -> None:
    """Refuse an output that could not be written, before any work is done for it.

    Args:
        path: Where the output will go.
        endings: How its name may end.
        source: A file that must not be overwritten.
        force: Whether another file of that name may be lost.
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
        raise InputError("output must not be the file that is read; choose another name")
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

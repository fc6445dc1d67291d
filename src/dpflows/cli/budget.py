"""``dpflows budget``: what was spent on a data set, and whether its ledger is intact."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson
from dpflows.errors import InputError

if TYPE_CHECKING:
    from dpflows.privacy.ledger import Entry, Ledger, Receipt


def budget(
    action: Annotated[
        Literal["show", "history", "verify"],
        typer.Argument(metavar="ACTION", help="What to do."),
    ],
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="Ledger file, or a postgresql:// address.")
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With verify: also check that this .dpflow file was charged here."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show, list or verify the budget spent on a data set."""
    from dpflows.privacy.ledger import Ledger

    if model is not None and action != "verify":
        raise InputError(
            "--model needs the action verify: dpflows budget verify LEDGER --model FILE"
        )
    # Without a cap nothing is ever made here.
    opened = Ledger(ledger)
    if action == "show":
        _show(opened, as_json)
    elif action == "history":
        _list(opened, as_json)
    else:
        _verify(opened, model, as_json)


def _show(ledger: "Ledger", as_json: bool) -> None:
    facts = _facts(ledger)
    if as_json:
        output.print_json(facts)
        return
    cap = ledger.cap
    for line in [
        f"Ledger: {ledger.place}",
        f"Identity: {ledger.identity}",
        f"Cap: epsilon {cap.epsilon} at delta {cap.delta}, neighbours {cap.neighbours}, "
        f"accountant {ledger.accountant} ({_MEANING[ledger.composition]})",
        f"Spent: epsilon {_up(facts['spent'])}; charges: {facts['charges']:,}, "
        f"of them released: {facts['released']:,}",
        f"Remaining for one further fit: epsilon {_down(facts['remaining'])} at delta {cap.delta}",
        *_pure_line(facts["remaining_pure"]),
    ]:
        output.say(output.console(), line)


_MEANING = {
    "adaptive": "charges may depend on earlier results",
    "declared": "only charges declared beforehand",
}


def _pure_line(left: float | None) -> list[str]:
    """A line for pure charges (delta 0), such as noisy votes, where they have another limit."""
    return (
        [] if left is None else [f"Remaining for charges with delta 0 only: epsilon {_down(left)}"]
    )


def _facts(ledger: "Ledger") -> dict[str, Any]:
    entries = ledger.history()
    states = [entry.state for entry in entries]
    positions = [entry.position for entry in entries if entry.position is not None]
    cap = ledger.cap
    return {
        "ledger": ledger.place,
        "identity": ledger.identity,
        "cap": {"epsilon": cap.epsilon, "delta": cap.delta, "neighbours": cap.neighbours},
        "accountant": ledger.accountant,
        "composition": ledger.composition,
        "spent": entries[-1].epsilon,
        "remaining": ledger.remaining(),
        "remaining_pure": positions[-1].pure_left if positions else None,
        "entries": len(entries),
        "charges": states.count("RESERVED"),
        "released": states.count("RELEASED"),
        "head": entries[-1].head,
    }


def _list(ledger: "Ledger", as_json: bool) -> None:
    entries = ledger.history()
    if as_json:
        output.print_json(
            {"entries": [entry.to_dict() | {"head": entry.head} for entry in entries]}
        )
        return
    screen = output.console()
    output.say(screen, _line("entry", "time", "state", "epsilon", "run and purpose"))
    for entry in entries:
        output.say(screen, _entry_line(entry))


def _entry_line(entry: "Entry") -> str:
    words = f"{entry.run}  {entry.purpose}".strip()
    return _line(str(entry.number), entry.time, entry.state, _up(entry.epsilon), words)


def _line(number: str, time: str, state: str, epsilon: str, words: str) -> str:
    return f"{number:>6}  {time:<20}  {state:<8}  {epsilon:>9}  {words}".rstrip()


def _up(epsilon: float) -> str:
    """Four decimal places, rounded up, since the spent budget must not be understated."""
    return f"{math.ceil(epsilon * 1e4 - 1e-6) / 1e4:.4f}"


def _down(epsilon: float) -> str:
    """Four decimal places, rounded down, since the remaining budget must not be overstated."""
    return f"{math.floor(epsilon * 1e4 + 1e-6) / 1e4:.4f}"


def _verify(ledger: "Ledger", model: Path | None, as_json: bool) -> None:
    fitted = None if model is None else _charged_model(model)
    receipt = None if fitted is None else fitted.receipt_
    ledger.verify(receipt)
    facts = {name: of for name, of in _facts(ledger).items() if name != "cap"} | {"whole": True}
    if model is not None and receipt is not None:
        _require_same_releases(ledger, fitted)
        facts["model"] = {"file": str(model), **receipt.to_dict()} | _release(
            ledger, receipt, model
        )
    if as_json:
        output.print_json(facts)
        return
    for line in _findings(facts):
        output.say(output.console(), line)


def _findings(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"OK: hash chain, order and costs verified ({facts['entries']:,} entries)",
        f"Head: {facts['head']}",
    ]
    if "model" in facts:
        model = facts["model"]
        lines.append(f"Model: charged as entry {model['entry']}, run {model['run']}")
        lines.append(_SAID[model["released"]])
    return lines


_SAID = {
    True: "The file is the one that the ledger records as released",
    False: "The ledger holds no digest of the file, so only its receipt was checked",
}


def _charged_model(model: Path) -> Any:
    """The model, if it has a receipt and its claim equals the cost of its releases."""
    from dpflows.anomaly.persistence import load

    fitted = load(model)
    if getattr(fitted, "receipt_", None) is None:
        raise InputError(
            f"{str(model)!r} has no receipt: it was fitted without a ledger, so it was charged to "
            "none; fit it again with --ledger"
        )
    return fitted


def _require_same_releases(ledger: "Ledger", model: Any) -> None:
    """Refuse a model whose list of releases differs from what the ledger charged."""
    from dpflows.privacy.events import tally

    run = model.receipt_.run
    charged = [
        event
        for entry in ledger.history()
        if entry.state == "RESERVED" and entry.run == run
        for event in entry.events
    ]
    if tally(charged) != tally(model.guarantee_.events):
        raise InputError(
            "the releases that the model lists differ from those that the ledger charged for run "
            f"{run!r}; do not rely on its certificate; get the released file again"
        )


def _release(ledger: "Ledger", receipt: "Receipt", model: Path) -> dict[str, bool]:
    """Whether the ledger records this file as released; an error if it records another one."""
    from dpflows.files import artefact_digest

    state = ledger.state_of(receipt.run)
    if state is None or not state.artefact:
        return {"released": False}
    if artefact_digest(model) != state.artefact:
        raise InputError(
            f"{str(model)!r} carries the receipt of run {receipt.run!r}, but the ledger records "
            "another file as the release of that run; get the released file again"
        )
    return {"released": True}

"""``dpflows certificate``: what a model promises, in words and for machines."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, Force, ModelFile, require_target


def certificate(
    model: ModelFile,
    target: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write it here: .txt or .json."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model promises, in plain words or as JSON."""
    from dpflows.anomaly.persistence import load

    if target is not None:
        require_target(target, (".txt", ".json"), source=model, force=force)
    fitted = load(model)
    document = describe(fitted)
    if target is not None:
        _write(target, document, force)
    if as_json:
        output.print_json(document)
    elif target is None:
        for line in in_words(document).split("\n"):
            output.say(output.console(), line)
    else:
        output.say(output.console(), f"Certificate: {target}")


def describe(fitted: Any) -> dict[str, Any]:
    """The certificate as plain JSON: released and public facts alone."""
    from dpflows.anomaly.threshold import DPAnomalyDetector

    promise, receipt = fitted.guarantee_, getattr(fitted, "receipt_", None)
    is_threshold = isinstance(fitted, DPAnomalyDetector)
    return promise.to_dict() | {
        "is_private": promise.is_private,
        "statement": fitted.privacy_statement(),
        "estimator": type(fitted).__name__,
        "columns": [{"name": c.name, "kind": c.kind} for c in fitted.encoding_.schema.columns],
        "plan": fitted.plan_.to_dict(),
        "receipt": None if receipt is None else receipt.to_dict(),
        **({"threshold": fitted.threshold_rule_.to_dict()} if is_threshold else {}),
    }


def in_words(document: dict[str, Any]) -> str:
    """The certificate for a reader."""
    events = [event.get("purpose", "") for event in document["events"]]
    purposes = "; ".join(dict.fromkeys(filter(None, events))) or "nothing"
    columns = ", ".join(f"{c['name']} ({c['kind']})" for c in document["columns"])
    versions = ", ".join(f"{name} {of}" for name, of in document["versions"].items())
    return "\n".join(
        [
            document["statement"],
            f"What was paid for: {purposes}.",
            f"Columns: {columns}.",
            f"Computed by: {versions}.",
            *_proof(document["receipt"]),
        ]
    )


def _proof(receipt: dict[str, Any] | None) -> list[str]:
    if receipt is None:
        return []
    place = f"entry {receipt['entry']} of ledger {receipt['ledger']}, run {receipt['run']}"
    return [f"Charged: {place}.", f"Head of the ledger's chain at that entry: {receipt['head']}."]


def _write(target: Path, document: dict[str, Any], force: bool) -> None:
    from dpflows.files import write_atomically

    is_json = target.suffix.lower() == ".json"
    text = json.dumps(document, indent=2, allow_nan=False) if is_json else in_words(document)
    with write_atomically(target, overwrite=force) as file:
        file.write((text + "\n").encode("utf-8"))

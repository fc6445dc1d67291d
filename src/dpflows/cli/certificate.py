"""``dpflows certificate``: the privacy guarantee of a model, as text or JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflows import __version__
from dpflows.cli import output
from dpflows.cli.settings import AsJson, Force, ModelFile, require_target
from dpflows.errors import displayable

if TYPE_CHECKING:
    from dpflows.signatures import Signature


def certificate(
    model: ModelFile,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write the certificate to this .txt or .json file."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a signature by this public key."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the privacy guarantee of a model, as text or JSON."""
    from dpflows.anomaly.persistence import load, require_signature
    from dpflows.files import read_signature

    if target is not None:
        require_target(target, (".txt", ".json"), source=model, force=force)
    fitted = load(model)
    signed = read_signature(model) if key is None else require_signature(model, key)
    document = describe(fitted) | {"signature": _signature(signed, key)}
    if target is not None:
        _write(target, document, force)
    if as_json:
        output.print_json(document)
    elif target is None:
        for line in in_words(document):
            output.say(output.console(), line)
    else:
        output.say(output.console(), f"Certificate: {target}")


def describe(fitted: Any) -> dict[str, Any]:
    """The certificate as plain JSON; it holds only released and public values."""
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


def in_words(document: dict[str, Any]) -> list[str]:
    """The certificate as text, line by line; no text in the file can add a line."""
    events = [event.get("purpose", "") for event in document["events"]]
    purposes = "; ".join(dict.fromkeys(filter(None, events))) or "nothing"
    columns = ", ".join(f"{c['name']} ({c['kind']})" for c in document["columns"])
    versions = ", ".join(f"{name} {of}" for name, of in document["versions"].items())
    lines = [
        f"Private releases: {purposes}.",
        f"Columns: {columns}.",
        f"Computed by: {versions}. Recomputed and confirmed by dpflows {__version__}.",
        *_proof(document["receipt"]),
        *_vouched(document["signature"]),
    ]
    # the statement makes what it quotes safe itself
    return [*document["statement"].split("\n"), *map(displayable, lines)]


def _proof(receipt: dict[str, Any] | None) -> list[str]:
    if receipt is None:
        return []
    place = f"entry {receipt['entry']} of ledger {receipt['ledger']}, run {receipt['run']}"
    return [f"Charged: {place}.", f"Head of the ledger's chain at that entry: {receipt['head']}."]


def _signature(signed: "Signature | None", key: Path | None) -> dict[str, Any] | None:
    if signed is None:
        return None
    return signed.to_dict() | {"fingerprint": signed.fingerprint, "is_given_key": key is not None}


def _vouched(signature: dict[str, Any] | None) -> list[str]:
    if signature is None:
        return ["Not signed: who made this file, and whether it was changed, cannot be checked."]
    lead = f"Signed by {signature['signer']}, key fingerprint {signature['fingerprint']}"
    known = (
        "This is the key given with --key."
        if signature["is_given_key"]
        else "To check whose key this is, run: dpflows verify MODEL --key PUBLIC.pem"
    )
    return [
        f"{lead}, at {signature['time']}.",
        f"The signature is valid: the file has not changed since. {known}",
    ]


def _write(target: Path, document: dict[str, Any], force: bool) -> None:
    from dpflows.files import write_atomically

    is_json = target.suffix.lower() == ".json"
    words = [json.dumps(document, indent=2, allow_nan=False)] if is_json else in_words(document)
    with write_atomically(target, overwrite=force) as file:
        file.write(("\n".join(words) + "\n").encode("utf-8"))

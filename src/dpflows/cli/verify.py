"""``dpflows verify``: whether a model is signed with a key and unchanged since."""

from pathlib import Path
from typing import Annotated

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, ModelFile


def verify(
    model: ModelFile,
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="The signer's public key, curator.pub.pem.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a model's signature and its certificate; exit code 0 only if both hold."""
    from dpflows.anomaly.persistence import verify as verify_file

    found = verify_file(model, key)
    if as_json:
        facts = {"file": str(model), "verified": True, "fingerprint": found.fingerprint}
        output.print_json(facts | found.to_dict())
        return
    screen = output.console()
    output.say(screen, f"Verified: {model} is signed with this key and unchanged since")
    output.say(screen, f"Signed by {found.signer} at {found.time}")
    output.say(screen, f"Key fingerprint: {found.fingerprint}")
    output.say(screen, "Its epsilon was computed again from the releases that it lists, and holds")

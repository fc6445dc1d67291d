"""``dpflows sign`` and ``dpflows verify``: make keys, sign a model, and check its signature."""

from pathlib import Path
from typing import Annotated

import typer

from dpflows.cli import output
from dpflows.cli.settings import AsJson, ModelFile
from dpflows.errors import InputError

_LONGEST_PASSPHRASE = 1024


def sign(
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="A fitted .dpflow file.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key, such as curator.pem.")
    ] = None,
    signer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the signer [default: the key's file name]."),
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME",
            help="Make a key pair, NAME.pem (secret) and NAME.pub.pem, and sign nothing.",
        ),
    ] = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for a passphrase for the new key.")
    ] = False,
    passphrase_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File whose first line is the key's passphrase."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign a model with the curator's key, or make a key pair."""
    if new_key is not None:
        if model is not None or key is not None:
            raise InputError(
                "--new-key must be given without a model and --key; make the key first, then sign"
            )
        _make(new_key, _chosen(passphrase, passphrase_file), as_json)
        return
    if model is None or key is None:
        raise InputError(
            "sign needs a model and a key: dpflows sign MODEL --key curator.pem; make a key with "
            "dpflows sign --new-key curator"
        )
    _sign(model, key, signer, _known(key, passphrase_file), as_json)


def _sign(
    model: Path, key: Path, signer: str | None, passphrase: str | None, as_json: bool
) -> None:
    from dpflows.anomaly.persistence import sign as sign_file

    made = sign_file(model, key, signer=signer, passphrase=passphrase)
    if as_json:
        output.print_json({"file": str(model), **made.to_dict(), "fingerprint": made.fingerprint})
        return
    screen = output.console()
    output.say(screen, f"Signed: {model}, by {made.signer} at {made.time}")
    output.say(screen, f"Key fingerprint: {made.fingerprint}")
    output.say(screen, f"To verify with the public key: dpflows verify {model} --key FILE")


def _make(name: Path, passphrase: str | None, as_json: bool) -> None:
    from dpflows.signatures import fingerprint, new_key_pair, read_public_key

    secret, public = new_key_pair(name, passphrase=passphrase)
    mark = fingerprint(read_public_key(public))
    if as_json:
        output.print_json(
            {"private_key": str(secret), "public_key": str(public), "fingerprint": mark}
        )
        return
    screen = output.console()
    output.say(screen, f"Private key: {secret} (keep it secret, and keep a copy in a safe place)")
    output.say(screen, f"Public key: {public} (give it to the recipients of your models)")
    output.say(screen, f"Key fingerprint: {mark} (publish it where only you can write)")


def _chosen(wanted: bool, file: Path | None) -> str | None:
    """The passphrase of a new key, if any."""
    if file is not None:
        return _first_line(file)
    if not wanted:
        return None
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True))


def _known(key: Path, file: Path | None) -> str | None:
    """The passphrase of an encrypted key."""
    from dpflows.signatures import is_encrypted

    if file is not None:
        return _first_line(file)
    if not is_encrypted(key):
        return None
    return str(typer.prompt("Passphrase", hide_input=True, err=True))


def _first_line(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            return lines.readline(_LONGEST_PASSPHRASE).rstrip("\r\n")
    except (OSError, ValueError):
        raise InputError(
            f"cannot read a passphrase from {str(file)!r}; it must be a text file"
        ) from None


def verify(
    model: ModelFile,
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="The signer's public key, such as curator.pub.pem.")
    ],
    as_json: AsJson = False,
) -> None:
    """Verify a model's signature and certificate."""
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
    output.say(
        screen, "Epsilon was recomputed from the releases that the model lists and confirmed"
    )

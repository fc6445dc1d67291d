"""Files of detectors and densities: loaded, signed and verified.

A new detector is one line in ``DETECTORS``.
"""

import os
from pathlib import Path
from typing import Any

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.persistence import class_named, explained, rebuilt
from dpflows.files import artefact_digest, read_model, read_signature, write_signature
from dpflows.signatures import (
    Signature,
    fingerprint,
    make_signature,
    read_private_key,
    read_public_key,
)

DETECTORS: dict[str, str] = {
    "DPAnomalyDetector": "dpflows.anomaly.threshold",
    "DPEnsembleDetector": "dpflows.anomaly.ensemble",
}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a fitted detector or density of any class from a file.

    Example:
        >>> load("missing.dpflow")
        Traceback (most recent call last):
        dpflows.errors.InputError: ...
    """
    header, arrays = read_model(path)
    with explained():
        if "detector" not in header:
            return rebuilt(header, arrays)
        detector = class_named(header["detector"], DETECTORS, "detector").from_file(header, arrays)
    opened = getattr(detector, "opened_from", None)
    if opened is not None:
        opened(path)
    return detector


def sign(
    path: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    signer: str | None = None,
    passphrase: str | None = None,
) -> Signature:
    """Sign a model's file with the curator's key; the signature is kept inside the file.

    Args:
        path: A ``.dpflow`` file.
        key: A private Ed25519 key, a PEM file that ``new_key_pair`` made.
        signer: The name to sign with; by default the name of the key's file.
        passphrase: The key's passphrase, if it has one.

    Guarantee:
        Only a file that ``load`` accepts is signed, so its epsilon was checked against its
        releases. The signature covers every other byte of the file; receipt and ledger stay valid.

    Raises:
        InputError: the file is refused by ``load``, or is an ensemble, whose file changes
            with every answer and must not be published.
    """
    digest = artefact_digest(path)
    if read_model(path)[0].get("internal"):
        raise InputError(
            "an ensemble cannot be signed: its file changes with every answer and must not be "
            "published"
        )
    load(path)
    secret = read_private_key(key, passphrase=passphrase)
    name = Path(key).stem if signer is None else signer

    def make(found: str) -> Signature:
        if found != digest:
            raise InputError(f"{str(path)!r} changed while it was being signed; sign it again")
        return make_signature(found, secret, signer=name)

    return write_signature(path, make)


def verify(path: str | os.PathLike[str], key: str | os.PathLike[str]) -> Signature:
    """Check that a model's file was signed with a key, and that nothing changed since.

    Args:
        path: A ``.dpflow`` file.
        key: The signer's public key, a PEM file from a trusted channel.

    Guarantee:
        Returns only if the holder of that key signed every other byte of the file, and if the
        file's epsilon equals the cost of the releases that it lists.

    Raises:
        InputError: the file is unsigned, signed by another key, or was changed.
    """
    found = require_signature(path, key)
    load(path)
    return found


def require_signature(path: str | os.PathLike[str], key: str | os.PathLike[str]) -> Signature:
    """The signature of a file by one key; anything else is refused."""
    expected, found = fingerprint(read_public_key(key)), read_signature(path)
    if found is None:
        raise InputError(f"{str(path)!r} is not signed; ask its sender for a signed file")
    if found.fingerprint != expected:
        raise InputError(
            f"{str(path)!r} is signed with another key ({found.fingerprint}) than the one given "
            f"({expected}); ask its sender which key is right"
        )
    return found


def density_of(model: Any) -> DensityEstimator:
    """The density of a loaded model, which may be sampled and scored.

    Guarantee:
        Refuses an ensemble: its members are fitted without privacy, and only its charged answers
        may be released.
    """
    if isinstance(model, DensityEstimator):
        return model
    density = getattr(model, "estimator_", None)
    if isinstance(density, DensityEstimator):
        return density
    raise InputError(
        "the model is an ensemble, whose members are not private; use dpflows detect, since only "
        "its answers may be released"
    )

"""Ed25519 keys and signatures for files.

A signature shows that the holder of the private key signed exactly these bytes. The signer's
name is what the signer wrote; only the key, identified by its fingerprint, is proof.
"""

import base64
import dataclasses
import datetime
import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dpflows.errors import InputError, is_displayable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

#: Signed with every digest, so that no other use of the key can be taken for a signature.
_CONTEXT = "dpflows model file, version 1"
_LONGEST_NAME = 200
_LONGEST_KEY_FILE = 16_384
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_HEX = re.compile(r"[0-9a-f]*", re.ASCII)


@final
@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature with its signer and time, both of which it covers.

    Attributes:
        signer: The name that the signer wrote.
        time: When, in UTC, by the signer's clock.
        public_key: The Ed25519 key that verifies it, 64 hexadecimal digits.
        value: The signature, 128 hexadecimal digits.

    Guarantee:
        ``is_valid_for`` accepts a digest only if the holder of the private key signed it together
        with this name and time. It cannot show whose key it is: compare ``fingerprint`` with one
        obtained through another channel.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> made = make_signature("ab" * 32, Ed25519PrivateKey.generate(), signer="Ward 7")
        >>> made.is_valid_for("ab" * 32), made.is_valid_for("cd" * 32)
        (True, False)
    """

    signer: str
    time: str
    public_key: str
    value: str

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key in DER form, as ``SHA256:`` and base64."""
        return fingerprint(_public_key(self.public_key))

    def is_valid_for(self, digest: str) -> bool:
        """Whether the key signed this digest, name and time."""
        from cryptography.exceptions import InvalidSignature

        message = _message(digest, self.signer, self.time, self.public_key)
        try:
            _public_key(self.public_key).verify(bytes.fromhex(self.value), message)
        except InvalidSignature:
            return False
        return True

    def to_dict(self) -> dict[str, str]:
        """A description that strict JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, description: Any) -> "Signature":
        """Read back what ``to_dict`` wrote; anything else, a hostile file's too, is refused."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(description, dict) or sorted(map(str, description)) != sorted(names):
            raise _unreadable()
        if not all(type(text) is str for text in description.values()):
            raise _unreadable()
        found = cls(**description)
        if not (_is_name(found.signer) and _TIME.fullmatch(found.time)):
            raise _unreadable()
        if not (_is_hex(found.public_key, 64) and _is_hex(found.value, 128)):
            raise _unreadable()
        return found


def make_signature(digest: str, key: "Ed25519PrivateKey", *, signer: str) -> Signature:
    """Sign the SHA-256 of a file's content, now, under a name.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> make_signature("ab" * 32, Ed25519PrivateKey.generate(), signer="Ward 7").signer
        'Ward 7'
    """
    if not _is_name(signer):
        raise InputError(
            f"signer must be a name of 1 to {_LONGEST_NAME} characters on one line, without "
            "control characters and without a fingerprint in it"
        )
    time = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    public = key.public_key().public_bytes_raw().hex()
    value = key.sign(_message(digest, signer, time, public)).hex()
    return Signature(signer, time, public, value)


def fingerprint(key: "Ed25519PublicKey") -> str:
    """The SHA-256 of a public key in DER form, as ``SHA256:`` and base64 without padding.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> fingerprint(Ed25519PrivateKey.generate().public_key()).startswith("SHA256:")
        True
    """
    from cryptography.hazmat.primitives import serialization

    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = base64.b64encode(hashlib.sha256(der).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


def new_key_pair(
    name: str | os.PathLike[str], *, passphrase: str | None = None
) -> tuple[Path, Path]:
    """Make a key pair: ``NAME.pem`` is secret, ``NAME.pub.pem`` is public.

    Args:
        name: Both files' name without the ending.
        passphrase: Encrypts the private key; without it only the file's mode protects it.

    Guarantee:
        The private key can be read by its owner alone from the moment its file exists. No
        file is replaced.

    Example:
        >>> import tempfile
        >>> secret, public = new_key_pair(f"{tempfile.mkdtemp()}/curator")
        >>> secret.name, public.name, oct(secret.stat().st_mode & 0o777)
        ('curator.pem', 'curator.pub.pem', '0o600')
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        lock = serialization.BestAvailableEncryption(_bytes_of(passphrase))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    secret, public = Path(f"{os.fspath(name)}.pem"), Path(f"{os.fspath(name)}.pub.pem")
    if public.exists():
        raise _taken(public)
    _create(secret, key.private_bytes(pem, pkcs8, lock), mode=0o600)
    _create(public, key.public_key().public_bytes(pem, spki), mode=0o644)
    return secret, public


def is_encrypted(path: str | os.PathLike[str]) -> bool:
    """Whether a private key file is encrypted with a passphrase."""
    return b"ENCRYPTED" in _read(Path(path))


def read_private_key(
    path: str | os.PathLike[str], *, passphrase: str | None = None
) -> "Ed25519PrivateKey":
    """The Ed25519 key in a PEM file (PKCS 8) that its owner alone may read.

    Example:
        >>> import tempfile
        >>> secret, public = new_key_pair(f"{tempfile.mkdtemp()}/curator", passphrase="a b")
        >>> key = read_private_key(secret, passphrase="a b")
        >>> fingerprint(key.public_key()) == fingerprint(read_public_key(public))
        True
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, secret = _read(Path(path)), None if passphrase is None else _bytes_of(passphrase)
    try:
        key = load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{str(path)!r} must be a private key in PEM form, with its passphrase if it has one; "
            "make one with dpflows sign --new-key NAME"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _wrong_kind(path)
    _require_own(Path(path))
    return key


def read_public_key(path: str | os.PathLike[str]) -> "Ed25519PublicKey":
    """The Ed25519 key in a PEM file (SubjectPublicKeyInfo)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _read(Path(path))
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{str(path)!r} must be a public key in PEM form, such as curator.pub.pem"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise _wrong_kind(path)
    return key


def _message(digest: str, signer: str, time: str, public_key: str) -> bytes:
    parts = {"content": digest, "public_key": public_key, "signer": signer, "time": time}
    return json.dumps({"context": _CONTEXT} | parts, sort_keys=True).encode("ascii")


def _public_key(digits: str) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits))


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and _HEX.fullmatch(text) is not None


def _is_name(text: str) -> bool:
    # a name must not be taken for the fingerprint that is shown beside it
    is_plain = is_displayable(text) and "sha256" not in text.lower()
    return is_plain and 0 < len(text.strip()) <= len(text) <= _LONGEST_NAME


def _bytes_of(passphrase: str) -> bytes:
    if not passphrase:
        raise InputError("passphrase must not be empty; remove it for a key without one")
    return passphrase.encode("utf-8")


def _require_own(path: Path) -> None:
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InputError(
            f"the private key {str(path)!r} can be read by others; run chmod 600 on it, and make "
            "a new key if somebody may have copied it"
        )


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise InputError(f"key must be a file in PEM form, got {str(path)!r}")
        with path.open("rb") as file:
            return file.read(_LONGEST_KEY_FILE)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}; check the path") from None


def _create(path: Path, content: bytes, *, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error.strerror}; choose a folder that exists and is "
            "writable"
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _taken(path: Path) -> InputError:
    return InputError(f"{str(path)!r} exists; a key is never replaced, choose another name")


def _wrong_kind(path: str | os.PathLike[str]) -> InputError:
    return InputError(f"{str(path)!r} must be an Ed25519 key; make one with dpflows sign --new-key")


def _unreadable() -> InputError:
    return InputError("the signature cannot be read")

"""Atomic writing of files, file locks, the ``.dpflow`` model format, and the cache folder.

A ``.dpflow`` file is a safetensors file whose metadata holds one JSON document: the format
version, a digest of the content, the caller's header, and a signature if the file was signed.
Reading it never runs code. The digest detects damage; only a signature by a known key shows
where a file comes from.

A signature covers every byte of the unsigned file. Removing the signature restores those
bytes, so a ledger that records the digest of a published file also recognises the signed file.

The operating system releases a lock when its holder closes it, is killed, or the machine stops, so
no stale lock remains. The cache folder holds files that can be restored: downloads and compiled
programs.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar, final

import numpy as np
import safetensors
import safetensors.numpy

from dpflows.errors import InputError
from dpflows.signatures import Signature

FORMAT_VERSION = 1
MAX_FILE_BYTES = 2**31
MAX_HEADER_BYTES = 2**24
MAX_ARRAYS = 10_000
MAX_DIMENSIONS = 8

#: Array types a file may hold, by safetensors' name.
DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "F32": "float32",
    "F64": "float64",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}

#: What a disk says that knows no links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_METADATA = "__metadata__"
_DOCUMENT = "dpflow"
_SIGNATURE = "signature"
_PARTS = {"format_version", "digest", "header", _SIGNATURE}
_LENGTH_BYTES = 8
_ALIGNMENT = 8

Kind = TypeVar("Kind")


#: Files of this process that are being written.
_temporaries: set[str] = set()


class _Rejected(Exception):
    """Why a file cannot be read, without quoting its content."""


@contextlib.contextmanager
def write_atomically(
    path: str | os.PathLike[str], *, overwrite: bool = True
) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name and move it into place at the end.

    Args:
        path: Where the file goes.
        overwrite: Whether a file that has the name already, or gets it meanwhile, is replaced.

    Guarantee:
        Whatever happens, ``path`` holds the old content or the whole new content.
        The temporary file is readable by its owner alone, lies in the same folder
        and is removed when the block raises, also on Ctrl-C.

    Example:
        >>> folder = tempfile.mkdtemp()
        >>> with write_atomically(f"{folder}/note.txt") as file:
        ...     _ = file.write(b"whole")
        >>> os.listdir(folder)
        ['note.txt']
    """
    target = Path(path)
    if not overwrite:
        require_absent(target)
    with _explained(target), _temporary_beside(target) as name:
        with open(name, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        give_name(name, target, overwrite=overwrite)


def is_writing() -> bool:
    """Whether this process is writing a temporary file that would remain if it ended now.

    Example:
        >>> is_writing()
        False
    """
    return bool(_temporaries)


def require_absent(path: str | os.PathLike[str], instead: str = "pass overwrite=True") -> None:
    """Refuse a path that exists, so that no file is overwritten by mistake.

    Args:
        path: Where something is to be written.
        instead: How the caller allows overwriting, for the message.

    Example:
        >>> with tempfile.NamedTemporaryFile() as existing:
        ...     require_absent(existing.name)
        Traceback (most recent call last):
        dpflows.errors.InputError: ... already exists; choose another name, or ...
    """
    if os.path.lexists(path):
        raise InputError(
            f"{os.fspath(path)!r} already exists; choose another name, or {instead} to overwrite it"
        )


def give_name(
    temporary: str | os.PathLike[str], target: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Move a complete file to its final name, and return when that is on disk.

    Guarantee:
        Without ``overwrite`` a file that was created under the name meanwhile is not replaced: the
        system refuses a second link of one name. On a file system without links (FAT) the name is
        checked just before the move instead.

    Example:
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("old", "new"):
        ...     _ = Path(folder, name).write_text(name)
        >>> give_name(f"{folder}/new", f"{folder}/old", overwrite=False)
        Traceback (most recent call last):
        dpflows.errors.InputError: ... already exists; ...
        >>> sorted(os.listdir(folder))
        ['new', 'old']
    """
    if overwrite or not _linked(temporary, target):
        os.replace(temporary, target)
    sync(Path(target).parent)


def _linked(temporary: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Link the file to its name if that is free; whether the file system has links."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        require_absent(target)
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        require_absent(target)
        return False
    os.unlink(temporary)
    return True


def write_model(
    path: str | os.PathLike[str],
    *,
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    overwrite: bool = True,
) -> None:
    """Write a ``.dpflow`` file: a JSON header and named arrays.

    Equal content gives equal bytes.

    Example:
        >>> path = f"{tempfile.mkdtemp()}/model.dpflow"
        >>> write_model(path, header={"kind": "flow"}, arrays={"shift": np.zeros(2)})
        >>> read_model(path)[0]
        {'kind': 'flow'}
    """
    content = model_bytes(header=header, arrays=arrays)
    with write_atomically(path, overwrite=overwrite) as file:
        file.write(content)


def model_bytes(*, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """What ``write_model`` writes.

    Example:
        >>> first, second = (model_bytes(header={}, arrays={"x": np.ones(2)}) for _ in "ab")
        >>> first == second
        True
    """
    plain = {name: _storable(name, array) for name, array in arrays.items()}
    # once through JSON, so that the digest is taken of what will be read
    read_back = json.loads(_to_json(dict(header)))
    document = {
        "format_version": FORMAT_VERSION,
        "digest": _digest(_to_json(read_back), plain),
        "header": read_back,
    }
    return safetensors.numpy.save(plain, metadata={_DOCUMENT: _to_json(document)})


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what ``write_model`` wrote.

    Guarantee:
        No code from the file is run, every size in it is compared with the file's own size before
        use, and no message quotes its content. A signature that does not match the rest of the file
        is refused.

    Raises:
        InputError: the file is missing, damaged, not a dpflows model, newer than this
            version of dpflows, or changed after it was signed.

    Example:
        >>> path = f"{tempfile.mkdtemp()}/model.dpflow"
        >>> write_model(path, header={}, arrays={"shift": np.arange(3)})
        >>> read_model(path)[1]["shift"].tolist()
        [0, 1, 2]
    """
    with _reading(path):
        return _parse(_read_bounded(Path(path)))[:2]


def read_signature(path: str | os.PathLike[str]) -> Signature | None:
    """The signature of a ``.dpflow`` file, if any; one that does not match is refused.

    Example:
        >>> path = f"{tempfile.mkdtemp()}/model.dpflow"
        >>> write_model(path, header={}, arrays={})
        >>> read_signature(path) is None
        True
    """
    with _reading(path):
        return _parse(_read_bounded(Path(path)))[2]


def write_signature(path: str | os.PathLike[str], make: Callable[[str], Signature]) -> Signature:
    """Sign a ``.dpflow`` file; an older signature is replaced.

    Args:
        path: The file, which is replaced as a whole.
        make: Gives a signature for the SHA-256 of the file without one.

    Guarantee:
        Nothing but the signature changes: ``artefact_digest`` stays what it was.
    """
    # a link keeps its name and its target gets the signature
    target = Path(path).resolve()
    with _reading(path):
        content, mode = _read_bounded(target), stat.S_IMODE(target.stat().st_mode)
        is_unsigned = _parse(content)[2] is None
        plain = _without_signature(content)
        if is_unsigned and plain != content:
            raise _Rejected("it was written by another program and cannot be signed")
        made = make(hashlib.sha256(plain).hexdigest())
    with write_atomically(target) as file:
        os.fchmod(file.fileno(), mode)
        file.write(_with_signature(plain, made.to_dict()))
    return made


def artefact_digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a released file as it was before it was signed.

    For a file that is no ``.dpflow``, or that nobody signed, the SHA-256 of its bytes.

    Example:
        >>> path = f"{tempfile.mkdtemp()}/model.dpflow"
        >>> write_model(path, header={}, arrays={})
        >>> artefact_digest(path) == hashlib.sha256(Path(path).read_bytes()).hexdigest()
        True
    """
    with _reading(path):
        with contextlib.suppress(_Rejected):
            content = _read_bounded(Path(path))
            if _SIGNATURE in _document(content):
                return hashlib.sha256(_without_signature(content)).hexdigest()
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}; check the path") from None
    except _Rejected as reason:
        raise InputError(
            "model file must be complete and written by this or an older version of dpflows, but "
            f"{reason}; "
            f"got {str(path)!r}; get the file again or upgrade dpflows"
        ) from None


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    if target.is_dir():
        raise InputError(f"output must be a file, got the folder {str(target)!r}; add a file name")
    folder = os.path.dirname(os.path.abspath(target))
    try:
        yield
    except OSError as error:
        # the caller's block may fail on a file of its own, which is not ours to explain
        if error.filename and os.path.dirname(error.filename) != folder:
            raise
        raise InputError(
            f"cannot write {str(target)!r}: {error.strerror}; choose a folder that exists, is "
            "writable and has free space"
        ) from error


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[str]:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".dpflows-", suffix=".part")
    os.close(descriptor)
    _temporaries.add(name)
    try:
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        _temporaries.discard(name)


def sync(path: str | os.PathLike[str]) -> None:
    """Return when a file, or the names in a folder, are on disk."""
    # elsewhere a folder cannot be opened, and need not be
    if os.name != "posix" and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    kind = np.asarray(array).dtype.name
    if kind not in DTYPES.values():
        raise InputError(f"array {name!r} must be float, integer or bool, got {kind}; convert it")
    if name in ("", _METADATA):
        raise InputError(f"array name must not be {name!r}; rename it")
    # safetensors reads the memory as it lies: own byte order, C order
    return np.asarray(array, dtype=np.dtype(kind), order="C")


def _to_json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise InputError("header must be plain JSON with finite numbers; convert it") from None


def _digest(header: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(_to_json([name, array.dtype.name, array.shape]).encode())
        digest.update(array.tobytes())
    digest.update(header.encode())
    return digest.hexdigest()


def _read_bounded(path: Path) -> bytes:
    # opening a pipe would wait for a writer, so the kind of file is asked first
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _Rejected("it is not a regular file")
    if found.st_size > MAX_FILE_BYTES:
        raise _Rejected(f"it is larger than {MAX_FILE_BYTES} bytes")
    with path.open("rb") as file:
        return file.read(found.st_size)


def _parse(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray], Signature | None]:
    entries, document = _entries(content), _document(content)
    _check_version(document.get("format_version"))
    _check_entries({name: entry for name, entry in entries.items() if name != _METADATA})
    header = _expect(document.get("header"), dict)
    arrays = _load_arrays(content)
    if _digest(_to_json(header), arrays) != document.get("digest"):
        raise _Rejected("its content does not match its digest")
    return header, arrays, _checked_signature(content, document)


def _entries(content: bytes) -> dict[str, Any]:
    return _from_json(_safetensors_header(content))


def _document(content: bytes) -> dict[str, Any]:
    metadata = _expect(_entries(content).get(_METADATA), dict)
    document = _from_json(_expect(metadata.get(_DOCUMENT), str))
    # or one changed letter would turn a signature into a part that nobody looks at
    if len(metadata) > 1 or not document.keys() <= _PARTS:
        raise _Rejected("its header has an unknown field")
    return document


def _checked_signature(content: bytes, document: dict[str, Any]) -> Signature | None:
    """The signature, if any; it must match every other byte of the file."""
    if _SIGNATURE not in document:
        return None
    try:
        found = Signature.from_dict(document[_SIGNATURE])
    except InputError:
        raise _Rejected("its signature cannot be read") from None
    plain = _without_signature(content)
    is_exact = _with_signature(plain, found.to_dict()) == content
    if not (is_exact and found.is_valid_for(hashlib.sha256(plain).hexdigest())):
        raise _Rejected("it was changed after it was signed: its signature does not match")
    return found


def _without_signature(content: bytes) -> bytes:
    document = _document(content)
    document.pop(_SIGNATURE, None)
    return _with_document(content, document)


def _with_signature(content: bytes, signature: dict[str, Any]) -> bytes:
    return _with_document(content, _document(content) | {_SIGNATURE: signature})


def _with_document(content: bytes, document: dict[str, Any]) -> bytes:
    """The same file with another document; the arrays keep their order and bytes."""
    entries = _entries(content)
    entries[_METADATA][_DOCUMENT] = _to_json(document)
    try:
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise _Rejected("its header is not text") from None
    text += b" " * (-len(text) % _ALIGNMENT)
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + content[start:]


def _safetensors_header(content: bytes) -> str:
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, len(content) - _LENGTH_BYTES):
        raise _Rejected("its header is cut off or too long")
    try:
        return content[_LENGTH_BYTES : _LENGTH_BYTES + length].decode("utf-8")
    except UnicodeDecodeError:
        raise _Rejected("its header is not text") from None


def _from_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError):
        raise _Rejected("its header is not valid JSON") from None
    return _expect(value, dict)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError("not a finite number")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError("not a finite number")
    return value


def _expect(value: Any, kind: type[Kind]) -> Kind:
    if not isinstance(value, kind):
        raise _Rejected("its header lacks a field or has one of the wrong type")
    return value


def _check_version(version: Any) -> None:
    if type(version) is not int or version < 1:
        raise _Rejected("its format version is missing")
    if version > FORMAT_VERSION:
        raise _Rejected("it was written by a newer version of dpflows")


def _check_entries(entries: dict[str, Any]) -> None:
    if len(entries) > MAX_ARRAYS:
        raise _Rejected(f"it holds more than {MAX_ARRAYS} arrays")
    for entry in entries.values():
        if _expect(_expect(entry, dict).get("dtype"), str) not in DTYPES:
            raise _Rejected("an array has a type that models do not use")
        if len(_expect(entry.get("shape"), list)) > MAX_DIMENSIONS:
            raise _Rejected(f"an array has more than {MAX_DIMENSIONS} dimensions")


def _load_arrays(content: bytes) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, OverflowError, KeyError):
        raise _Rejected("its arrays do not fill the file exactly") from None


_RETRIES = 1000
_LONGEST = 200


def lock(descriptor: int, path: str | os.PathLike[str], *, wait: bool) -> bool:
    """Lock an open file exclusively; returns whether that was possible.

    Args:
        descriptor: The open file. Another opening of the same file, by a thread of this
            process or elsewhere, is kept out; a copy of the descriptor is not.
        path: Its name, for messages.
        wait: Whether to wait until the lock is free.

    Raises:
        InputError: The system or the folder does not support locks.
    """
    try:
        # Only POSIX systems have it; the import must not keep others from what needs no lock.
        import fcntl
    except ImportError:
        raise InputError(
            f"cannot lock {os.fspath(path)!r}: this system has no POSIX file locks; use Linux or "
            "macOS"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise InputError(
            f"cannot lock {os.fspath(path)!r}: {error.strerror}; choose a folder on a local disk, "
            "where files can be locked"
        ) from None
    return True


def is_current(path: str | os.PathLike[str], descriptor: int) -> bool:
    """Whether an open file is the one that the path names now."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def require_one_name(status: os.stat_result, path: str | os.PathLike[str], what: str) -> None:
    """Refuse a file with hard links: replaced under one name, it would remain under another.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/e.dpflow"
        >>> open(path, "w").close()
        >>> os.link(path, f"{path}.2")
        >>> require_one_name(os.stat(path), "e.dpflow", "an ensemble")
        Traceback (most recent call last):
        dpflows.errors.InputError: 'e.dpflow' has 2 names (hard links), but an ensemble ...
    """
    if status.st_nlink != 1:
        raise InputError(
            f"{os.fspath(path)!r} has {status.st_nlink} names (hard links), but {what} must have "
            "only one, or its budget could be spent under each; remove the others (symbolic links "
            "are allowed)"
        )


@final
class NamedLock:
    """A lock that belongs to a name, whether or not a file of that name exists.

    It is held on a separate file, which is created when the lock is taken and removed when it is
    released.

    Args:
        path: The file whose name is locked; its links must be resolved.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clinic.run"
        >>> first, second = NamedLock(path), NamedLock(path)
        >>> first.take(), second.take(), second.holder()[:4]
        (True, False, 'pid ')
        >>> first.let_go()
        >>> os.listdir(path.parent)
        []
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self._process = os.getpid()
        self._path = path.with_name(f".{path.name}.lock")

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Take the lock without waiting; returns whether it was free."""
        for _ in range(_RETRIES):
            descriptor = self._open()
            with _closed_on_failure(descriptor):
                is_taken = lock(descriptor, self._path, wait=False)
            if is_taken and is_current(self._path, descriptor):
                self._descriptor, self._process = descriptor, os.getpid()
                self._sign(descriptor)
                return True
            os.close(descriptor)
            if not is_taken:
                return False
            # Its holder removed the file before letting go; the name has no lock now.
        raise InputError(
            f"cannot lock {str(self._path)!r}: too many processes are waiting for it; try again"
        )

    def let_go(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._descriptor is None:
            return
        # A forked process has a copy of the descriptor, and no right to the name.
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        self.let_go()

    def holder(self) -> str:
        """The process and host that hold the lock, if known."""
        with contextlib.suppress(OSError):
            said = self._path.read_bytes()[:_LONGEST].decode("ascii", "replace")
            if said and said.isprintable():
                return said
        return "pid unknown"

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self._path, flags, 0o600)
        except OSError as error:
            raise InputError(
                f"cannot lock {str(self._path)!r}: {error.strerror}; choose a folder that exists, "
                "is writable and has free space"
            ) from None

    @staticmethod
    def _sign(descriptor: int) -> None:
        # For messages alone: a disk without room for it must not stop anything.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)


@contextlib.contextmanager
def _closed_on_failure(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise

"""File locks that the operating system releases when the process that holds them ends.

A lock is released when its holder closes it, is killed, or the machine stops, so no stale
lock remains.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import final

from dpflows.errors import InputError

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

"""A disk that is full from some moment on, for the files and the ledger of this process."""

import contextlib
import errno
import io
import os
import sqlite3
import tempfile

from dpflows import files


class FullDisk:
    """Counts what needs room, and fails after so many times.

    Args:
        room: How many operations succeed.
        lasting: Whether all later operations fail too, or the next one alone.
        is_late: Whether a commit that fails has happened all the same.
    """

    def __init__(self, room=10**9, *, lasting=True, is_late=False):
        self.room, self.lasting, self.is_late = room, lasting, is_late
        self.asked = []

    def is_full(self, what):
        self.asked.append(what)
        return len(self.asked) > self.room and (self.lasting or len(self.asked) == self.room + 1)

    def check(self, what):
        if self.is_full(what):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextlib.contextmanager
    def mounted(self, patch):
        """Let files, folders and ledgers ask for room until the block ends."""
        with patch.context() as patched:
            for owner, name in (
                (os, "fsync"),
                (os, "replace"),
                (os, "link"),
                (tempfile, "mkstemp"),
            ):
                patched.setattr(owner, name, self._asking(name, getattr(owner, name)))
            patched.setattr(files, "open", self._opened, raising=False)
            patched.setattr(sqlite3, "connect", self._connected(sqlite3.connect))
            yield self

    def _asking(self, name, honest):
        def ask(*arguments, **options):
            self.check(name)
            return honest(*arguments, **options)

        return ask

    def _opened(self, name, mode):
        disk = self

        class Raw(io.FileIO):
            def write(self, content):
                try:
                    disk.check("write")
                except OSError:
                    super().write(bytes(content)[: len(content) // 2])
                    raise
                return super().write(content)

        return io.BufferedWriter(Raw(name, mode))

    def _connected(self, honest):
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, command, *values):
                needs_room = command.startswith(("CREATE", "INSERT", "COMMIT"))
                if needs_room and disk.is_full(command.split()[0]):
                    if command == "COMMIT" and disk.is_late:
                        super().execute(command)
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(command, *values)

        return lambda *arguments, **options: honest(*arguments, **options, factory=Connection)

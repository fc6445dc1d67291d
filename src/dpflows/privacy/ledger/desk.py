"""An open transaction, and what all rows amount to in it."""

import os
from typing import Any, final

from dpflows.errors import InputError
from dpflows.privacy.ledger.entries import Entry, now
from dpflows.privacy.ledger.standing import Standing
from dpflows.privacy.ledger.stores import Pages


@final
class Desk:
    """Where rows are added while nobody else may add any.

    Guarantee:
        Nothing is committed after a row could not be added, or in another process than
        the one that opened the transaction.
    """

    def __init__(self, pages: Pages, standing: Standing) -> None:
        self.pages, self.standing = pages, standing
        self._process, self._broken = os.getpid(), False
        self.has_written = False

    def write(self, **fields: Any) -> Entry:
        """Chain an entry to the last one."""
        entry = Entry(number=self.standing.number + 1, time=now(), **fields)
        row = entry.chained_to(self.standing.head)
        self._broken = self.has_written = True
        self.pages.append(row)
        written = self.standing.add(row)
        self._broken = False
        return written

    def close(self) -> None:
        """Refuse to commit what is not whole."""
        self.require_own_process()
        if self._broken:
            raise InputError("a row could not be added to the ledger; nothing was granted")

    def require_own_process(self) -> None:
        """Refuse a process that was forked off in the middle of a transaction."""
        if os.getpid() != self._process:
            raise InputError(
                "a ledger that is held cannot be used in a forked process; fork before or after"
            )

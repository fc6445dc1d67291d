"""What was ever spent on a data set: durable, shared by processes, checked by a hash chain.

The order of a release: commit the charge, touch the data, write the file safely, mark it
released, reveal it. ``Ledger.reserve`` does the first, ``publish`` the last three.
"""

from dpflows.privacy.ledger.entries import Entry, Receipt
from dpflows.privacy.ledger.ledger import Ledger, pending_files, publish, recover
from dpflows.privacy.ledger.state import State

__all__ = ["Entry", "Ledger", "Receipt", "State", "pending_files", "publish", "recover"]

"""The ledger: a durable, hash-chained record of all privacy spent on a data set.

The order of a release: commit the charge, read the data, write the file safely, record it as
released, make it visible. ``Ledger.reserve`` does the first, ``publish`` the last three.
"""

from dpflows.privacy.ledger.compositions import RunState
from dpflows.privacy.ledger.entries import Entry, Receipt
from dpflows.privacy.ledger.ledger import Ledger, pending_files, publish, recover

__all__ = ["Entry", "Ledger", "Receipt", "RunState", "pending_files", "publish", "recover"]

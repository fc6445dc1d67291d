"""The order of a fit with a ledger: first the charge, then the rows, then the release.

Guarantee:
    With a ledger, every event of the plan is committed there before anything is computed
    from a row's value. Before a fit returns its model, in memory or on disk, the ledger
    records the run as released with the digest of the file that ``save`` writes: one charge
    covers one model, and a copy of a checkpointed run that ends otherwise is refused. A
    charge is never refunded.
"""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from dpflows.errors import BudgetError, InputError
from dpflows.files import model_bytes, write_atomically
from dpflows.privacy.events import Event
from dpflows.privacy.ledger import Ledger, Receipt
from dpflows.training.checkpoints import Before, Checkpoints

PURPOSE = "fit"


@final
@dataclasses.dataclass(frozen=True)
class Payment:
    """The charge of a fit, and its checkpoints until the model is safe.

    Attributes:
        ledger: The ledger that was charged, if any.
        receipt: The ledger's receipt.
        journal: The run's checkpoints, if it has any.
        artefact: The SHA-256 of the model's file, once the ledger records it.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/model.dpflow"
        >>> Payment().deliver(path, ({"kind": "flow"}, {}))
        >>> os.path.exists(path)
        True
    """

    ledger: Ledger | None = None
    receipt: Receipt | None = None
    journal: Checkpoints | None = None
    artefact: str = ""

    def hand_out(self, describe: Callable[[], Before]) -> "Payment":
        """Bind the charge to one model, before it is returned.

        Args:
            describe: Returns header and arrays as ``save`` will write them.

        Raises:
            InputError: The run was released with another model, from a copy of its checkpoint.

        Guarantee:
            When this returns, the checkpoint holds the model and the ledger its digest. After a
            crash in between, another start returns the same model.
        """
        if self.ledger is None or self.receipt is None:
            return self
        model = describe()
        artefact = _digest(model_bytes(header=model[0], arrays=model[1]))
        if self.journal is not None and self.journal.result() is None:
            self.journal.finish(*model)
        self.ledger.release(self.receipt, artefact=artefact)
        return dataclasses.replace(self, artefact=artefact)

    def deliver(
        self, path: str | os.PathLike[str], model: Before, *, overwrite: bool = False
    ) -> None:
        """Write the model atomically, then remove the checkpoint.

        If writing fails, it can be tried again, and the model may be written more than once.

        Args:
            path: Where the file goes.
            model: Header and arrays.
            overwrite: Whether an existing file may be overwritten.

        Raises:
            InputError: The model was changed since the ledger recorded its digest, or the file
            exists.
        """
        content = model_bytes(header=model[0], arrays=model[1])
        if self.artefact and _digest(content) != self.artefact:
            raise InputError(
                "the model is not the one that the ledger recorded as released: it was changed "
                "after fit; undo the change, then save it"
            )
        if not _holds(path, content):
            with _explained(path), write_atomically(path, overwrite=overwrite) as file:
                file.write(content)
        if self.journal is not None:
            self.journal.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a model is post-processing: it was paid for, and has no run of its own.
        return Payment, ()


def alive(journal: Checkpoints | None) -> contextlib.AbstractContextManager[None]:
    """Lock a checkpointed run until the block ends.

    Example:
        >>> with alive(None):
        ...     pass
    """
    return contextlib.nullcontext() if journal is None else journal.alive()


@contextlib.contextmanager
def withdrawn_on_failure(estimator: Any) -> Iterator[None]:
    """Remove the results of a fit if it failed before they were released.

    Example:
        >>> class Estimator: pass
        >>> estimator = Estimator()
        >>> with contextlib.suppress(OSError), withdrawn_on_failure(estimator):
        ...     estimator.density_ = 1.0
        ...     raise OSError
        >>> vars(estimator)
        {}
    """
    try:
        yield
    except BaseException:
        for name in [name for name in vars(estimator) if name.endswith("_")]:
            delattr(estimator, name)
        raise


def _holds(path: str | os.PathLike[str], content: bytes) -> bool:
    """Whether a file already holds this content, from a start that was killed after writing."""
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {os.fspath(path)!r}: {error.strerror}; free some space or choose "
            "another folder, then try again; the fit is not charged twice"
        ) from error


def charge(
    ledger: Ledger | None,
    events: Sequence[Event],
    *,
    stamps: Sequence[str],
    journal: Checkpoints | None = None,
) -> Payment:
    """Charge the events of a fit to the ledger, if there is one.

    A checkpointed run is identified by its id, which is on disk before the charge, so another start
    is not charged again.

    Args:
        ledger: The ledger to charge.
        events: Everything that the fit will release.
        stamps: Warnings that void the guarantee; there must be none.
        journal: The run's checkpoints.

    Raises:
        BudgetError: The ledger's remaining budget is too small; nothing was charged.
        InputError: The fit is not private, or its run was released already.

    Example:
        >>> charge(None, (), stamps=()).receipt is None
        True
    """
    if ledger is not None:
        require_price(stamps)
    run = None if journal is None else journal.begin()
    if ledger is None:
        return Payment(journal=journal)
    if journal is not None and (model := journal.result()) is not None:
        # It is finished: what the run hands out is decided, and the ledger compares it.
        return Payment(ledger, Receipt.from_dict(model[0]["receipt"]), journal)
    try:
        receipt = ledger.reserve(events, purpose=PURPOSE, run=run)
    except (BudgetError, InputError):
        # A commit may fail to answer and yet be on disk: then the run is to be resumed.
        if journal is not None and ledger.state_of(journal.begin()) is None:
            journal.abandon()
        raise
    return Payment(ledger, receipt, journal)


def require_price(stamps: Sequence[str]) -> None:
    """Refuse a fit that is not private, since its cost cannot be charged.

    Example:
        >>> require_price(["NOT PRIVATE: randomness came from a test seed"])
        Traceback (most recent call last):
        dpflows.errors.InputError: a ledger can charge only private fits, but this one ...
    """
    if stamps:
        raise InputError(
            f"a ledger can charge only private fits, but this one is {stamps[0]}; fit without a "
            "ledger, or change the setting"
        )

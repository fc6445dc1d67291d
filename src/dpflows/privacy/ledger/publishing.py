"""The last steps of a release: the file is safe, the ledger knows, then it is seen."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dpflows.errors import InputError
from dpflows.files import give_name, require_absent, sync
from dpflows.privacy.ledger.ledger import Ledger
from dpflows.privacy.ledger.receipts import Receipt


def pending_name(path: str | os.PathLike[str], run: str) -> Path:
    """Where a run keeps its file until the ledger knows of it.

    Example:
        >>> pending_name("model.dpflow", "night-7").name
        '.model.6e7048e06894.pending.dpflow'
    """
    target = Path(path)
    tag = hashlib.sha256(run.encode()).hexdigest()[:12]
    return target.with_name(f".{target.stem}.{tag}.pending{target.suffix}")


def publish(
    ledger: Ledger,
    receipt: Receipt,
    path: str | os.PathLike[str],
    write: Callable[[Path], None],
    *,
    overwrite: bool = True,
) -> Receipt:
    """Write a file under a pending name, mark it released, then give it its name.

    Args:
        ledger: Where the release was charged.
        receipt: What ``reserve`` gave; the charge must be committed.
        path: The file's final name.
        write: Writes the file to the path it is given.
        overwrite: Whether a file that has the final name already may be lost.

    Guarantee:
        Whenever the process dies, a file with the final name has a charge, and the ledger
        knows its digest. A death between the mark and the renaming leaves the pending
        file, which ``recover`` reveals.

    Example:
        >>> import tempfile
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> from dpflows.privacy.guarantee import Budget
        >>> folder = tempfile.mkdtemp()
        >>> ledger = Ledger(f"{folder}/clinic.ledger", cap=Budget(1.0, 1e-6))
        >>> query = PureEvent(epsilon=Sensitivity.uniformly(0.4))
        >>> receipt = ledger.reserve([query], purpose="mean age")
        >>> marked = publish(ledger, receipt, f"{folder}/mean.txt", lambda p: p.write_text("41"))
        >>> ledger.state_of(receipt.run).name, sorted(os.listdir(folder))
        ('RELEASED', ['clinic.ledger', 'mean.txt'])
    """
    _require_unreleased(ledger, receipt)
    if not overwrite:
        require_absent(path)
    target, pending = Path(path), pending_name(path, receipt.run)
    with _removed_on_failure(pending):
        write(pending)
        sync(pending)
        sync(pending.parent)
        artefact = _digest(pending)
    with _removed_if_unmarked(ledger, receipt.run, pending):
        marked = ledger.release(receipt, artefact=artefact)
    _reveal(pending, target, overwrite)
    return marked


def recover(
    ledger: Ledger, run: str, path: str | os.PathLike[str], *, overwrite: bool = True
) -> bool:
    """Finish a release that was marked but not revealed; whether ``path`` now holds it.

    Guarantee:
        Only a file whose digest the ledger has marked as released gets the name.
    """
    state = ledger.state_of(run)
    if state is None or not state.artefact:
        return False
    target, pending = Path(path), pending_name(path, run)
    if _holds(target, state.artefact):
        # A death while the name was given may have left the file under both names.
        pending.unlink(missing_ok=True)
        return True
    if _holds(pending, state.artefact):
        _reveal(pending, target, overwrite)
        return True
    return False


def _require_unreleased(ledger: Ledger, receipt: Receipt) -> None:
    state = ledger.state_of(receipt.run)
    if state is None or state.is_released:
        why = "was never charged" if state is None else "was released already"
        raise InputError(
            f"run {receipt.run!r} {why} in this ledger; recover its file, or start a new run"
        )


@contextlib.contextmanager
def _removed_on_failure(pending: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pending.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _removed_if_unmarked(ledger: Ledger, run: str, pending: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # A commit may fail to answer and yet be on disk: then the file is to be recovered.
        state = ledger.state_of(run)
        if state is None or not state.is_released:
            pending.unlink(missing_ok=True)
        raise


def _reveal(pending: Path, target: Path, overwrite: bool) -> None:
    give_name(pending, target, overwrite=overwrite)


def _holds(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

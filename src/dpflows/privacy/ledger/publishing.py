"""The last steps of a release: the file is safe, the ledger knows, then it is seen."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from dpflows.errors import InputError
from dpflows.files import artefact_digest, give_name, require_absent, sync
from dpflows.privacy.ledger.ledger import Ledger
from dpflows.privacy.ledger.receipts import Receipt


def pending_files(path: str | os.PathLike[str], run: str) -> list[Path]:
    """The files of a run that wait beside ``path`` until the ledger knows of them.

    Each process that publishes has one of its own; all but the one whose digest the ledger
    marked are worth nothing.

    Example:
        >>> import tempfile
        >>> pending_files(f"{tempfile.mkdtemp()}/model.dpflow", "night-7")
        []
    """
    target, (start, end) = Path(path), _affixes(path, run)
    names = os.listdir(target.parent) if target.parent.is_dir() else ()
    return [target.with_name(n) for n in sorted(names) if n.startswith(start) and n.endswith(end)]


def _affixes(path: str | os.PathLike[str], run: str) -> tuple[str, str]:
    target, tag = Path(path), hashlib.sha256(run.encode()).hexdigest()[:12]
    return f".{target.stem}.{tag}.", f"pending{target.suffix}"


def _new_pending(path: str | os.PathLike[str], run: str) -> Path:
    start, end = _affixes(path, run)
    return Path(path).with_name(f"{start}{secrets.token_hex(8)}.{end}")


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
        file, which ``recover`` reveals. Of several processes that publish under one receipt,
        whatever the names, one succeeds; the others are refused and leave no file, unless
        all hold the same content.

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
    target, pending = Path(path), _new_pending(path, receipt.run)
    with _removed_on_failure(pending):
        write(pending)
        sync(pending)
        sync(pending.parent)
        artefact = _digest(pending)
    with _removed_if_unmarked(ledger, receipt.run, pending, artefact):
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
    target = Path(path)
    for pending in pending_files(path, run):
        if not _holds(pending, state.artefact):
            continue
        if _holds(target, state.artefact):
            # a death while the name was given may have left the file under both names
            pending.unlink(missing_ok=True)
        else:
            _reveal(pending, target, overwrite)
        break
    return _holds(target, state.artefact)


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
def _removed_if_unmarked(ledger: Ledger, run: str, pending: Path, artefact: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # A commit may fail to answer and yet be on disk: then the file is to be recovered.
        # What another process released instead leaves this one without a charge.
        state = ledger.state_of(run)
        if state is None or state.artefact != artefact:
            pending.unlink(missing_ok=True)
        raise


def _reveal(pending: Path, target: Path, overwrite: bool) -> None:
    give_name(pending, target, overwrite=overwrite)


def _holds(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _digest(path: Path) -> str:
    # signing a file later must not make another one of it
    return artefact_digest(path)

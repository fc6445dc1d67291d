"""Charges before fits, and warnings where several fits are not charged together.

With a ledger a fit is charged first, then reads rows, then releases. Without one, repeated fits of
the same rows inside one process, such as those of a grid search or a cross-validation, are noticed,
and a warning states the composed total. A ``StandardScaler`` in front of an estimator reads the
mean and the deviation of every column: they are not noisy and no guarantee covers them, but they
are part of the pipeline's output, so there is a warning as well.

Guarantee:
    With a ledger, every event of the plan is committed there before anything is computed
    from a row's value. Before a fit returns its model, in memory or on disk, the ledger
    records the run as released with the digest of the file that ``save`` writes: one charge
    covers one model, and a copy of a checkpointed run that ends otherwise is refused. A
    charge is never refunded.

    The warnings store, log and release nothing. Only hashes of a small sample of the rows, under a
    random key that never leaves the process, are held in memory.
"""

import collections
import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import UInt64
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from dpflows.errors import BudgetError, InputError, RepeatedFitWarning, UnpaidTransformerWarning
from dpflows.files import model_bytes, write_atomically
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger, Receipt
from dpflows.table.reading import Table
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


Hashes = UInt64[np.ndarray, " rows"]

#: So many of a table's rows are remembered, those with the smallest hashes.
SAMPLE = 2048
#: So many fits are remembered; together with the sample at most 4 MB.
REMEMBERED = 256
#: Two tables are the same people from this share of common rows on.
COMMON = 0.05
#: Fewer rows than this are no evidence.
_LEAST = 5

_BLOCK = 2**14
_LARGEST = np.uint64(2**64 - 1)
_KEY = os.urandom(16)
_untracked: contextvars.ContextVar[bool] = contextvars.ContextVar("untracked", default=False)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Sketch:
    """The rows of a table whose hashes are smallest: the same ones in every part of it.

    Attributes:
        hashes: Sorted hashes of sampled rows that occur once.
        limit: Every row with a hash up to this one was considered.
        repeated: The share of sampled rows that occur more than once; two tables of
            different people have about as many rows in common by chance.
        whole: The number of rows and the sum of all hashes.

    Example:
        >>> rows = np.random.default_rng().normal(size=(1000, 2))
        >>> one, two = (Sketch.of([part[:, 0], part[:, 1]]) for part in (rows, rows[300:]))
        >>> one.overlaps(two)
        True
    """

    hashes: Hashes
    limit: np.uint64
    repeated: float
    whole: tuple[int, int]

    @classmethod
    def of(cls, columns: Sequence[np.ndarray]) -> "Sketch":
        """Hash all rows and keep a few of the hashes."""
        hashes = _hashes(columns)
        is_all = len(hashes) <= SAMPLE
        least = hashes if is_all else np.partition(hashes, SAMPLE)[:SAMPLE]
        values, counts = np.unique(least, return_counts=True)
        limit = _LARGEST if is_all else values[-1]
        whole = (len(hashes), int(hashes.sum(dtype=np.uint64)))
        repeated = float(counts[counts > 1].sum()) / max(len(least), 1)
        return cls(values[counts == 1], limit, repeated, whole)

    def overlaps(self, other: "Sketch") -> bool:
        """Whether the tables share more rows than chance explains."""
        if self.whole == other.whole:
            return True
        limit = min(self.limit, other.limit)
        mine, yours = (sketch.hashes[sketch.hashes <= limit] for sketch in (self, other))
        least = min(len(mine), len(yours))
        shared = len(np.intersect1d(mine, yours, assume_unique=True))
        return least >= _LEAST and shared / least > COMMON + max(self.repeated, other.repeated)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """A fit made by this process.

    Attributes:
        sketch: The sketch of its rows.
        events: Its events.
        budget: Its budget.
        run: The id of a checkpointed run; resuming it is not a second fit.
    """

    sketch: Sketch
    events: tuple[Event, ...]
    budget: Budget
    run: str | None = None


_fits: collections.deque[Fit] = collections.deque(maxlen=REMEMBERED)
_lock = threading.Lock()


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Do not track fits whose rows are public or whose results are not released.

    Example:
        >>> with untracked():
        ...     pass
    """
    token = _untracked.set(True)
    try:
        yield
    finally:
        _untracked.reset(token)


def note_fit(
    table: Table,
    events: Sequence[Event],
    budget: Budget,
    *,
    stamps: Sequence[str],
    is_charged: bool,
    run: str | None = None,
) -> None:
    """Record a fit, and warn if it repeats an earlier one without a ledger.

    Args:
        table: Its rows.
        events: Its events.
        budget: Its budget.
        stamps: Warnings that void its guarantee; such a fit is not tracked.
        is_charged: Whether a ledger was charged, which then does the accounting.
        run: The id of a checkpointed run.
    """
    if stamps or not budget.is_private or _untracked.get():
        return
    fit = Fit(Sketch.of(list(table.columns.values())), tuple(events), budget, run)
    with _lock:
        known = list(_fits)
    if run is not None and any(run == other.run for other in known):
        return
    earlier = [other for other in known if other.sketch.overlaps(fit.sketch)]
    if earlier and not is_charged:
        warnings.warn(_message([*earlier, fit]), RepeatedFitWarning, stacklevel=outside() - 1)
    with _lock:
        _fits.append(fit)


def outside() -> int:
    """The stack level of the first caller outside this library.

    Example:
        >>> outside() >= 1
        True
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("dpflows."):
        level, frame = level + 1, frame.f_back
    return level


def forget_fits() -> None:
    """Clear the record of fits in this process; for tests.

    Example:
        >>> forget_fits()
    """
    with _lock:
        _fits.clear()


def _message(fits: Sequence[Fit]) -> str:
    epsilon, delta = _total(fits)
    return (
        f"INTERNAL: this is fit number {len(fits)} in this process on the same rows. Released "
        f"together the fits cost up to epsilon {epsilon:.4g} at delta {delta:.3g} "
        f"({fits[-1].budget.neighbours}), more than each guarantee states. Charge all fits to one "
        "ledger, or use DPSelect to choose among settings within one budget. The repetition was "
        "detected by comparing rows, so do not publish this message"
    )


def _total(fits: Sequence[Fit]) -> tuple[float, float]:
    """The cost of all fits together; the plain sum if they have no common accountant."""
    budget = fits[-1].budget
    events = [event for fit in fits for event in fit.events]
    try:
        # Rényi costs add up in no time, and hold if a fit was chosen after seeing another.
        composed = epsilon_of(
            events, delta=budget.delta, neighbours=budget.neighbours, accountant="rdp"
        )
    except InputError:
        composed = float("inf")
    plain = sum(fit.budget.epsilon for fit in fits)
    return (composed, budget.delta) if composed <= plain else (plain, _sum_of_deltas(fits))


def _sum_of_deltas(fits: Sequence[Fit]) -> float:
    return min(1.0, sum(fit.budget.delta for fit in fits))


def _hashes(columns: Sequence[np.ndarray]) -> Hashes:
    """A keyed hash of every row, in blocks that fit into the processor's cache."""
    starts = range(0, len(columns[0]), _BLOCK)
    blocks = [_hashed([cells[at : at + _BLOCK] for cells in columns]) for at in starts]
    return np.concatenate([np.zeros(0, np.uint64), *blocks])


def _hashed(columns: Sequence[np.ndarray]) -> Hashes:
    mixed = np.zeros(len(columns[0]), np.uint64)
    for place, cells in enumerate(columns):
        words = _words(cells)
        words = (words ^ (words >> np.uint64(32))) * _multiplier(place)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _multiplier(-1) + words
    return _scrambled(mixed)


def _words(cells: np.ndarray) -> Hashes:
    if cells.dtype.kind in "fiub":
        # zero has two signs
        return (cells.astype(np.float64) + 0.0).view(np.uint64)
    from pandas.util import hash_array

    found: Any = hash_array(np.asarray(cells, dtype=object), hash_key=_KEY.hex()[:16])
    return np.asarray(found, np.uint64)


@functools.cache
def _multiplier(place: int) -> np.uint64:
    """A secret odd number for each column."""
    digest = hashlib.blake2b(f"{place}".encode(), key=_KEY, digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") | 1)


def _scrambled(words: Hashes) -> Hashes:
    """The finishing steps of splitmix64: every bit of the result depends on every bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


#: What a step knows of a table's shape, which is public.
_SHAPE = frozenset({"n_features_in_", "feature_names_in_", "n_output_features_", "n_features_out_"})
#: How far up a pipeline may be; searches and nested pipelines are a few calls each.
_DEEPEST = 60


def warn_of_transformers() -> None:
    """Warn if the caller is a scikit-learn pipeline whose earlier steps learned from the rows.

    Example:
        >>> warn_of_transformers()
    """
    for pipeline in _pipelines(sys._getframe(1)):
        for name, step in pipeline.steps[:-1]:
            if learned(step):
                warnings.warn(
                    _transformer_message(name, step),
                    UnpaidTransformerWarning,
                    stacklevel=outside() - 1,
                )


def learned(step: Any) -> bool:
    """Whether a fitted pipeline step holds more of the rows than their shape.

    Example:
        >>> import numpy as np
        >>> from sklearn.preprocessing import Normalizer, StandardScaler
        >>> learned(StandardScaler().fit(np.eye(3))), learned(Normalizer().fit(np.eye(3)))
        (True, False)
    """
    if step is None or isinstance(step, str):
        return False
    parts = _parts(step)
    if parts is not None:
        return any(learned(part) for part in parts)
    return bool(_needs_fit(step) and _learned_attributes(step) and not hasattr(step, "guarantee_"))


def _parts(step: Any) -> list[Any] | None:
    """The parts of a composite step; ``None`` for a simple one."""
    if isinstance(step, Pipeline):
        return [part for _, part in step.steps]
    if isinstance(step, FeatureUnion):
        return [part for _, part in step.transformer_list]
    fitted = vars(step).get("transformers_")
    return None if fitted is None else [part for _, part, *_ in fitted]


def _needs_fit(step: Any) -> bool:
    try:
        return get_tags(step).requires_fit
    except (AttributeError, TypeError):
        # without tags nothing is known, and most steps learn
        return True


def _learned_attributes(step: Any) -> list[str]:
    names = [name for name in vars(step) if name.endswith("_") and not name.startswith("_")]
    return [name for name in names if name not in _SHAPE and vars(step)[name] is not None]


def _pipelines(frame: types.FrameType | None) -> Iterator[Pipeline]:
    """The pipelines that are being fitted, the innermost first."""
    seen: list[Pipeline] = []
    for _ in range(_DEEPEST):
        if frame is None:
            return
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and not any(owner is one for one in seen):
            seen.append(owner)
            yield owner
        frame = frame.f_back


def _transformer_message(name: str, step: Any) -> str:
    return (
        f"the step {name!r} ({type(step).__name__}) before the estimator learned from the rows "
        "without noise, and the guarantee does not cover what it learned. Remove it: with declared "
        "bounds or a schema the estimator normalises the columns within its own budget; or replace "
        "it by a step with fixed, public numbers (FunctionTransformer)"
    )

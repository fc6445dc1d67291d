"""The members of an ensemble: a density and a threshold for every part of the rows.

Members are fitted in this process, in others, or by the workers of a cluster. Rows are sent
to the workers in memory. What a cluster's own software does with them, such as spilling to
disk, is the responsibility of its administrator.

Guarantee:
    A member depends only on the rows of its own part and on public values. Nothing
    that happens to one part is raised, warned of or logged: a part that cannot be fitted
    votes anomaly on every row, and its vote is one among the others.
"""

import contextlib
import dataclasses
import functools
import importlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Float64
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from dpflows.anomaly.threshold_rules import (
    CRITERIA,
    best_threshold,
    check_contamination,
    contamination_threshold,
    normal_rows,
)
from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.estimators.persistence import described, rebuilt
from dpflows.pipeline.domain import as_source
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Encoding, read_table
from dpflows.table.schema import Schema

#: Calls a function with each of many arguments, and gives the results in order.
Run = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterable[Any]]
Place = contextlib.AbstractContextManager[Run]


@contextlib.contextmanager
def _local(backend: str | None, jobs: int | None) -> Iterator[Run]:
    yield functools.partial(_side_by_side, backend, jobs)


@contextlib.contextmanager
def _dask(backend: str | None, jobs: int | None) -> Iterator[Run]:
    """Run tasks by Dask's own interface, without keys computed from the rows."""
    distributed = _import("distributed", "dask")
    with contextlib.ExitStack() as stack:
        try:
            client = distributed.default_client()
        except ValueError:
            client = stack.enter_context(_own_client(distributed, jobs))

        def run(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
            futures = [client.submit(function, *task, pure=False) for task in tasks]
            return list(client.gather(futures))

        yield run


@contextlib.contextmanager
def _ray(backend: str | None, jobs: int | None) -> Iterator[Run]:
    """Run tasks by Ray's own interface, since its joblib backend changes the whole process."""
    # A library for private data reports nothing to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _import("ray", "ray")
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(num_cpus=_workers(jobs), include_dashboard=False, log_to_driver=False)

    def run(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        remote = ray.remote(function)
        return list(ray.get([remote.remote(*task) for task in tasks]))

    try:
        yield run
    finally:
        if is_ours:
            ray.shutdown()


BACKENDS: dict[str | None, Callable[[str | None, int | None], Place]] = {
    **dict.fromkeys((None, "loky", "threading", "sequential"), _local),
    "dask": _dask,
    "ray": _ray,
}


def check_backend(backend: str | None) -> None:
    """Refuse a backend that is not known.

    Example:
        >>> check_backend("abacus")
        Traceback (most recent call last):
        dpflows.errors.InputError: backend must be None, loky, threading, sequential, dask or ray
    """
    if backend not in BACKENDS:
        *names, last = (str(name) for name in BACKENDS)
        raise InputError(f"backend must be {', '.join(names)} or {last}")


def running(backend: str | None, jobs: int | None) -> Place:
    """A backend, started if necessary, and stopped again if it was started here.

    An existing Dask client or Ray session is used and not stopped.

    Example:
        >>> with running("threading", 2) as run:
        ...     list(run(pow, [(2, 3), (3, 2)]))
        [8, 9]
    """
    check_backend(backend)
    return BACKENDS[backend](backend, jobs)


def _side_by_side(
    backend: str | None,
    jobs: int | None,
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
) -> Iterable[Any]:
    # Without max_nbytes=None, large arrays are written to a temporary file for the workers
    # to map: private rows would be on disk.
    work = Parallel(n_jobs=jobs, backend=backend, max_nbytes=None, return_as="generator")
    results: Iterable[Any] = work(delayed(function)(*task) for task in tasks)
    return results


def _own_client(distributed: Any, jobs: int | None) -> Any:
    # Without a memory limit a worker never spills rows to disk.
    return distributed.Client(
        n_workers=_workers(jobs), threads_per_worker=1, memory_limit=None, dashboard_address=None
    )


def _workers(jobs: int | None) -> int:
    return jobs if jobs is not None and jobs > 0 else os.cpu_count() or 1


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"backend {extra} needs the extra of that name; install dpflows[{extra}]"
        ) from None


#: What a worker hands back: no object, only what a file would hold.
Described = tuple[dict[str, Any] | None, dict[str, np.ndarray], float]
#: Called with the number of members that are ready.
Ready = Callable[[int], None]

Rows = Float64[np.ndarray, "_ columns"]


@final
@dataclasses.dataclass(frozen=True)
class Cut:
    """The rule for each member's threshold, from its own part and public rows only.

    Attributes:
        rule: ``part``, a criterion for labelled public rows, or ``given``.
        value: The threshold if it is given.
        contamination: The share of a part's own rows below the threshold.
        rows: Public rows.
        normal: Which of them are normal.

    Example:
        >>> Cut.asked(-7.5, 0.1, None, None).value
        -7.5
    """

    rule: str
    value: float = 0.0
    contamination: float = 0.1
    rows: Rows | None = dataclasses.field(default=None, repr=False)
    normal: Bool[np.ndarray, " rows"] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def asked(cls, threshold: Any, contamination: float, public: Any, schema: Any) -> "Cut":
        """Read the user's setting; raises only for public reasons."""
        check_contamination(contamination)
        if isinstance(threshold, Real) and not isinstance(threshold, bool):
            return cls("given", _finite(float(threshold)), contamination)
        if threshold == "part":
            return cls("part", contamination=contamination)
        if threshold not in CRITERIA:
            raise InputError(f"threshold must be a number, part, {' or '.join(CRITERIA)}")
        rows, normal = _labelled(public, schema)
        return cls(threshold, contamination=contamination, rows=rows, normal=normal)

    def find(self, density: DensityEstimator, part: Rows) -> float:
        """The threshold of a member that was fitted to ``part``."""
        if self.rule == "given":
            return self.value
        if self.rule == "part":
            return contamination_threshold(_scores(density, part), self.contamination)
        if self.rows is None or self.normal is None:
            raise InputError("public must be (rows, labels)")
        return best_threshold(_scores(density, self.rows), self.normal, self.rule)


@final
@dataclasses.dataclass(frozen=True)
class Member:
    """A member of the ensemble.

    Attributes:
        density: The density of its part; ``None`` if the part could not be fitted.
        threshold: Rows with a lower log-density are anomalies.
    """

    density: DensityEstimator | None = dataclasses.field(repr=False)
    threshold: float = dataclasses.field(repr=False)

    @property
    def columns(self) -> int | None:
        """Number of columns it expects; ``None`` if it has no density."""
        return None if self.density is None else self.density.n_features_in_

    @classmethod
    def from_file(cls, description: Described) -> "Member":
        """Restore a member from a worker or a file, which may be hostile."""
        header, arrays, threshold = description
        if header is None:
            return cls(None, 0.0)
        return cls(rebuilt(header, arrays), float(threshold))

    def to_file(self) -> Described:
        """The member as plain data."""
        if self.density is None:
            return None, {}, 0.0
        return *described(self.density), self.threshold

    def says_normal(self, rows: Float[np.ndarray, "rows columns"]) -> Bool[np.ndarray, " rows"]:
        """Its vote on each row; a row that it cannot score is an anomaly."""
        if self.density is None:
            return np.zeros(len(rows), dtype=bool)
        try:
            return np.asarray(_scores(self.density, rows) > self.threshold)
        except Exception:
            # Whether scoring fails depends on the part, so it may count as a vote at most.
            return np.zeros(len(rows), dtype=bool)


def checked_density(estimator: Any) -> DensityEstimator:
    """The estimator to copy for every part; a mixture if none is named."""
    wanted = DPGaussianMixture() if estimator is None else estimator
    if not isinstance(wanted, DensityEstimator):
        kind = type(wanted).__name__
        raise InputError(f"estimator must be a density estimator such as DPDensity(), got {kind}")
    return wanted


def non_private(estimator: DensityEstimator, schema: Schema) -> DensityEstimator:
    """A copy that fits without noise; privacy follows from the noisy vote.

    Example:
        >>> from dpflows import DPGaussian
        >>> copy = non_private(DPGaussian(1.0), Schema.from_bounds([0], [1]))
        >>> copy.epsilon
        inf
    """
    copy: DensityEstimator = clone(estimator)
    copy.set_params(
        epsilon=math.inf, neighbours="zero-out", schema=schema, bounds=None, discover=None
    )
    return copy


def seeds_for(entropy: Entropy, count: int) -> list[int | None]:
    """Seeds of members with a test seed; otherwise none.

    Example:
        >>> seeds_for(Entropy.from_os(), 2)
        [None, None]
    """
    if not entropy.stamp:
        return [None] * count
    return [int(word) for word in entropy.words("initialisation", step=0, count=count)]


def fit_members(
    estimator: DensityEstimator,
    parts: Sequence[Rows],
    cut: Cut,
    *,
    seeds: Sequence[int | None],
    jobs: int | None,
    backend: str | None,
    on_member: Ready | None = None,
    rehearsal: Rows | None = None,
) -> list[Member]:
    """Fit one member per part, in parallel.

    Args:
        estimator: The estimator to copy for every part; without privacy.
        parts: The rows of each part.
        cut: The rule for thresholds.
        seeds: One per part; ``None`` outside of tests.
        jobs: Number of members fitted in parallel.
        backend: The backend that runs the fits.
        on_member: Called after each member.
        rehearsal: Public rows that are fitted first by the same backend. A failure there is raised,
        since it is caused by settings or workers, which a silent failure of every part would hide.
    """
    copies = (clone(estimator).set_params(insecure_test_seed=seed) for seed in seeds)
    tasks = ((copy, part, cut) for copy, part in zip(copies, parts, strict=True))
    # A warning about one part would tell of its rows.
    with running(backend, jobs) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rehearsal is not None:
            list(run(rehearse, [(clone(estimator), rehearsal, cut)]))
        return _collected(run(fit_part, tasks), on_member)


def fit_part(estimator: DensityEstimator, rows: Rows, cut: Cut) -> Described:
    """Fit one part; what cannot be fitted is described as ``None``.

    The threshold is computed with the model as read back, which will vote.
    """
    try:
        return rehearse(estimator, rows, cut)
    except Exception:
        # Whatever is wrong with these rows must not be told; the rehearsal found the rest.
        return None, {}, 0.0


def rehearse(estimator: DensityEstimator, rows: Rows, cut: Cut) -> Described:
    """Fit and describe a member; a failure is raised, so rows must be public or failures caught."""
    header, arrays = described(estimator.fit(rows))
    return header, arrays, float(cut.find(rebuilt(header, arrays), rows))


def made_up_rows(encoding: Encoding, count: int, entropy: Entropy) -> Rows:
    """Uniform rows over the declared box, as a substitute for those of a part.

    Example:
        >>> box = Encoding(Schema.from_bounds([0, 0], 1))
        >>> made_up_rows(box, 3, Entropy.from_os()).shape
        (3, 2)
    """
    shape = (count, len(encoding.low))
    uniforms = entropy.uniforms("sampling", step=0, count=count * shape[1]).reshape(shape)
    cells = encoding.decode(encoding.low + uniforms * (encoding.high - encoding.low))
    return np.column_stack(list(cells.values()))


def count_normal(members: Sequence[Member], rows: Float[np.ndarray, "rows columns"]) -> list[int]:
    """How many members find each row normal; private, never shown or stored."""
    votes = np.zeros(len(rows), dtype=np.int64)
    for member in members:
        votes += member.says_normal(rows)
    return [int(count) for count in votes]


def _scores(
    density: DensityEstimator, rows: Float[np.ndarray, "_ columns"]
) -> Float[np.ndarray, " _"]:
    """Log-densities; rows are filled up to a power of two, as each size is a new program."""
    room = 1 << (len(rows) - 1).bit_length()
    filled = np.concatenate([rows, np.repeat(rows[-1:], room - len(rows), axis=0)])
    return density.score_samples(filled)[: len(rows)]


def _collected(found: Iterable[Described], on_member: Ready | None) -> list[Member]:
    members = []
    for description in found:
        members.append(Member.from_file(description))
        if on_member is not None:
            on_member(len(members))
    return members


def _labelled(public: Any, schema: Schema) -> tuple[Rows, Bool[np.ndarray, " rows"]]:
    if not isinstance(public, tuple | list) or len(public) != 2:
        raise InputError("public must be (rows, labels) for a threshold by accuracy or youden")
    rows, normal = read_table(as_source(public[0]), schema).matrix, normal_rows(public[1])
    if len(rows) != len(normal):
        raise InputError(f"public must hold one label per row, got {len(normal)} for {len(rows)}")
    if normal.all() or not normal.any():
        raise InputError("public must hold rows of both kinds, normal and anomalous")
    return rows, normal


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"threshold must be a finite number, got {value}")
    return value


INTERNAL_STAMP = "INTERNAL: this file must not be published; only its answers may be"

_THRESHOLDS = "thresholds"


def written_members(
    members: Sequence[Member],
) -> tuple[list[dict[str, Any] | None], dict[str, np.ndarray]]:
    """Headers by member, and all arrays under names that tell whose they are."""
    described = [member.to_file() for member in members]
    arrays = {
        f"{i}/{name}": array
        for i, (_, own, _) in enumerate(described)
        for name, array in own.items()
    }
    thresholds = np.array([threshold for _, _, threshold in described], dtype=np.float64)
    return [header for header, _, _ in described], arrays | {_THRESHOLDS: thresholds}


def read_members(
    headers: Any, arrays: dict[str, np.ndarray], *, expected: int, columns: int
) -> list[Member]:
    """Read back ``written_members``; the content may be hostile."""
    thresholds = arrays[_THRESHOLDS]
    if not isinstance(headers, list) or len(headers) != expected:
        raise InputError("the file does not hold the stated number of members")
    if thresholds.shape != (expected,) or np.isnan(thresholds).any():
        raise InputError("the file does not hold a threshold for every member")
    members = [
        Member.from_file((header, _own(arrays, i), float(threshold)))
        for i, (header, threshold) in enumerate(zip(headers, thresholds, strict=True))
    ]
    if any(member.columns not in (None, columns) for member in members):
        raise InputError("the file's members do not have the columns of its schema")
    return members


def _own(arrays: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    prefix = f"{index}/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
